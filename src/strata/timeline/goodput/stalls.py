"""Stalls of a task: the time without progress that a record found, and that a stop or a loss ended.

A record says that a task makes no progress: the alert `no_step`, or the collection of stacks before
a hang or a barrier timeout is declared. The stall reaches from the newest committed step before the
record to the next one. If its workers are stopped or killed instead, the stall is the cause of the
lost time, not the signal that ended the processes.
"""

from collections.abc import Sequence

from msgspec import Struct

from strata.core.alerts.alert_record import AlertRaised
from strata.core.alerts.progress_rules import NO_STEP
from strata.core.events import COORDINATOR
from strata.core.generations.recovery import RecoveryChosen, StepsCommitted
from strata.core.workers.stack_collection import StacksRequested
from strata.store.event_store import FOREVER_NS
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline

FACTS = frozenset(kind.__name__ for kind in (AlertRaised, StacksRequested))
MAX_STALLS = 1_000


class Stall(Struct, frozen=True):
    """A stall, and the first record that found it."""

    found: Record
    from_ns: int
    until_ns: int


def finds_stall(record: Record) -> bool:
    """Whether a record says that a task makes no progress."""
    body = record.event.body
    if isinstance(body, StacksRequested):
        return body.trigger in ("hang", "barrier")
    return isinstance(body, AlertRaised) and body.rule == NO_STEP


def stalls(timeline: Timeline, task: str, found: Sequence[Record]) -> list[Stall]:
    """The stalls that these records of a task found, by time; the first `MAX_STALLS`."""
    kept: list[Stall] = []
    for record in found:
        if len(kept) < MAX_STALLS and (not kept or kept[-1].until_ns <= record.at_ns):
            kept.append(_stall(timeline, task, record))
    return kept


def _stall(timeline: Timeline, task: str, found: Record) -> Stall:
    steps, recovered = StepsCommitted.__name__, RecoveryChosen.__name__
    before = timeline.backwards(found.at_ns, node=COORDINATOR, kinds={steps, recovered})
    after = timeline.records(found.at_ns, node=COORDINATOR, kinds={steps})
    return Stall(
        found=found,
        from_ns=next((r.at_ns for r in before if r.text("task") == task), found.at_ns),
        until_ns=next((r.at_ns for r in after if r.text("task") == task), FOREVER_NS),
    )
