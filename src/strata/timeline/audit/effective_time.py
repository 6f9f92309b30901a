"""Effective training time: the share of the workers' time spent computing steps of the model.

A worker's time starts when it is placed on a host or registers, and ends when it leaves or is lost
without a replacement; for a running task it ends with the newest record. While a lost worker is
being replaced, its time continues. Every moment belongs to one activity
(`timeline/lanes/worker_time`), so the share is never above 1.

Effective is the compute time of steps that are in the model: applied, committed, and not undone by
a rollback or trained again by a later generation. Not effective are waiting for data, other workers
or the coordinator, communication, saving, loading and starting; they are reported as well.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from strata.core.events import COORDINATOR
from strata.core.workers.worker_facts import BatchesAssigned, CoordinatorStateSeen, TrainingFinished
from strata.store.event_store import EventReader
from strata.timeline.audit.audit_results import Effective
from strata.timeline.audit.lineage import Lineage
from strata.timeline.lanes.worker_periods import FACTS, Lives
from strata.timeline.lanes.worker_time import Activity, activities, leave_out_lost_time, recorded_by
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.run_timeline import Timeline

EFFECTIVE, REPEATED, UNFINISHED = "effective", "repeated", "unfinished"


def effective(reader: EventReader, task: str, lineage: Lineage) -> Effective:
    """Sum up the time of a task's workers by what it was spent on."""
    timeline, lives = Timeline(reader), Lives()
    for record in timeline.records(node=COORDINATOR, kinds=FACTS):
        lives.feed(record)
    leave_out_lost_time(timeline, lives)
    spent = defaultdict[str, int](int)
    until_ns = timeline.extent().to_ns + 1
    for node, life in sorted(lives.of.items()):
        if any(turn.task == task for turn in life.turns):
            generation = _Generation()
            records = generation.noted(recorded_by(timeline, node))
            did = (each for each in activities(life, records, until_ns) if each.task == task)
            for name, spent_ns in _spent(did, lineage, generation):
                spent[name] += spent_ns
    seconds = {name: spent_ns / SECOND_NS for name, spent_ns in sorted(spent.items()) if spent_ns}
    return Effective(seconds.get(EFFECTIVE, 0.0), sum(seconds.values()), seconds)


def _spent(
    did: Iterable[Activity], lineage: Lineage, generation: "_Generation"
) -> Iterator[tuple[str, int]]:
    """One worker's time, activity by activity."""
    lost_ns = 0
    for each in did:
        took_ns = each.to_ns - each.from_ns
        if each.kind == "lost":
            lost_ns += took_ns
            continue
        if lost_ns:  # it was replaced
            yield "lost", lost_ns
            lost_ns = 0
        yield _name(each, lineage, generation.number), took_ns


def _name(activity: Activity, lineage: Lineage, generation: int) -> str:
    """The key of an activity in `Effective.seconds`."""
    if activity.part == "compute":
        return EFFECTIVE if lineage.owner_of(activity.step) == generation else REPEATED
    if activity.part:
        return activity.part
    return UNFINISHED if activity.kind == "train" else activity.kind


class _Generation:
    """The generation in which a worker finished its newest step, by its own records."""

    def __init__(self) -> None:
        self.number = 0
        self._assigned = False

    def noted(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records through, and update the generation from each."""
        for record in records:
            body = record.event.body
            if isinstance(body, TrainingFinished) and body.generation:
                self.number = body.generation
            elif isinstance(body, BatchesAssigned):
                self.number, self._assigned = body.generation, True
            elif isinstance(body, CoordinatorStateSeen) and not self._assigned:
                self.number = body.generation
            yield record
