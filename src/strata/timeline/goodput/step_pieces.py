"""Pieces of a worker's time: what they hold, and those of one finished step.

- The parts of a finished step are productive, or waiting for data, communication or a slower
  worker, if the step is in the model (`audit/lineage`); otherwise all of them are rolled-back work.
- A step that spans an interruption contains an attempt that was undone. What was spent before the
  interruption is rolled-back work; of the time in it, the recorded waiting belongs to its stages,
  and the rest is rolled-back work; what follows is the attempt that finished.
- The first step of a process begins when it joins. Its compute time up to the moment when the first
  batch was handed out is starting (the script builds its model). Later compilation is not recorded
  as such, so it is productive.

The order of the parts within a step is not recorded, only their lengths: the sums are exact.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from strata.timeline.audit.lineage import Lineage
from strata.timeline.goodput.goodput_answers import TimeClass
from strata.timeline.goodput.interruptions import Interruptions, Stage
from strata.timeline.goodput.step_waits import Slowest, StepWaits
from strata.timeline.lanes.worker_time import Activity
from strata.timeline.read.records import Record

Span: TypeAlias = tuple[int, int]
Part: TypeAlias = tuple[int, TimeClass, Record | None, str]
"""A length in nanoseconds with its class, its cause, and the worker that was waited for."""


class Piece(Struct, frozen=True, kw_only=True):
    """A span of one class. `cause` is the fact behind it; `ref` is the worker's own record.

    `slow` is the worker that was waited for, and `step` the step of rolled-back work, else -1.
    `pending`: the class follows from records of a running task that are still to come.
    """

    from_ns: int
    to_ns: int
    kind: TimeClass
    ref: str = ""
    cause: Record | None = None
    slow: str = ""
    step: int = -1
    note: str = ""
    pending: bool = False


class TaskTime(Struct, frozen=True):
    """What the classes of all workers of a task follow from."""

    lineage: Lineage
    interruptions: Interruptions
    waits: StepWaits


class StepNote(Struct, frozen=True, kw_only=True):
    """What was noted at the end of a step; `first_batch_ns` only for a process's first step."""

    generation: int
    first_batch_ns: int | None


class StepPieces:
    """Classifies the parts of one finished step."""

    def __init__(
        self,
        task: TaskTime,
        node: str,
        step: list[Activity],
        of: StepNote,
        origin: Record | None,
    ) -> None:
        self._task = task
        self._node = node
        self._origin = origin
        self._number = step[0].step
        self._ref = step[0].within
        self._generation = of.generation
        self._first_batch_ns = of.first_batch_ns
        self._spent = {"data": 0, "compute": 0, "communication": 0, "wait": 0}
        for each in step:
            if each.part:
                self._spent[each.part] += each.to_ns - each.from_ns

    def pieces(self, free: list[Span], pauses: list[Span]) -> Iterator[Piece]:
        """The pieces of the step's time outside of other activities."""
        paused = [span for each in free for span in within(pauses, *each)]
        for from_ns, to_ns in paused:
            self._take(("compute", "wait", "communication", "data"), to_ns - from_ns)
            yield Piece(from_ns=from_ns, to_ns=to_ns, kind="paused", ref=self._ref)
        free = _without(free, paused)
        if not free:
            return
        stages = self._task.interruptions.overlapping(free[0][0], free[-1][1])
        stops = [stage for stage in stages if stage.stops]
        resumed_ns = stops[-1].to_ns if stops else free[0][0]
        at_ns = free[0][0]
        for stage in stops:
            yield from self._undone(within(free, at_ns, stage.from_ns), stage.cause)
            yield from self._interrupted(within(free, stage.from_ns, stage.to_ns), stage)
            at_ns = stage.to_ns
        yield from self._attempt(
            within(free, resumed_ns, free[-1][1]), [stage for stage in stages if not stage.stops]
        )

    def _take(self, parts: tuple[str, ...], length_ns: int) -> int:
        """Take a length off the parts, one after the other; returns what was taken."""
        taken_ns = 0
        for part in parts:
            some_ns = min(self._spent[part], length_ns - taken_ns)
            self._spent[part] -= some_ns
            taken_ns += some_ns
        return taken_ns

    def _undone(self, spans: list[Span], cause: Record) -> Iterator[Piece]:
        self._take(("compute", "data", "communication", "wait"), length(spans))
        yield from self._filled(spans, [(length(spans), "rolled_back", cause, "")])

    def _interrupted(self, spans: list[Span], stage: Stage) -> Iterator[Piece]:
        """The time in a stage: the recorded waiting belongs to it, the rest was undone."""
        length_ns = length(spans)
        waited_ns = self._take(("wait", "communication"), length_ns)
        self._take(("compute", "data"), length_ns - waited_ns)
        parts: list[Part] = [
            (waited_ns, stage.kind, stage.cause, ""),
            (length_ns - waited_ns, "rolled_back", stage.cause, ""),
        ]
        yield from self._filled(spans, parts)

    def _attempt(self, spans: list[Span], restores: list[Stage]) -> Iterator[Piece]:
        """The attempt that finished the step."""
        length_ns = length(spans)
        kind, cause = self._in_model()
        if kind in ("rolled_back", "unknown"):
            yield from self._filled(spans, [(length_ns, kind, cause, "")])
            return
        waited_ns = min(self._spent["communication"] + self._spent["wait"], length_ns)
        data_ns = min(self._spent["data"], length_ns - waited_ns)
        compute_ns = length_ns - waited_ns - data_ns
        setup_ns = self._setup_ns(spans, data_ns, compute_ns)
        parts: list[Part] = []
        parts.append((setup_ns, "starting", self._origin, ""))
        parts.append((data_ns, "data_wait", None, ""))
        parts.append((compute_ns - setup_ns, kind, None, ""))
        for stage in restores:
            here_ns = length(within(spans, stage.from_ns, stage.to_ns))
            restored_ns = min(here_ns, waited_ns)
            waited_ns -= restored_ns
            parts.append((restored_ns, stage.kind, stage.cause, ""))
        slowest = self._slowest()
        if slowest is not None and slowest.worker != self._node:
            behind_ns = max(waited_ns - slowest.wait_ns, 0)
            waited_ns -= behind_ns
            parts.append((behind_ns, "straggler_wait", None, slowest.worker))
        parts.append((waited_ns, "communication_wait", None, ""))
        yield from self._filled(spans, parts)

    def _slowest(self) -> Slowest | None:
        members = self._task.interruptions.sizes.get(self._generation, 0)
        return self._task.waits.slowest(self._generation, self._number, members)

    def _setup_ns(self, spans: list[Span], data_ns: int, compute_ns: int) -> int:
        """The compute time of a process's first step before it got its first batch."""
        if self._first_batch_ns is None or not spans:
            return 0
        before_ns = length(within(spans, spans[0][0], self._first_batch_ns))
        return min(max(before_ns - data_ns, 0), compute_ns)

    def _in_model(self) -> tuple[TimeClass, Record | None]:
        """Whether the step is in the model, will be, or was undone."""
        lineage = self._task.lineage
        if not lineage.spans or lineage.owner_of(self._number) == self._generation:
            return "productive", None
        cause = self._task.interruptions.undone_by(self._generation, self._number)
        if cause is None and not self._task.interruptions.ended:
            return "unknown", None
        return "rolled_back", cause

    def _filled(self, spans: list[Span], parts: list[Part]) -> Iterator[Piece]:
        """Place parts one after the other in spans; together they have the same length."""
        left = [part for part in parts if part[0] > 0]
        for from_ns, to_ns in spans:
            while from_ns < to_ns:
                length_ns, kind, cause, slow = left[0]
                end_ns = min(from_ns + length_ns, to_ns)
                yield Piece(
                    from_ns=from_ns,
                    to_ns=end_ns,
                    kind=kind,
                    ref=self._ref,
                    cause=cause,
                    slow=slow,
                    step=self._number if kind == "rolled_back" else -1,
                    pending=kind == "unknown",
                )
                left[0] = (length_ns - (end_ns - from_ns), kind, cause, slow)
                if not left[0][0]:
                    left.pop(0)
                from_ns = end_ns
        assert not left, "the parts of a step are as long as its time"


def length(spans: list[Span]) -> int:
    return sum(to_ns - from_ns for from_ns, to_ns in spans)


def joined(spans: list[Span]) -> list[Span]:
    """Spans in order, with adjacent ones joined."""
    found: list[Span] = []
    for from_ns, to_ns in spans:
        if found and found[-1][1] == from_ns:
            from_ns = found.pop()[0]
        found.append((from_ns, to_ns))
    return found


def within(spans: list[Span], from_ns: int, to_ns: int) -> list[Span]:
    """The parts of spans in a window."""
    return [
        (max(begin, from_ns), min(end, to_ns))
        for begin, end in spans
        if max(begin, from_ns) < min(end, to_ns)
    ]


def during(spans: list[Span], from_ns: int, to_ns: int) -> list[Span]:
    """The parts in a window of many spans, which do not overlap and are in order."""
    at = max(bisect_right(spans, from_ns, key=lambda span: span[0]) - 1, 0)
    stop = bisect_right(spans, to_ns, key=lambda span: span[0])
    return within(spans[at:stop], from_ns, to_ns)


def _without(spans: list[Span], left_out: list[Span]) -> list[Span]:
    """Spans without the parts in others, which lie inside them and follow each other."""
    found: list[Span] = []
    for from_ns, to_ns in spans:
        for begin, end in left_out:
            if from_ns <= begin < to_ns:
                found.append((from_ns, begin))
                from_ns = end
        found.append((from_ns, to_ns))
    return [each for each in found if each[0] < each[1]]
