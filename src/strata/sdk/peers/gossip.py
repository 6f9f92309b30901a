"""Gossip protocol for the results of local steps: pure logic, no I/O.

Each member has a few *neighbors*: the next member in a ring of all, so that an announcement reaches
everyone, and some members chosen by hash, so that it needs few hops. A member that receives a new
announcement forwards it to its own neighbors. It repeats an announcement, at growing intervals,
until the neighbor has acknowledged it or the round is over. Duplicates are ignored.

A result is announced once per generation, round and author; these three make its id. A member may
be one round ahead of another (never two: a round ends when all have every result), so announcements
of the current and of the next round are accepted, and those of the last round are duplicates.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from strata.core.workers.exchange_facts import PeerLagged

FAR_NEIGHBORS = 3
FIRST_RETRY_S = 0.5
MAX_RETRY_S = 8.0
MAX_UPDATE_BYTES = 64 << 30

LATENCY_FACTOR = 2.0
LATENCY_FLOOR_S = 0.005
LATENCY_INTERVAL_S = 5.0
LATENCY_WEIGHT = 1 / 8
LAG_S = 2.0


class Announcement(Struct, frozen=True, forbid_unknown_fields=True):
    """A result that peers can download; `blob` is its checksum.

    `rebroadcasts` counts how often it was forwarded; the author sends it with 0.
    """

    message: str
    generation: int
    step: int
    author: str
    blob: str
    size_bytes: int
    batch: str = ""
    rebroadcasts: int = 0


class PendingAnnouncement(Struct):
    """An announcement that a neighbor has not acknowledged; `tries` counts failed attempts."""

    announcement: Announcement
    since_s: float
    due_s: float
    tries: int = 0


def message_id(generation: int, step: int, author: str) -> str:
    """The id under which a result is announced."""
    return f"update-{generation}-{step}-{author}"


def neighbors(members: Sequence[str], own: str) -> list[str]:
    """The members that `own` sends to: the next in the ring, and a few chosen by hash."""
    ring = sorted(members)
    following = ring[(ring.index(own) + 1) % len(ring)]
    far = sorted((each for each in ring if each not in (own, following)), key=_distance(own))
    return [each for each in (following, *far[:FAR_NEIGHBORS]) if each != own]


class Gossip:
    """The announcements that one member of a generation knows and has yet to deliver."""

    def __init__(self, generation: int, own: str, members: Iterable[str], step: int) -> None:
        self.generation, self.own = generation, own
        self.members = list(members)
        self.neighbors = neighbors(self.members, own)
        self.step = step
        self._known: dict[int, dict[str, Announcement]] = {}
        self._pending: dict[str, dict[str, PendingAnnouncement]] = {
            each: {} for each in self.neighbors
        }

    def begin_round(self, step: int) -> None:
        """Start a round and drop deliveries of earlier rounds, whose results all members have."""
        self.step = step
        self._known = {of: known for of, known in self._known.items() if of >= step - 1}
        for pending in self._pending.values():
            for message in [m for m, each in pending.items() if each.announcement.step < step]:
                del pending[message]

    def rejection(self, announced: Announcement) -> str:
        """Why an announcement is rejected; empty if it is accepted."""
        if announced.generation != self.generation:
            return f"it is for generation {announced.generation}, not {self.generation}"
        if not self.step - 1 <= announced.step <= self.step + 1:
            return f"it is for round {announced.step}, not {self.step}"
        if announced.author not in self.members:
            return f"author {announced.author!r:.80} is not in generation {self.generation}"
        if announced.message != message_id(announced.generation, announced.step, announced.author):
            return "its id does not match its author and round"
        if not 0 < announced.size_bytes <= MAX_UPDATE_BYTES:
            return f"a result cannot have {announced.size_bytes} bytes"
        if not 0 <= announced.rebroadcasts < len(self.members):
            return f"it cannot have been forwarded {announced.rebroadcasts} times"
        known = self._known.get(announced.step, {}).get(announced.message)
        if known is not None and known != replace(announced, rebroadcasts=known.rebroadcasts):
            return "another result was announced under the same id"
        return ""

    def accept(self, announced: Announcement, sender: str, now_s: float) -> bool:
        """Queue an announcement for the neighbors; False if it is a duplicate or too old."""
        known = self._known.setdefault(announced.step, {})
        if announced.message in known or announced.step < self.step:
            return False
        known[announced.message] = announced
        hops = 0 if announced.author == self.own else announced.rebroadcasts + 1
        forwarded = replace(announced, rebroadcasts=hops)
        for neighbor, pending in self._pending.items():
            if neighbor not in (sender, announced.author):
                pending[announced.message] = PendingAnnouncement(
                    announcement=forwarded, since_s=now_s, due_s=now_s
                )
        return True

    def pending_neighbors(self) -> list[str]:
        """The neighbors that have not acknowledged everything."""
        return [neighbor for neighbor, pending in self._pending.items() if pending]

    def next_delivery(self, neighbor: str) -> PendingAnnouncement | None:
        """The delivery to a neighbor that is due first; its time may be in the future."""
        pending = self._pending[neighbor].values()
        return min(pending, key=lambda delivery: delivery.due_s, default=None)

    def pending(self, neighbor: str) -> list[PendingAnnouncement]:
        """The deliveries that a neighbor has not acknowledged, oldest first."""
        return sorted(self._pending[neighbor].values(), key=lambda delivery: delivery.since_s)

    def acknowledge(self, neighbor: str, message: str) -> None:
        """Drop a delivery that the neighbor has accepted or rejected."""
        self._pending[neighbor].pop(message, None)

    def retry_later(self, neighbor: str, message: str, now_s: float) -> None:
        """Schedule the next attempt of a delivery that was not answered."""
        delivery = self._pending[neighbor].get(message)
        if delivery is not None:
            delivery.tries += 1
            wait_s = FIRST_RETRY_S * 2 ** min(delivery.tries - 1, 16)
            delivery.due_s = now_s + min(wait_s, MAX_RETRY_S)

    def stop(self) -> None:
        """Drop all deliveries."""
        for pending in self._pending.values():
            pending.clear()


class LatencyTracker:
    """Smoothed acknowledgement times of the neighbors; implements `PeerLatencyChanged`."""

    def __init__(self) -> None:
        self._smooth: dict[str, float] = {}
        self._recorded: dict[str, tuple[float, float]] = {}

    def update(self, peer: str, latency_s: float, now_s: float) -> float | None:
        """The average to record; None if it is close to the one recorded last."""
        before_s = self._smooth.get(peer, latency_s)
        smooth_s = self._smooth[peer] = before_s + LATENCY_WEIGHT * (latency_s - before_s)
        if peer in self._recorded:
            recorded_s, at_s = self._recorded[peer]
            low_s, high_s = sorted((recorded_s, smooth_s))
            large = high_s - low_s >= LATENCY_FLOOR_S and high_s >= low_s * LATENCY_FACTOR
            if not large or now_s - at_s < LATENCY_INTERVAL_S:
                return None
        self._recorded[peer] = (smooth_s, now_s)
        return smooth_s


class LagTracker:
    """Neighbors that are slow to acknowledge; implements `PeerLagged`."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = max(interval_s, LAG_S)
        self._recorded: dict[str, float] = {}

    def update(
        self, peer: str, pending: Sequence[PendingAnnouncement], now_s: float
    ) -> PeerLagged | None:
        """The event to record for a neighbor with these unacknowledged deliveries, if any."""
        held_s = now_s - pending[0].since_s if pending else 0.0
        if held_s < LAG_S:
            caught_up = not pending and self._recorded.pop(peer, None) is not None
            return PeerLagged(peer=peer, held_s=0.0) if caught_up else None
        if now_s - self._recorded.get(peer, -self._interval_s) < self._interval_s:
            return None
        self._recorded[peer] = now_s
        size_bytes = sum(each.announcement.size_bytes for each in pending)
        return PeerLagged(peer=peer, held_s=held_s, messages=len(pending), held_bytes=size_bytes)


def _distance(own: str) -> Callable[[str], bytes]:
    """Sort key that differs for each member and is the same on every host."""
    return lambda other: blake2b(f"{own}\0{other}".encode(), digest_size=8).digest()
