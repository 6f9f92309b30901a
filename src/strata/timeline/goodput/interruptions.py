"""Interruptions of a task: from the last sign of life of a lost worker until training continues.

An interruption begins with the loss of a member, or with a new generation for another reason, and
ends when the recovery is chosen. Its stages, as windows of time:

- detection: from the lost worker's last sign of life (its last event, or the last heartbeat that
  the loss names as evidence) to `WorkerLost`;
- replacement: to the last `WorkerRegistered` of a member of the new generation; empty if a spare or
  the remaining workers continue;
- starting: to `RecoveryChosen`, while the members enter the generation;
- restore: until the last member that reported `recovering` trains. Steps can finish in this window.

Time after a further loss belongs to that loss.

A stall (`goodput/stalls`) that is ended by a stop of the task, or by the loss of a member, is
detection too, from its beginning to that moment, and the record that found it is the cause of the
whole interruption. A declared hang is its own record.
"""

from bisect import bisect_left, bisect_right

from msgspec import Struct, structs

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted
from strata.core.events import Fact
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen
from strata.core.task_state import ENDED
from strata.core.tasks.task_lifecycle import TaskPlaced, TaskStateChanged, TaskSubmitted
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered, WorkerStateChanged
from strata.timeline.goodput.goodput_answers import TimeClass
from strata.timeline.goodput.stalls import Stall
from strata.timeline.read.records import SECOND_NS, Record

KINDS: tuple[type[Fact], ...] = (
    TaskSubmitted,
    TaskPlaced,
    TaskStateChanged,
    WorkerRegistered,
    WorkerLost,
    WorkerStateChanged,
    GenerationChanged,
    RecoveryChosen,
    CheckpointCommitted,
)
FACTS = frozenset(kind.__name__ for kind in KINDS)

Process = tuple[str, int]
"""A worker and its incarnation."""


class Stage(Struct, frozen=True, kw_only=True):
    """A window of an interruption; `stops`: no step of the task finishes in it."""

    from_ns: int
    to_ns: int
    kind: TimeClass
    cause: Record
    stops: bool = True


class Resumed(Struct, frozen=True):
    """The step at which a generation resumed, and the fact that ended the generation before."""

    generation: int
    step: int
    cause: Record


class _Open(Struct):
    """An interruption that has not ended."""

    cause: Record
    from_ns: int
    lost: bool
    registered_ns: int


def _opened(cause: Record, at_ns: int, lost: bool) -> _Open:
    return _Open(cause=cause, from_ns=at_ns, lost=lost, registered_ns=at_ns)


class Interruptions:
    """Reads a task's facts in order; `stages` are then its interruptions, by time."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.losses: dict[Process, Record] = {}
        self.loss_of: dict[str, Record] = {}
        self.stages: list[Stage] = []
        self.resumed: list[Resumed] = []
        self.seated: dict[str, list[int]] = {}
        self.sizes: dict[int, int] = {}
        self.submitted = False
        self.policy = ""
        self.spares = 0
        self.placed: Record | None = None
        self.formed_ns = 0
        self.finished_ns: int | None = None
        self.ended = False
        self.saved: list[int] = []
        self.earlier: dict[str, int] = {}
        self.alone: set[str] = set()
        self._begun: list[tuple[int, int]] = []
        self.stalls: list[Stall] = []
        self._facts: list[Record] = []
        self._members: set[str] = set()
        self._open: _Open | None = None
        self._lost_members = 0
        self._registered: dict[str, int] = {}
        self._cause: Record | None = None
        self._recovering: dict[str, int] = {}
        self._resumed_ns = 0

    def feed(self, record: Record) -> None:
        """Keep a fact of the task; the stages are known after `read`, the rest at once."""
        if record.text("task") != self.task:
            return
        self._facts.append(record)
        body = record.event.body
        self.submitted |= isinstance(body, TaskSubmitted)
        if isinstance(body, WorkerLost):
            self.losses[body.worker, body.incarnation] = record
            self.loss_of[record.ref] = record
        elif isinstance(body, RecoveryChosen):
            self._begun.append((record.at_ns, body.generation))

    def generation_at(self, at_ns: int) -> int:
        """The generation that trained at a moment; for logs without generations in the events."""
        at = bisect_right(self._begun, at_ns, key=lambda each: each[0])
        return self._begun[max(at - 1, 0)][1] if self._begun else 0

    def read(self, last_events: dict[Process, int], until_ns: int) -> None:
        """Derive the stages; `last_events` has the time of each lost process's last event."""
        for record in self._facts:
            self._read(record, last_events)
        self._facts = []
        self._end_restore(None)
        if self._open is not None:
            self._close(until_ns, lasting=True)
        self.stages.sort(key=lambda stage: stage.from_ns)

    def _read(self, record: Record, last_events: dict[Process, int]) -> None:
        body = record.event.body
        if isinstance(body, TaskSubmitted):
            self.policy, self.spares = body.spec.policy, body.spec.spares
        elif isinstance(body, TaskPlaced):
            self.placed = self.placed or record
        elif isinstance(body, WorkerRegistered):
            self._registered[body.worker] = record.at_ns
        elif isinstance(body, WorkerLost):
            self._lost(record, body, last_events)
        elif isinstance(body, GenerationChanged):
            self._changed(record, body)
        elif isinstance(body, RecoveryChosen):
            self._chosen(record, body)
        elif isinstance(body, CheckpointCommitted):
            self.saved = [*self.saved[-1:], body.step]
        elif isinstance(body, WorkerStateChanged):
            self._state(record, body)
        elif isinstance(body, TaskStateChanged):
            self.ended = body.after in ENDED
            if self.ended or body.after == "stopping":
                self._stopped(record)
            if self._open is not None and (self.ended or body.after == "queued"):
                self._close(record.at_ns, lasting=True)
            if body.after == "queued":
                self._members.clear()

    def _lost(self, record: Record, body: WorkerLost, last_events: dict[Process, int]) -> None:
        if body.worker not in self._members:
            return
        self._lost_members += 1
        stall = self._stall_at(record.at_ns) if body.signal != "hang" else None
        cause = stall.found if stall is not None else record
        self.loss_of[record.ref] = cause
        before_loss_s = body.evidence.get("silence_s", body.evidence.get("stuck_s"))
        signs = [last_events.get((body.worker, body.incarnation))]
        if before_loss_s is not None:
            signs.append(record.at_ns - round(before_loss_s * SECOND_NS))
        if body.signal == "hang":
            signs = signs[1:] or signs
        known = [sign for sign in signs if sign is not None]
        sign_ns = min(max(known, default=record.at_ns), record.at_ns)
        if stall is not None:
            sign_ns = min(stall.from_ns, sign_ns)
        if self._open is not None:
            if record.at_ns <= self._open.registered_ns and self._open.lost:
                return  # lost in the same turn
            self._close(record.at_ns, lasting=True)
            sign_ns = record.at_ns
        self._end_restore(record.at_ns)
        self._add(sign_ns, record.at_ns, "loss_detection", cause)
        self._open = _opened(cause, record.at_ns, lost=True)

    def _stall_at(self, at_ns: int) -> Stall | None:
        """The stall at a moment, unless a loss or a new generation interrupted training before."""
        at = bisect_right(self.stalls, at_ns, key=lambda stall: stall.found.at_ns) - 1
        stall = self.stalls[at] if at >= 0 else None
        if stall is None or at_ns > stall.until_ns:
            return None
        return stall if self._open is None or self._open.cause is stall.found else None

    def _stopped(self, record: Record) -> None:
        """A stop ends a stall."""
        stall = self._stall_at(record.at_ns)
        if stall is not None and self._open is None:
            self._add(stall.from_ns, record.at_ns, "loss_detection", stall.found)

    def _changed(self, record: Record, body: GenerationChanged) -> None:
        self.sizes[body.generation] = body.world_size
        self._members.difference_update(body.left)
        for _, worker in body.seats:
            self._members.add(worker)
            self.seated.setdefault(worker, []).append(record.at_ns)
            if self._open is not None:  # a process that becomes a spare is not waited for
                joined_ns = self._registered.get(worker, 0)
                self._open.registered_ns = max(self._open.registered_ns, joined_ns)
        self.formed_ns = self.formed_ns or record.at_ns
        if self._open is None:
            self._end_restore(record.at_ns)
            self._open = _opened(record, record.at_ns, lost=False)

    def _chosen(self, record: Record, body: RecoveryChosen) -> None:
        cause = self._open.cause if self._open is not None else record
        if self._open is not None:
            self._close(record.at_ns)
        if self._lost_members == 1:
            self.alone.add(cause.ref)
        self._lost_members = 0
        self._note_earlier(cause, body)
        self.resumed.append(Resumed(body.generation, body.step, cause))
        self._cause, self._resumed_ns = cause, record.at_ns
        self._recovering = {}

    def _note_earlier(self, cause: Record, body: RecoveryChosen) -> None:
        """Note up to which step one more checkpoint, halfway, would have kept the work."""
        newest = len(self.saved) == 2 and self.saved[-1] == body.step
        if body.source == "checkpoint" and newest:
            half = body.step + (self.saved[1] - self.saved[0]) // 2
            if half > body.step:
                self.earlier[cause.ref] = half

    def _state(self, record: Record, body: WorkerStateChanged) -> None:
        if body.after == "recovering":
            self._recovering[body.worker] = 0
        elif body.before == "recovering" and body.worker in self._recovering:
            self._recovering[body.worker] = record.at_ns
        if body.finished and self.finished_ns is None:
            self.finished_ns = record.at_ns

    def _close(self, at_ns: int, lasting: bool = False) -> None:
        """End the open interruption; `lasting`: its workers were still waited for."""
        opened, self._open = self._open, None
        assert opened is not None
        registered_ns = at_ns if lasting and opened.lost else opened.registered_ns
        self._add(opened.from_ns, registered_ns, "replacement_wait", opened.cause)
        self._add(registered_ns, at_ns, "starting", opened.cause)

    def _end_restore(self, at_ns: int | None) -> None:
        """Add the restore after the newest recovery, up to a moment."""
        ends = [each if each else (at_ns or 0) for each in self._recovering.values()]
        if self._cause is not None and ends:
            end_ns = max(ends) if at_ns is None else min(max(ends), at_ns)
            self.stages.append(
                Stage(
                    from_ns=self._resumed_ns,
                    to_ns=end_ns,
                    kind="checkpoint_restore",
                    cause=self._cause,
                    stops=False,
                )
            )
            if end_ns <= self._resumed_ns:
                self.stages.pop()
        self._recovering, self._cause = {}, None

    def _add(self, from_ns: int, to_ns: int, kind: TimeClass, cause: Record) -> None:
        if to_ns > from_ns:
            self.stages.append(Stage(from_ns=from_ns, to_ns=to_ns, kind=kind, cause=cause))

    def overlapping(self, from_ns: int, to_ns: int) -> list[Stage]:
        """The stages that overlap a span, without overlap among each other, by time."""
        found: list[Stage] = []
        at = bisect_left(self.stages, from_ns, key=lambda stage: stage.from_ns)
        while at and self.stages[at - 1].to_ns > from_ns:
            at -= 1
        reached_ns = from_ns
        for stage in self.stages[at:]:
            if stage.from_ns >= to_ns:
                break
            begin_ns, end_ns = max(stage.from_ns, reached_ns), min(stage.to_ns, to_ns)
            if begin_ns < end_ns:
                found.append(structs.replace(stage, from_ns=begin_ns, to_ns=end_ns))
                reached_ns = end_ns
        return found

    def was_member(self, worker: str, from_ns: int, at_ns: int) -> bool:
        """Whether a worker got a rank in a span of time."""
        return any(from_ns <= each <= at_ns for each in self.seated.get(worker, ()))

    def undone_by(self, generation: int, step: int) -> Record | None:
        """The fact that led to a generation that trained a step again."""
        at = bisect_right(self.resumed, generation, key=lambda each: each.generation)
        found = (each.cause for each in self.resumed[at:] if each.step <= step)
        return next(found, None)
