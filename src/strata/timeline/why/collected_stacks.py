"""Collections of stacks as the log holds them: what each worker reported, or why it did not."""

from msgspec import Struct

from strata.core.workers.stack_collection import (
    ITSELF,
    StackCollectionEnded,
    StacksCollected,
    StacksRequested,
)
from strata.core.workers.stack_reports import (
    PendingExchange,
    StackReport,
    StackSource,
    place_of,
)
from strata.timeline.read.records import SECOND_NS, Record, ms
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.stack_answers import StacksAnswer, WorkerStacks

BEST_FIRST: tuple[StackSource, ...] = (
    "py-spy-native",
    "py-spy",
    "faulthandler",
    "worker",
    "none",
)
LONGEST_NS = 120 * SECOND_NS
"""A collection takes at most `hang_report_s`, which is at most a minute."""


class SeenWorker(Struct, frozen=True):
    """One worker of a collection, with the records of its reports, the best stacks first."""

    worker: str
    rank: int
    records: list[Record]
    missing: str = ""
    asked: bool = True

    @property
    def reports(self) -> list[StackReport]:
        """Its reports, the one with the best stacks first."""
        return [_body(record).report for record in self.records]

    @property
    def stacks(self) -> StackReport | None:
        """The report with the best stacks, if any has stacks."""
        return next((each for each in self.reports if each.source != "none"), None)

    @property
    def own(self) -> StackReport | None:
        """What the worker itself reported."""
        own = (record for record in self.records if _body(record).agent == ITSELF)
        return next((_body(record).report for record in own), None)

    @property
    def exchange(self) -> PendingExchange | None:
        """Its newest exchange, if it reported one."""
        return self.own.exchange if self.own is not None else None

    @property
    def place(self) -> str:
        """Where its script is; empty if that is not recorded."""
        place = place_of(self.stacks) if self.stacks is not None else None
        return place.text if place is not None else ""

    @property
    def notes(self) -> list[str]:
        """Why a better source of stacks was not used, and what is missing."""
        notes = [note for report in self.reports for note in report.notes]
        return [*dict.fromkeys(notes), *([self.missing] if self.missing else [])]

    def answer(self) -> WorkerStacks:
        """The worker as the API shows it."""
        stacks, own = self.stacks, self.own
        return WorkerStacks(
            worker_id=self.worker,
            rank=self.rank,
            place=self.place,
            source=stacks.source if stacks is not None else "none",
            exchange=self.exchange,
            waits_for=own.waits_for if own is not None else [],
            step=own.step if own is not None else -1,
            notes=self.notes,
            processes=stacks.processes if stacks is not None else [],
        )


class Collected(Struct, frozen=True):
    """A collection with its workers, by rank; `ended` is None while reports are awaited."""

    begun: Record
    ended: Record | None
    workers: list[SeenWorker]

    @property
    def request(self) -> StacksRequested:
        """The fact with which it began."""
        body = self.begun.event.body
        assert isinstance(body, StacksRequested)
        return body

    def answer(self) -> StacksAnswer:
        """The collection as the API shows it."""
        return StacksAnswer(
            task_id=self.request.task,
            collection=self.request.collection,
            trigger=self.request.trigger,
            reason=self.request.reason,
            at_ms=ms(self.begun.at_ns),
            ended=self.ended is not None,
            left_out=self.request.left_out,
            workers=[each.answer() for each in self.workers],
        )


def newest(timeline: Timeline, task: str, until_ns: int) -> Record | None:
    """The begin of the newest collection of a task, or of any task if none is named."""
    kinds = {StacksRequested.__name__}
    found = timeline.backwards(until_ns, None, kinds=kinds)
    return next((each for each in found if task in ("", each.text("task"))), None)


def collected(timeline: Timeline, begun: Record) -> Collected:
    """Everything that belongs to a collection."""
    request = begun.event.body
    assert isinstance(request, StacksRequested)
    kinds = {StacksCollected.__name__, StackCollectionEnded.__name__}
    found = [
        each
        for each in timeline.records(begun.at_ns, begun.at_ns + LONGEST_NS, kinds=kinds)
        if (each.text("task"), each.get("collection")) == (request.task, request.collection)
    ]
    ended = next((each for each in found if each.kind == StackCollectionEnded.__name__), None)
    reports = [each for each in found if each.kind == StacksCollected.__name__]
    end = ended.event.body if ended is not None else None
    why = end.missing if isinstance(end, StackCollectionEnded) else {}
    workers = [_seen(name, request.ranks.get(name, -1), reports, why) for name in request.workers]
    return Collected(begun=begun, ended=ended, workers=sorted(workers, key=_order))


def not_asked(name: str) -> SeenWorker:
    """A worker that the collection did not ask."""
    return SeenWorker(worker=name, rank=-1, records=[], missing="it was not asked", asked=False)


def _seen(name: str, rank: int, reports: list[Record], why: dict[str, str]) -> SeenWorker:
    own = [each for each in reports if each.text("worker") == name]
    own.sort(key=lambda record: BEST_FIRST.index(_body(record).report.source))
    missing = why.get(name, "")
    if not own and not missing:
        missing = "no report is recorded"
    return SeenWorker(worker=name, rank=rank, records=own, missing=missing)


def _order(worker: SeenWorker) -> tuple[bool, int, str]:
    return worker.rank < 0, worker.rank, worker.worker


def _body(record: Record) -> StacksCollected:
    body = record.event.body
    assert isinstance(body, StacksCollected)
    return body
