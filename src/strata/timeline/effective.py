"""Effective training time: the share of the workers' time that went into steps that count.

The time of a worker begins when it is placed on a host or joins, and ends when it leaves or is lost
for good; of a task that runs it ends with the newest record. While a lost worker is being replaced
its time goes on. Every moment of it belongs to one activity (`worker_time`), so the share is never
above 1.

Effective is the time that workers computed in steps that are in the model: applied, committed, and
not undone by a rollback or trained again by a later generation. Waiting for data, for other workers
or for the coordinator is not effective, nor is communication, saving, loading or starting. All of
them are given as well.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from strata.core.events import COORDINATOR
from strata.core.worker_facts import (
    BatchesAssigned,
    CoordinatorStateSeen,
    TrainingFinished,
)
from strata.store.base import EventReader
from strata.timeline.lineage import Lineage
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.timeline import Timeline
from strata.timeline.worker_lives import FACTS, Lives
from strata.timeline.worker_time import Activity, activities, recorded_by

EFFECTIVE, REPEATED, UNFINISHED = "effective", "repeated", "unfinished"


class Effective(Struct, frozen=True):
    """Seconds of all workers together: effective ones, all, and all by what they went to.

    `seconds` has `effective`, `repeated` (computing in steps that do not count), `unfinished`
    (training without a finished step), `data`, `communication`, `wait`, `barrier`, `checkpoint`,
    `recover`, `idle` and `lost`, each where there was any; together they are `total_s`.
    """

    productive_s: float
    total_s: float
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The part of the time that was effective."""
        return self.productive_s / self.total_s if self.total_s else 0.0


def effective(reader: EventReader, task: str, lineage: Lineage) -> Effective:
    """Adds up what the time of a task's workers went to."""
    timeline, lives = Timeline(reader), Lives()
    for record in timeline.records(node=COORDINATOR, kinds=FACTS):
        lives.feed(record)
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
    """What one worker's time went to, piece by piece."""
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
    """What an activity is called in the sum."""
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
        """The records, each after it was looked at; a step is handed on with its generation."""
        for record in records:
            body = record.event.body
            if isinstance(body, TrainingFinished) and body.generation:
                self.number = body.generation
            elif isinstance(body, BatchesAssigned):
                self.number, self._assigned = body.generation, True
            elif isinstance(body, CoordinatorStateSeen) and not self._assigned:
                self.number = body.generation
            yield record
