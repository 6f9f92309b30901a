"""Facts and helpers that the store's tests share."""

from strata.core.events import Codec, Envelope, Event, Fact
from strata.store.event_batches import pack
from strata.store.event_store import Batch


class Started(Fact, frozen=True):
    worker: str
    note: str = ""


class Stepped(Fact, frozen=True):
    worker: str
    step: int
    loss: float = 0.0


class Finished(Fact, frozen=True):
    worker: str


CODEC = Codec([Started, Stepped, Finished])


def body(seq: int) -> Fact:
    """Kinds take turns, so that every kind is somewhere in a few consecutive events."""
    worker = f"worker-{seq % 7}"
    if seq % 10 == 0:
        return Started(worker=worker, note="x" * (seq % 50))
    return (
        Finished(worker=worker)
        if seq % 10 == 9
        else Stepped(worker=worker, step=seq, loss=1.0 / (seq + 1))
    )


def event(seq: int, wall_ns: int | None = None) -> Event:
    wall_ns = 1_000 * seq if wall_ns is None else wall_ns
    return Envelope(seq, wall_ns, seq, body(seq), cause=(f"@{seq - 1}",) if seq % 3 else ())


def events(first: int, stop: int) -> list[Event]:
    return [event(seq) for seq in range(first, stop)]


def batch(
    first: int, stop: int, node: str = "w0", incarnation: int = 1, offset_ns: int = 0
) -> Batch:
    made = [event(seq, 1_000 * seq + offset_ns) for seq in range(first, stop)]
    return pack(CODEC, node, incarnation, made)


def fill(store, rows: int, facts: int = 10, *, batches: bool = True) -> None:
    """Append that many rows of facts, each with a worker's batch."""
    for _ in range(rows):
        first = store.position
        sent = [batch(first, first + facts, offset_ns=500)] if batches else []
        store.append(events(first, first + facts), incarnation=1, expected=first, batches=sent)


def compact(store) -> int:
    """Join all facts that can be; returns how many."""
    joined = 0
    while more := store.compact(store.position):
        joined += more
    return joined


def contents(store) -> tuple[list[Event], list[tuple[str, int, Event]]]:
    """All facts by position, and everything by time."""
    return list(store.read()), list(store.query(limit=10**9))
