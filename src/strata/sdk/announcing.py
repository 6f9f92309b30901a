"""Telling neighbours of results and hearing of theirs: the rules of `gossip`, carried out.

Each neighbour that has to hear something gets a thread, which ends when everything was
acknowledged. What arrives is heard in the threads of the blob server. Everything that is told,
heard or refused is recorded; refusals only so often in a round, since strangers may cause them.
A neighbour that does not acknowledge in time is recorded, too: `look` is called every second.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from strata.core.worker_facts import (
    ConnectionChanged,
    MessageReceived,
    MessageRejected,
    MessageSent,
    NeighborsChanged,
    PeerLatencyChanged,
)
from strata.errors import NotAllowedNow, Unavailable
from strata.sdk.blobs import Blobs
from strata.sdk.events import Recorder
from strata.sdk.gossip import Announcement, Gossip, Lags, Latencies, Telling
from strata.sdk.peers import Circle

log = logging.getLogger(__name__)

TYPE = "update"
MAX_REFUSALS_RECORDED = 100


class Announcer:
    """Speaks for one worker. `on_news` is called with what is new, and from whom it was heard."""

    def __init__(
        self, blobs: Blobs, recorder: Recorder, on_news: Callable[[Announcement, str], None]
    ) -> None:
        self._recorder, self._on_news = recorder, on_news
        self._changed = threading.Condition()
        self._circle: Circle | None = None
        self._gossip: Gossip | None = None
        self._threads: set[tuple[int, str]] = set()
        self._paths: dict[str, str] = {}
        self._latencies = Latencies()
        self._lags = Lags(recorder.progress_interval_s)
        self._refusals = 0
        blobs.on_message = self.take

    def open(self, circle: Circle, step: int) -> None:
        """A generation begins: others may tell something from now on."""
        with self._changed:
            before = set(self._gossip.neighbors) if self._gossip is not None else set()
            self._hush()
            gossip = Gossip(circle.generation, circle.own, circle.addresses, step)
            self._circle, self._gossip, self._refusals = circle, gossip, 0
        added, removed = set(gossip.neighbors) - before, before - set(gossip.neighbors)
        if added or removed:
            self._recorder.emit(NeighborsChanged(sorted(added), sorted(removed)))

    def begin(self, step: int) -> None:
        """A round begins."""
        with self._changed:
            if self._gossip is not None:
                self._gossip.begin(step)
            self._refusals = 0
            self._changed.notify_all()

    def announce(self, said: Announcement) -> None:
        """Tells everyone, by and by, of a result of this worker."""
        with self._changed:
            assert self._gossip is not None, "a generation was opened"
            self._gossip.heard(said, said.author, time.monotonic())
            self._tell_soon(self._gossip)

    def hush(self) -> None:
        """Tells nothing more until the next generation."""
        with self._changed:
            self._hush()

    def look(self) -> None:
        """Record which neighbours are slow to take what this worker has for them."""
        with self._changed:
            if self._gossip is not None:
                for neighbor in self._gossip.neighbors:
                    self._note_lag(self._gossip, neighbor)

    def take(self, message: bytes, sender: str, proven: bool, cause: str = "") -> str:
        """Hears what a peer says; why it is not taken, or nothing.

        `cause` is the event that sent it, as the sender says; only its own events can be that.
        """
        causes = (cause,) if cause.startswith(f"{sender}.") else ()
        try:
            said = msgspec.json.decode(message, type=Announcement)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return self._refuse(None, sender, f"it is malformed: {error}", causes)
        with self._changed:
            gossip = self._gossip
            if gossip is None:
                reason = "this worker is in no generation yet"
                return self._refuse(said, sender, reason, causes)
            objection = gossip.objection(said)
            if not proven and said.generation == gossip.generation:
                objection = f"it does not prove that it belongs to generation {gossip.generation}"
            if objection:
                return self._refuse(said, sender, objection, causes)
            if not gossip.heard(said, sender, time.monotonic()):
                return ""
            self._recorder.emit(
                MessageReceived(
                    message=said.message,
                    type=TYPE,
                    size_bytes=len(message),
                    sender=sender,
                    blob=said.blob,
                    batch=said.batch,
                    author=said.author,
                    step=said.step,
                    rebroadcasts=said.rebroadcasts,
                ),
                causes,
            )
            self._tell_soon(gossip)
        self._on_news(said, sender)
        return ""

    def _refuse(
        self, said: Announcement | None, sender: str, reason: str, causes: tuple[str, ...]
    ) -> str:
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS_RECORDED:
            refused = MessageRejected(
                message=said.message[:200] if said is not None else "",
                reason=reason,
                type=TYPE,
                sender=sender,
                author=said.author[:200] if said is not None else "",
                step=said.step if said is not None else -1,
            )
            self._recorder.emit(refused, causes)
        return reason

    def _hush(self) -> None:
        if self._gossip is not None:
            self._gossip.silence()
            self._changed.notify_all()

    def _tell_soon(self, gossip: Gossip) -> None:
        """Lets a thread look after each neighbour that has to hear something."""
        self._changed.notify_all()
        for neighbor in gossip.untold():
            if (gossip.generation, neighbor) not in self._threads:
                self._threads.add((gossip.generation, neighbor))
                threading.Thread(
                    target=self._tell_all,
                    args=(gossip, self._circle, neighbor),
                    name=f"strata-tell-{neighbor}",
                    daemon=True,
                ).start()

    def _tell_all(self, gossip: Gossip, circle: Circle, neighbor: str) -> None:
        while (telling := self._next(gossip, neighbor)) is not None:
            self._tell(gossip, circle, neighbor, telling)

    def _next(self, gossip: Gossip, neighbor: str) -> Telling | None:
        """Waits until something is due; None when there is nothing left to tell."""
        with self._changed:
            while (telling := gossip.next_telling(neighbor)) is not None:
                wait_s = telling.due_s - time.monotonic()
                if wait_s <= 0:
                    return telling
                self._changed.wait(wait_s)
            self._threads.discard((gossip.generation, neighbor))
            return None

    def _tell(self, gossip: Gossip, circle: Circle, neighbor: str, telling: Telling) -> None:
        said, attempt = telling.announcement, telling.tries + 1
        message = msgspec.json.encode(said)
        sent = self._recorder.record(
            MessageSent(
                message=said.message,
                type=TYPE,
                size_bytes=len(message),
                to=[neighbor],
                rebroadcasts=said.rebroadcasts,
                blob=said.blob,
                batch=said.batch,
                author=said.author,
                step=said.step,
                attempt=attempt,
            )
        )
        began_s = time.monotonic()
        try:
            circle.peer(neighbor, attempt, self._recorder).tell(message, sent)
        except Unavailable as error:
            self._reached(neighbor, "disconnected", error.message)
            with self._changed:
                gossip.unheard(neighbor, said.message, time.monotonic())
            return
        except NotAllowedNow as refusal:
            log.info("%s did not take %s: %s", neighbor, said.message, refusal.message)
        self._reached(neighbor, "direct")
        self._answered(neighbor, began_s)
        with self._changed:
            gossip.told(neighbor, said.message)
            self._note_lag(gossip, neighbor)

    def _note_lag(self, gossip: Gossip, neighbor: str) -> None:
        lag = self._lags.changed(neighbor, gossip.held(neighbor), time.monotonic())
        if lag is not None:
            self._recorder.emit(lag)

    def _answered(self, neighbor: str, began_s: float) -> None:
        now_s = time.monotonic()
        latency_s = self._latencies.changed(neighbor, now_s - began_s, now_s)
        if latency_s is not None:
            self._recorder.emit(PeerLatencyChanged(neighbor, latency_s))

    def _reached(
        self, neighbor: str, path: Literal["direct", "disconnected"], reason: str = ""
    ) -> None:
        if self._paths.get(neighbor) != path:
            self._paths[neighbor] = path
            changed = ConnectionChanged(
                peer=neighbor, path=path, reason=reason[:500], purpose="messages"
            )
            self._recorder.emit(changed)
