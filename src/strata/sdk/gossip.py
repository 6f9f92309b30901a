"""Who tells whom of a training result, and who still has to hear it: the rules, without any I/O.

Each member has a few *neighbours*: the next one in a ring of all, so that word gets around, and
some chosen by hash, so that it gets around in few hops. Whoever hears something new tells its own
neighbours. An announcement is told again, at growing intervals, until the neighbour has
acknowledged it or the round is over. The same announcement from two sides counts once.

A result is announced once per generation, round and author, and that is its id. A member may be one
round ahead of another (never two: a round ends when all have everything), so announcements of
the present and of the next round are taken, and those of the last one are known already.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from strata.core.exchange_facts import PeerLagged

FAR_NEIGHBORS = 3
FIRST_AGAIN_S = 0.5
LONGEST_AGAIN_S = 8.0
MAX_UPDATE_BYTES = 64 << 30


LATENCY_FACTOR = 2.0
LATENCY_FLOOR_S = 0.005
LATENCY_INTERVAL_S = 5.0
LATENCY_WEIGHT = 1 / 8
LAG_S = 2.0


class Announcement(Struct, frozen=True, forbid_unknown_fields=True):
    """A result that its author offers, and soon others too; `blob` is its checksum.

    `rebroadcasts` counts how often it was passed on; the author sends it with 0.
    """

    message: str
    generation: int
    step: int
    author: str
    blob: str
    size_bytes: int
    batch: str = ""
    rebroadcasts: int = 0


class Telling(Struct):
    """What a neighbour has not acknowledged; `tries` counts how often it was told."""

    announcement: Announcement
    since_s: float
    due_s: float
    tries: int = 0


def message_id(generation: int, step: int, author: str) -> str:
    """The id under which a result is announced."""
    return f"update-{generation}-{step}-{author}"


def neighbors(members: Sequence[str], own: str) -> list[str]:
    """Whom a member tells things: the next in the ring, and a few more that depend on its name."""
    ring = sorted(members)
    following = ring[(ring.index(own) + 1) % len(ring)]
    far = sorted((each for each in ring if each not in (own, following)), key=_distance(own))
    return [each for each in (following, *far[:FAR_NEIGHBORS]) if each != own]


class Gossip:
    """What one member of a generation has heard, and what it has to tell."""

    def __init__(self, generation: int, own: str, members: Iterable[str], step: int) -> None:
        self.generation, self.own = generation, own
        self.members = list(members)
        self.neighbors = neighbors(self.members, own)
        self.step = step
        self._known: dict[int, dict[str, Announcement]] = {}
        self._tellings: dict[str, dict[str, Telling]] = {each: {} for each in self.neighbors}

    def begin(self, step: int) -> None:
        """A round begins: what was to be told of earlier ones everyone knows by now."""
        self.step = step
        self._known = {of: known for of, known in self._known.items() if of >= step - 1}
        for tellings in self._tellings.values():
            for message in [m for m, each in tellings.items() if each.announcement.step < step]:
                del tellings[message]

    def objection(self, said: Announcement) -> str:
        """Why an announcement is not taken; empty when it is."""
        if said.generation != self.generation:
            return f"it is of generation {said.generation}, this is {self.generation}"
        if not self.step - 1 <= said.step <= self.step + 1:
            return f"it is of round {said.step}, this is {self.step}"
        if said.author not in self.members:
            return f"its author {said.author!r:.80} is no member of generation {self.generation}"
        if said.message != message_id(said.generation, said.step, said.author):
            return "its id is not that of its author and round"
        if not 0 < said.size_bytes <= MAX_UPDATE_BYTES:
            return f"its result would have {said.size_bytes} bytes"
        if not 0 <= said.rebroadcasts < len(self.members):
            return f"it says that it was passed on {said.rebroadcasts} times"
        known = self._known.get(said.step, {}).get(said.message)
        if known is not None and known != replace(said, rebroadcasts=known.rebroadcasts):
            return "another result was announced under the same id"
        return ""

    def heard(self, said: Announcement, sender: str, now_s: float) -> bool:
        """Takes an announcement without objection; whether it is new and of use."""
        known = self._known.setdefault(said.step, {})
        if said.message in known or said.step < self.step:
            return False
        known[said.message] = said
        own = said.author == self.own
        passed_on = said if own else replace(said, rebroadcasts=said.rebroadcasts + 1)
        for neighbor, tellings in self._tellings.items():
            if neighbor not in (sender, said.author):
                tellings[said.message] = Telling(passed_on, now_s, now_s)
        return True

    def untold(self) -> list[str]:
        """The neighbours that still have to hear something."""
        return [neighbor for neighbor, tellings in self._tellings.items() if tellings]

    def next_telling(self, neighbor: str) -> Telling | None:
        """What a neighbour has to hear first; it may not be due yet."""
        waiting = self._tellings[neighbor].values()
        return min(waiting, key=lambda telling: telling.due_s, default=None)

    def held(self, neighbor: str) -> list[Telling]:
        """What a neighbour has not acknowledged, the oldest first."""
        return sorted(self._tellings[neighbor].values(), key=lambda telling: telling.since_s)

    def told(self, neighbor: str, message: str) -> None:
        """The neighbour has acknowledged it, or will never take it."""
        self._tellings[neighbor].pop(message, None)

    def unheard(self, neighbor: str, message: str, now_s: float) -> None:
        """The neighbour did not answer: it is told again later."""
        telling = self._tellings[neighbor].get(message)
        if telling is not None:
            telling.tries += 1
            wait_s = FIRST_AGAIN_S * 2 ** min(telling.tries - 1, 16)
            telling.due_s = now_s + min(wait_s, LONGEST_AGAIN_S)

    def silence(self) -> None:
        """The generation is over: nothing has to be sent any more."""
        for tellings in self._tellings.values():
            tellings.clear()


class Latencies:
    """How long neighbours take to acknowledge a message; only a large change is news.

    The rule is that of `PeerLatencyChanged`.
    """

    def __init__(self) -> None:
        self._smooth: dict[str, float] = {}
        self._recorded: dict[str, tuple[float, float]] = {}

    def changed(self, peer: str, latency_s: float, now_s: float) -> float | None:
        """The average that is to be recorded; None when it is about what was recorded last."""
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


class Lags:
    """Which neighbours take messages more slowly than they are sent; the rule of `PeerLagged`."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = max(interval_s, LAG_S)
        self._recorded: dict[str, float] = {}

    def changed(self, peer: str, held: Sequence[Telling], now_s: float) -> PeerLagged | None:
        """What is to be recorded about a neighbour that has not acknowledged these."""
        held_s = now_s - held[0].since_s if held else 0.0
        if held_s < LAG_S:
            caught_up = not held and self._recorded.pop(peer, None) is not None
            return PeerLagged(peer, 0.0) if caught_up else None
        if now_s - self._recorded.get(peer, -self._interval_s) < self._interval_s:
            return None
        self._recorded[peer] = now_s
        size_bytes = sum(each.announcement.size_bytes for each in held)
        return PeerLagged(peer, held_s, messages=len(held), held_bytes=size_bytes)


def _distance(own: str) -> Callable[[str], bytes]:
    """Orders others differently for each member, and alike wherever it is computed."""
    return lambda other: blake2b(f"{own}\0{other}".encode(), digest_size=8).digest()
