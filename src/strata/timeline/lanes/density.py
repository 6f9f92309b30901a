"""Event counts per slice of time, for the strip along which the page scrubs.

Events are counted from their batch headers and spread evenly over the time of a batch, so a run of
any length is counted without decoding it. Losses, recoveries, checkpoints and failures are counted
one by one.
"""

from collections.abc import Iterator

from strata.core.barriers.barrier_rules import BarrierFailed
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted
from strata.core.events import COORDINATOR
from strata.core.generations.recovery import RecoveryChosen, RolledBack
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.store.event_store import Batch, Window
from strata.timeline.answers import BucketAnswer, DensityAnswer
from strata.timeline.read.merged_records import skew_groups
from strata.timeline.read.records import ms
from strata.timeline.read.run_timeline import Timeline

MAX_BUCKETS = 1_000
EDGE_NS = 1_000_000
MARKS = {
    WorkerLost.__name__: "losses",
    RecoveryChosen.__name__: "recoveries",
    RolledBack.__name__: "recoveries",
    CheckpointCommitted.__name__: "checkpoints",
    BarrierFailed.__name__: "failures",
}


def density(
    timeline: Timeline, from_ns: int, to_ns: int, buckets: int, task: str = ""
) -> DensityAnswer:
    """Counts per slice; with a task, losses, recoveries and so on are counted for that task only.

    Facts and events are always counted for all tasks: batch headers do not name the task.
    """
    buckets = min(max(buckets, 1), MAX_BUCKETS)
    width_ns = max(-(-(to_ns - from_ns) // buckets), 1)
    found = [BucketAnswer() for _ in range(buckets)]
    own_low, _ = timeline.coordinator_skew()
    for header in _headers(timeline, from_ns, to_ns):
        low_ns = timeline.clocks.alignment(header.node, header.incarnation).skew_ns[0]
        skew_ns = own_low if header.node == COORDINATOR else low_ns
        first = (_inside(header.wall_from_ns - skew_ns, from_ns, to_ns) - from_ns) // width_ns
        last = (_inside(header.wall_to_ns - skew_ns, from_ns, to_ns) - from_ns) // width_ns
        _spread(found, header, first, last)
    for record in timeline.records(from_ns, to_ns, node=COORDINATOR, kinds=MARKS):
        if not task or record.text("task") == task:
            bucket = found[min((record.at_ns - from_ns) // width_ns, buckets - 1)]
            name = MARKS[record.kind]
            setattr(bucket, name, getattr(bucket, name) + 1)
    return DensityAnswer(ms(from_ns), ms(to_ns), found)


def _headers(timeline: Timeline, from_ns: int, to_ns: int) -> Iterator[Batch]:
    """The batch headers in a window: one query for all nodes with accurate clocks, one each for
    the others."""
    skews = timeline.skews()
    far, (low, high) = skew_groups(skews)
    together = timeline.reader.headers(
        Window(since_ns=from_ns + low - EDGE_NS, until_ns=to_ns + high + EDGE_NS)
    )
    yield from (header for header in together if header.node not in far)
    for node in far:
        low, high = skews[node]
        own = Window(since_ns=from_ns + low - EDGE_NS, until_ns=to_ns + high + EDGE_NS, node=node)
        yield from timeline.reader.headers(own)


def _spread(found: list[BucketAnswer], header: Batch, first: int, last: int) -> None:
    """Divide a batch's events evenly among the slices `first` to `last`, of which some may lie
    outside the window."""
    if last < 0 or first >= len(found):
        return
    share, rest = divmod(header.count, last - first + 1)
    touched = range(max(first, 0), min(last, len(found) - 1) + 1)
    for place, index in enumerate(touched):
        bucket = found[index]
        count = share + (rest if place == 0 else 0)
        if header.node == COORDINATOR:
            bucket.facts += count
        else:
            bucket.events += count


def _inside(moment_ns: int, from_ns: int, to_ns: int) -> int:
    """A time up to `EDGE_NS` outside the window is moved into it: wall clock and monotonic clock
    differ by about that."""
    if from_ns - EDGE_NS <= moment_ns < from_ns:
        return from_ns
    if to_ns <= moment_ns <= to_ns + EDGE_NS:
        return to_ns - 1
    return moment_ns
