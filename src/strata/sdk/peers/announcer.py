"""Send and receive the announcements of `gossip`.

Each neighbor with pending deliveries has a thread, which ends when all are acknowledged. The
threads of the blob server receive announcements. Everything sent, received or rejected is recorded;
rejections at most `MAX_REJECTIONS_RECORDED` times a round, because any process can cause them.
`record_lags` is called every second and records neighbors that are slow to acknowledge.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from strata.core.workers.exchange_facts import (
    ConnectionChanged,
    MessageReceived,
    MessageRejected,
    MessageSent,
    NeighborsChanged,
    PeerLatencyChanged,
)
from strata.errors import UNDECODABLE, NotAllowedNow, Unavailable
from strata.sdk.peers.blob_client import Circle
from strata.sdk.peers.blob_server import Blobs
from strata.sdk.peers.gossip import (
    Announcement,
    Gossip,
    LagTracker,
    LatencyTracker,
    PendingAnnouncement,
)
from strata.sdk.record.recorder import Recorder

log = logging.getLogger(__name__)

TYPE = "update"
MAX_REJECTIONS_RECORDED = 100


class Announcer:
    """Announces one worker's results; `on_announcement` gets each new one and its sender."""

    def __init__(
        self,
        blobs: Blobs,
        recorder: Recorder,
        on_announcement: Callable[[Announcement, str], None],
    ) -> None:
        self._recorder, self._on_announcement = recorder, on_announcement
        self._changed = threading.Condition()
        self._circle: Circle | None = None
        self._gossip: Gossip | None = None
        self._threads: set[tuple[int, str]] = set()
        self._paths: dict[str, str] = {}
        self._latencies = LatencyTracker()
        self._lags = LagTracker(recorder.progress_interval_s)
        self._rejections = 0
        blobs.on_message = self.receive

    def enter(self, circle: Circle, step: int) -> None:
        """Switch to a new generation; its members may announce from now on."""
        with self._changed:
            before = set(self._gossip.neighbors) if self._gossip is not None else set()
            self._stop()
            gossip = Gossip(circle.generation, circle.own, circle.addresses, step)
            self._circle, self._gossip, self._rejections = circle, gossip, 0
        added, removed = set(gossip.neighbors) - before, before - set(gossip.neighbors)
        if added or removed:
            self._recorder.emit(NeighborsChanged(added=sorted(added), removed=sorted(removed)))

    def begin_round(self, step: int) -> None:
        """Start a round."""
        with self._changed:
            if self._gossip is not None:
                self._gossip.begin_round(step)
            self._rejections = 0
            self._changed.notify_all()

    def announce(self, announced: Announcement) -> None:
        """Announce a result of this worker; returns at once."""
        with self._changed:
            assert self._gossip is not None, "a generation was entered"
            self._gossip.accept(announced, announced.author, time.monotonic())
            self._start_deliveries(self._gossip)

    def stop(self) -> None:
        """Drop all deliveries until the next generation."""
        with self._changed:
            self._stop()

    def record_lags(self) -> None:
        """Record which neighbors are slow to acknowledge."""
        with self._changed:
            if self._gossip is not None:
                for neighbor in self._gossip.neighbors:
                    self._record_lag(self._gossip, neighbor)

    def receive(self, message: bytes, sender: str, proven: bool, cause: str = "") -> str:
        """Handle a peer's announcement; returns why it is rejected, or an empty string.

        `proven` says that the sender has the generation's token. `cause` is the event that sent the
        message, according to the sender; it is ignored if it is not one of the sender's own events.
        """
        causes = (cause,) if cause.startswith(f"{sender}.") else ()
        try:
            announced = msgspec.json.decode(message, type=Announcement)
        except UNDECODABLE as error:
            return self._reject(None, sender, f"it is malformed: {error}", causes)
        with self._changed:
            gossip = self._gossip
            if gossip is None:
                reason = "this worker has not entered a generation yet"
                return self._reject(announced, sender, reason, causes)
            rejection = gossip.rejection(announced)
            if not proven and announced.generation == gossip.generation:
                rejection = f"its token is not that of generation {gossip.generation}"
            if rejection:
                return self._reject(announced, sender, rejection, causes)
            if not gossip.accept(announced, sender, time.monotonic()):
                return ""
            self._recorder.emit(
                MessageReceived(
                    message=announced.message,
                    type=TYPE,
                    size_bytes=len(message),
                    sender=sender,
                    blob=announced.blob,
                    batch=announced.batch,
                    author=announced.author,
                    step=announced.step,
                    rebroadcasts=announced.rebroadcasts,
                ),
                causes,
            )
            self._start_deliveries(gossip)
        self._on_announcement(announced, sender)
        return ""

    def _reject(
        self, announced: Announcement | None, sender: str, reason: str, causes: tuple[str, ...]
    ) -> str:
        self._rejections += 1
        if self._rejections <= MAX_REJECTIONS_RECORDED:
            rejected = MessageRejected(
                message=announced.message[:200] if announced is not None else "",
                reason=reason,
                type=TYPE,
                sender=sender,
                author=announced.author[:200] if announced is not None else "",
                step=announced.step if announced is not None else -1,
            )
            self._recorder.emit(rejected, causes)
        return reason

    def _stop(self) -> None:
        if self._gossip is not None:
            self._gossip.stop()
            self._changed.notify_all()

    def _start_deliveries(self, gossip: Gossip) -> None:
        """Start a thread for each neighbor with pending deliveries that has none."""
        self._changed.notify_all()
        for neighbor in gossip.pending_neighbors():
            if (gossip.generation, neighbor) not in self._threads:
                self._threads.add((gossip.generation, neighbor))
                threading.Thread(
                    target=self._deliver_all,
                    args=(gossip, self._circle, neighbor),
                    name=f"strata-announce-{neighbor}",
                    daemon=True,
                ).start()

    def _deliver_all(self, gossip: Gossip, circle: Circle, neighbor: str) -> None:
        while (delivery := self._next(gossip, neighbor)) is not None:
            self._deliver(gossip, circle, neighbor, delivery)

    def _next(self, gossip: Gossip, neighbor: str) -> PendingAnnouncement | None:
        """Wait until a delivery is due; None if none is left."""
        with self._changed:
            while (delivery := gossip.next_delivery(neighbor)) is not None:
                wait_s = delivery.due_s - time.monotonic()
                if wait_s <= 0:
                    return delivery
                self._changed.wait(wait_s)
            self._threads.discard((gossip.generation, neighbor))
            return None

    def _deliver(
        self, gossip: Gossip, circle: Circle, neighbor: str, delivery: PendingAnnouncement
    ) -> None:
        announced, attempt = delivery.announcement, delivery.tries + 1
        message = msgspec.json.encode(announced)
        sent = self._recorder.record(
            MessageSent(
                message=announced.message,
                type=TYPE,
                size_bytes=len(message),
                to=[neighbor],
                rebroadcasts=announced.rebroadcasts,
                blob=announced.blob,
                batch=announced.batch,
                author=announced.author,
                step=announced.step,
                attempt=attempt,
            )
        )
        began_s = time.monotonic()
        try:
            circle.peer(neighbor, attempt, self._recorder).send(message, sent)
        except Unavailable as error:
            self._record_path(neighbor, "disconnected", error.message)
            with self._changed:
                gossip.retry_later(neighbor, announced.message, time.monotonic())
            return
        except NotAllowedNow as refusal:
            log.info("%s rejected %s: %s", neighbor, announced.message, refusal.message)
        self._record_path(neighbor, "direct")
        self._record_latency(neighbor, began_s)
        with self._changed:
            gossip.acknowledge(neighbor, announced.message)
            self._record_lag(gossip, neighbor)

    def _record_lag(self, gossip: Gossip, neighbor: str) -> None:
        lag = self._lags.update(neighbor, gossip.pending(neighbor), time.monotonic())
        if lag is not None:
            self._recorder.emit(lag)

    def _record_latency(self, neighbor: str, began_s: float) -> None:
        now_s = time.monotonic()
        latency_s = self._latencies.update(neighbor, now_s - began_s, now_s)
        if latency_s is not None:
            self._recorder.emit(PeerLatencyChanged(peer=neighbor, latency_s=latency_s))

    def _record_path(
        self, neighbor: str, path: Literal["direct", "disconnected"], reason: str = ""
    ) -> None:
        if self._paths.get(neighbor) != path:
            self._paths[neighbor] = path
            changed = ConnectionChanged(
                peer=neighbor, path=path, reason=reason[:500], purpose="messages"
            )
            self._recorder.emit(changed)
