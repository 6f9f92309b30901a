"""How much happened when: counts for the strip along which one scrubs.

Events are counted from the headers of their batches, spread evenly over a batch's span, so that a
run of any length is counted without decoding it. Turning points are counted one by one.
"""

from collections.abc import Iterator

from msgspec import Struct

from strata.core.barriers import BarrierFailed
from strata.core.checkpoints import CheckpointCommitted
from strata.core.events import COORDINATOR
from strata.core.recovery import RecoveryChosen, RolledBack
from strata.core.workers import WorkerLost
from strata.store.base import Batch, Window
from strata.timeline.merging import NEARLY_NS
from strata.timeline.timeline import Timeline

MAX_BUCKETS = 1_000
EDGE_NS = 1_000_000
MARKS = {
    WorkerLost.__name__: "losses",
    RecoveryChosen.__name__: "recoveries",
    RolledBack.__name__: "recoveries",
    CheckpointCommitted.__name__: "checkpoints",
    BarrierFailed.__name__: "failures",
}


class Bucket(Struct):
    """What happened in one slice of time."""

    facts: int = 0
    events: int = 0
    losses: int = 0
    recoveries: int = 0
    checkpoints: int = 0
    failures: int = 0


class Density(Struct, frozen=True):
    """Slices of equal width from `from_ns` to `to_ns`."""

    from_ns: int
    to_ns: int
    buckets: list[Bucket]


def density(timeline: Timeline, from_ns: int, to_ns: int, buckets: int, task: str = "") -> Density:
    """Counts per slice; with a task only its turning points are counted one by one."""
    buckets = min(max(buckets, 1), MAX_BUCKETS)
    width_ns = max(-(-(to_ns - from_ns) // buckets), 1)
    found = Density(from_ns, to_ns, [Bucket() for _ in range(buckets)])
    own_low, _ = timeline.coordinator_skew()
    for header in _headers(timeline, from_ns, to_ns):
        skew_ns = timeline.clocks.alignment(header.node, header.incarnation).skew_ns[0]
        _spread(found, header, own_low if header.node == COORDINATOR else skew_ns, width_ns)
    for record in timeline.records(from_ns, to_ns, node=COORDINATOR, kinds=MARKS):
        if not task or record.text("task") == task:
            bucket = found.buckets[min((record.at_ns - from_ns) // width_ns, buckets - 1)]
            name = MARKS[record.kind]
            setattr(bucket, name, getattr(bucket, name) + 1)
    return found


def _headers(timeline: Timeline, from_ns: int, to_ns: int) -> Iterator[Batch]:
    """The headers in a window: of all whose clocks are nearly right at once, else one by one."""
    skews = timeline.skews()
    far = {node for node, skew in skews.items() if max(map(abs, skew)) > NEARLY_NS}
    near = [skew for node, skew in skews.items() if node not in far]
    low, high = min((a for a, _ in near), default=0), max((b for _, b in near), default=0)
    together = timeline.reader.headers(Window(from_ns + low - EDGE_NS, to_ns + high + EDGE_NS))
    yield from (header for header in together if header.node not in far)
    for node in far:
        low, high = skews[node]
        own = Window(from_ns + low - EDGE_NS, to_ns + high + EDGE_NS, node)
        yield from timeline.reader.headers(own)


def _spread(found: Density, header: Batch, skew_ns: int, width_ns: int) -> None:
    """Divides a batch's events evenly among the slices that its span touches."""
    last = len(found.buckets) - 1
    first = (_inside(found, header.wall_from_ns - skew_ns) - found.from_ns) // width_ns
    final = (_inside(found, header.wall_to_ns - skew_ns) - found.from_ns) // width_ns
    if final < 0 or first > last:
        return
    share, rest = divmod(header.count, final - first + 1)
    touched = range(max(first, 0), min(final, last) + 1)
    for place, index in enumerate(touched):
        bucket = found.buckets[index]
        count = share + (rest if place == 0 else 0)
        if header.node == COORDINATOR:
            bucket.facts += count
        else:
            bucket.events += count


def _inside(found: Density, moment_ns: int) -> int:
    """A wall clock and a monotonic one differ by a hair: what is at the very edge is inside."""
    if found.from_ns - EDGE_NS <= moment_ns < found.from_ns:
        return found.from_ns
    if found.to_ns <= moment_ns <= found.to_ns + EDGE_NS:
        return found.to_ns - 1
    return moment_ns
