"""One worker's time as pieces, each of one class and with its cause.

`timeline/lanes/worker_time` divides the worker's time into activities; here each gets its class:

`step_pieces` divides finished steps. Outside of steps the class follows from the operation, the
interruption or the worker's state. Before the first step of a process it is starting, after its
last step idle. What no record explains is unknown; after the newest finished step of a running
task it is pending, because the records that decide are still to come.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from msgspec import structs

from strata.core.workers.worker_facts import StepFinished, TrainingStarted
from strata.store.event_store import FOREVER_NS
from strata.timeline.goodput.goodput_answers import TimeClass
from strata.timeline.goodput.interruptions import Interruptions, Stage
from strata.timeline.goodput.step_pieces import (
    Piece,
    Span,
    StepNote,
    StepPieces,
    TaskTime,
    during,
    joined,
)
from strata.timeline.lanes.worker_periods import Life
from strata.timeline.lanes.worker_time import CLOCK_ERROR_NS, Activity
from strata.timeline.read.records import Record

OPERATIONS: dict[str, TimeClass] = {
    "DatasetOpen": "data_wait",
    "CheckpointDownload": "checkpoint_restore",
    "ModelLoad": "checkpoint_restore",
    "BlobDownload": "checkpoint_restore",
    "ModelSerialization": "checkpoint_stall",
    "Evaluation": "evaluation",
    "arrive": "communication_wait",
    "agree": "communication_wait",
    "acquire_lease": "data_wait",
    "return_lease": "data_wait",
    "end_training": "idle",
    "leave": "idle",
}
STATES: dict[str, TimeClass] = {
    "checkpoint": "checkpoint_stall",
    "recover": "checkpoint_restore",
    "data": "data_wait",
}
WAITS: tuple[TimeClass, ...] = ("communication_wait", "straggler_wait", "starting", "idle")


class _Noted:
    """The generation of a worker's newest record, and when its process got the first batch."""

    def __init__(self, interruptions: Interruptions) -> None:
        self._interruptions = interruptions
        self.incarnation = -1
        self.generation = 0
        self.first_batch_ns: int | None = None

    def pass_through(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records through, and note what they say."""
        for record in records:
            if record.incarnation != self.incarnation:
                self.incarnation, self.first_batch_ns = record.incarnation, None
            body = record.event.body
            if isinstance(body, StepFinished):
                self.generation = self._generation(record, body)
            elif isinstance(body, TrainingStarted):
                self.generation = self._generation(record, body)
                if self.first_batch_ns is None:
                    self.first_batch_ns = record.at_ns
            yield record

    def _generation(self, record: Record, body: StepFinished | TrainingStarted) -> int:
        return body.generation or self._interruptions.generation_at(record.at_ns)


class WorkerPieces:
    """Classifies the activities of one worker, fed in order."""

    def __init__(self, task: TaskTime, life: Life) -> None:
        self._task = task
        self._life = life
        self._noted = _Noted(task.interruptions)
        self._pauses = task.waits.pauses.get(life.node, [])
        self._step: list[Activity] = []
        self._of_step = StepNote(generation=0, first_batch_ns=None)
        self._between: list[Activity] = []
        self._period: tuple[int, int | None] | None = None
        self._stepped = False
        self._lost: Record | None = None

    def noted(self, records: Iterable[Record]) -> Iterator[Record]:
        """The worker's records, as they pass to the activities."""
        return self._noted.pass_through(records)

    def feed(self, each: Activity) -> Iterator[Piece]:
        """The pieces that are known after an activity."""
        if self._step and each.within != self._step[0].within:
            yield from self._finished_step()
        if self._left_period(each.from_ns):
            yield from self._settled(after=True)
            self._period, self._stepped = self._life.period(each.from_ns), False
        if each.within:
            yield from self._settled(after=False)
            if not self._step:  # now, because the next record changes what is noted
                self._of_step = StepNote(
                    generation=self._noted.generation,
                    first_batch_ns=None if self._stepped else self._noted.first_batch_ns,
                )
            self._step.append(each)
        elif each.kind == "lost":
            yield self._seat_lost(each)
        else:
            self._between.append(each)

    def end(self) -> Iterator[Piece]:
        """The remaining pieces, after the last activity."""
        if self._step:
            yield from self._finished_step()
        yield from self._settled(after=True)

    def _left_period(self, at_ns: int) -> bool:
        """Whether a moment is outside of the present period of the worker's life."""
        known = self._period
        return known is None or not known[0] <= at_ns < (known[1] or FOREVER_NS)

    def _seat_lost(self, each: Activity) -> Piece:
        self._lost = self._task.interruptions.loss_of.get(each.ref, self._lost)
        return _piece(each, "replacement_wait", cause=self._lost)

    def _settled(self, after: bool) -> Iterator[Piece]:
        """The pieces between two steps, or after the last step of a process."""
        between, self._between = self._between, []
        for each in between:
            yield from self._outside(each, after)

    def _outside(self, each: Activity, after: bool) -> Iterator[Piece]:
        """The pieces of an activity outside of finished steps."""
        at_ns = each.from_ns
        for from_ns, to_ns in during(self._pauses, each.from_ns, each.to_ns):
            yield from self._unpaused(each, (at_ns, from_ns), after)
            yield Piece(from_ns=from_ns, to_ns=to_ns, kind="paused", ref=each.ref)
            at_ns = to_ns
        yield from self._unpaused(each, (at_ns, each.to_ns), after)

    def _unpaused(self, each: Activity, span: Span, after: bool) -> Iterator[Piece]:
        if span[0] >= span[1]:
            return
        kind, slow = self._kind(each, after)
        if kind == "standby" or (each.what and kind not in WAITS):
            yield _piece(each, kind, span, cause=self._restored(each, kind, span))
            return
        stages = self._task.interruptions.overlapping(*span)
        at_ns, working = span[0], each.kind == "train" and kind in ("unknown", "rolled_back")
        for stage in stages:
            if not stage.stops and kind not in (*WAITS, "unknown"):
                continue
            if at_ns < stage.from_ns:
                before = self._before(each, kind, working and stage.stops, stage)
                yield _piece(each, before, (at_ns, stage.from_ns), stage.cause, slow)
            yield _piece(each, stage.kind, (stage.from_ns, stage.to_ns), stage.cause)
            at_ns = stage.to_ns
        if at_ns < span[1]:
            follows = self._task.interruptions.overlapping(span[1], span[1] + 1)
            cause = self._cause(kind, follows if working else [])
            if working and cause is not None:
                kind = "rolled_back"
            piece = _piece(each, kind, (at_ns, span[1]), cause, slow)
            yield self._explained(piece, after) if kind == "unknown" else piece

    def _before(self, each: Activity, kind: TimeClass, working: bool, stage: Stage) -> TimeClass:
        """The class of the time before an interruption: an unfinished step was undone by it."""
        return "rolled_back" if working and self._stepped else kind

    def _kind(self, each: Activity, after: bool) -> tuple[TimeClass, str]:
        """The class of an activity outside of finished steps, and the worker it waited for."""
        if each.ref.startswith("@") and each.kind == "barrier":
            slow = each.what if each.what and each.what != self._life.node else ""
            return ("straggler_wait" if slow else "communication_wait"), slow
        if each.what in OPERATIONS:
            return OPERATIONS[each.what], ""
        if each.what:  # other requests: to enter a generation, to attach a dataset
            return ("communication_wait" if self._stepped else "starting"), ""
        if each.kind in STATES:
            return STATES[each.kind], ""
        if self._is_spare(each):
            return "standby", ""
        if not self._stepped:
            return "starting", ""
        if not after and each.to_ns - each.from_ns <= CLOCK_ERROR_NS:
            return "productive", ""
        return (self._after(each) if after else "unknown"), ""

    def _after(self, each: Activity) -> TimeClass:
        """The class of the time after the last step of a process."""
        period = self._life.period(each.from_ns)
        ended_ns = None if period is None else period[1]
        if ended_ns is None:
            return "idle" if self._task.interruptions.ended else "unknown"
        turn = next(turn for turn in self._life.turns if turn.at_ns == ended_ns)
        return "rolled_back" if turn.kind == "lost" else "idle"

    def _is_spare(self, each: Activity) -> bool:
        """Whether the worker waits without a rank although the task has formed."""
        at = self._task.interruptions
        if each.kind != "idle" or self._stepped or not at.formed_ns or self._period is None:
            return False
        present = self._life.turns[
            bisect_right(self._life.turns, each.from_ns, key=lambda turn: turn.at_ns) - 1
        ]
        seated = at.was_member(self._life.node, self._period[0], each.from_ns)
        return not present.starting and not seated and each.from_ns >= at.formed_ns

    def _cause(self, kind: TimeClass, follows: list[Stage]) -> Record | None:
        if follows:
            return follows[0].cause
        if kind == "starting":
            return self._lost or self._task.interruptions.placed
        return None

    def _restored(self, each: Activity, kind: TimeClass, span: Span) -> Record | None:
        """The interruption that a restore belongs to."""
        if kind != "checkpoint_restore":
            return None
        resumed = self._task.interruptions.resumed
        stages = self._task.interruptions.overlapping(*span)
        if stages:
            return stages[0].cause
        return resumed[-1].cause if resumed else None

    def _explained(self, piece: Piece, after: bool) -> Piece:
        """Unknown time: the step in progress of a running task, or a hole in the log."""
        if after:
            return structs.replace(piece, pending=True)
        return structs.replace(piece, note="no step was recorded as finished")

    def _finished_step(self) -> Iterator[Piece]:
        """The pieces of a finished step."""
        step, self._step = self._step, []
        self._stepped = True
        for each in step:
            if not each.part:
                yield from self._outside(each, after=False)
        free = joined([(each.from_ns, each.to_ns) for each in step if each.part])
        if free:
            origin = self._lost or self._task.interruptions.placed
            found = StepPieces(self._task, self._life.node, step, self._of_step, origin)
            yield from found.pieces(free, during(self._pauses, free[0][0], free[-1][1]))


def _piece(
    each: Activity,
    kind: TimeClass,
    span: Span | None = None,
    cause: Record | None = None,
    slow: str = "",
) -> Piece:
    from_ns, to_ns = span or (each.from_ns, each.to_ns)
    return Piece(
        from_ns=from_ns,
        to_ns=to_ns,
        kind=kind,
        ref=each.ref,
        cause=cause,
        slow=slow,
        step=each.step if kind == "rolled_back" else -1,
    )
