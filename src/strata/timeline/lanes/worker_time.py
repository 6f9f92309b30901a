"""A worker's time as activities that follow each other without overlap or gap.

A worker's time starts when it is placed on a host or registers, and ends when it leaves or is lost.
Until it registers again it counts as lost. Every moment belongs to one activity:

1. What the training thread was busy with, by the worker's own events: a barrier, a request that it
   waited for, copying the model, loading it.
2. Inside a step, its recorded parts: data, compute, communication, wait. Their order within the
   step is not recorded: they are placed in this order around the activities of 1.
3. Otherwise the worker's state, by the coordinator's facts.

The work of other threads (reading ahead, writing a checkpoint, serving peers) is not included. An
operation during which a step ended belongs to such a thread.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, structs

from strata.core.events import COORDINATOR
from strata.core.workers.worker_facts import RequestSubmitted, StepFinished, TrainingStarted
from strata.core.workers.worker_operations import BlobDownloadStarted
from strata.store.event_store import FOREVER_NS
from strata.timeline.answers import SpanKind
from strata.timeline.lanes.worker_periods import FACTS, Busy, Life, Lives
from strata.timeline.read.operations import PHASES, Operation, Pairing, step_parts
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.run_timeline import Timeline

OPERATIONS: dict[str, SpanKind] = {
    "DatasetOpen": "data",
    "CheckpointDownload": "recover",
    "ModelLoad": "recover",
    "ModelSerialization": "checkpoint",
    "Evaluation": "evaluate",
}
REQUESTS: dict[str, SpanKind] = {
    "arrive": "barrier",
    "enter": "wait",
    "attach": "wait",
    "agree": "wait",
    "acquire_lease": "wait",
    "return_lease": "wait",
    "end_training": "wait",
    "leave": "wait",
}
"""Requests that block the training thread."""

EVENTS = frozenset({*PHASES, StepFinished.__name__, TrainingStarted.__name__, "RunStarted"})
CLOCK_ERROR_NS = SECOND_NS // 1000


class Activity(Struct, frozen=True, kw_only=True):
    """One activity of a worker; inside a step with its number and part, else -1 and empty.

    `what` is the operation, the type of the request, or the worker that arrived last at a barrier.
    `within` is the reference of the finished step that the activity is a part of.
    """

    from_ns: int
    to_ns: int
    kind: SpanKind
    label: str
    ref: str
    task: str
    ok: bool | None = None
    step: int = -1
    part: str = ""
    what: str = ""
    within: str = ""


def all_activities(timeline: Timeline, task: str = "") -> Iterator[tuple[str, Activity]]:
    """The activities of every worker of a log, or of one task, worker by worker."""
    lives = Lives()
    for record in timeline.records(node=COORDINATOR, kinds=FACTS):
        lives.feed(record)
    leave_out_lost_time(timeline, lives)
    until_ns = timeline.extent().to_ns + 1
    for node, life in sorted(lives.of.items()):
        if not task or any(turn.task == task for turn in life.turns):
            records = recorded_by(timeline, node)
            timed = (record for record in records if record.kind in EVENTS)
            for each in activities(life, timed, until_ns):
                if not task or each.task == task:
                    yield node, each


def leave_out_lost_time(timeline: Timeline, lives: Lives) -> None:
    """Leaves out the time before a salvage of which nothing could be read.

    A salvage declares the workers lost that were alive where the readable facts end. How long they
    were alive is known up to there, or up to their own last events.
    """
    for salvage in state_at(timeline, timeline.position).state.salvages:
        if salvage.base <= timeline.extent().first:
            continue
        facts_end_ns = timeline.time_of(salvage.base - 1)
        salvaged_ns = timeline.time_of(salvage.position)
        for node, life in lives.of.items():
            last = next(timeline.backwards(salvaged_ns, node=node), None)
            known_ns = max(facts_end_ns, last.at_ns if last is not None else facts_end_ns)
            life.leave_out(known_ns, salvaged_ns)


def recorded_by(timeline: Timeline, node: str) -> Iterator[Record]:
    """A worker's own events, one incarnation after the other."""
    for name, incarnation in timeline.reader.streams():
        if name == node:
            yield from timeline.events_of(node, incarnation)


def activities(life: Life, records: Iterable[Record], until_ns: int) -> Iterator[Activity]:
    """The activities of one worker from its first state to `until_ns`, in order.

    `records` are the worker's own events by time; without them the activities are its states. The
    sum of all activities is exactly the worker's time.
    """
    if life.turns and life.turns[0].at_ns < until_ns:
        yield from _Activities(life, until_ns).read(records)


class _Activities:
    """Reads one worker's records, and fills the time up to the end of each step."""

    def __init__(self, life: Life, until_ns: int) -> None:
        self._life = life
        self._until_ns = until_ns
        self._cursor_ns = life.turns[0].at_ns
        self._pairing = Pairing()
        self._busy: list[Busy] = []
        self._barriers = iter(life.barriers)
        self._barrier = next(self._barriers, None)
        self._begun: TrainingStarted | None = None
        self._period: tuple[int, int | None] | None = None

    def read(self, records: Iterable[Record]) -> Iterator[Activity]:
        """The activities up to `until_ns`."""
        for record in records:
            if record.at_ns >= self._until_ns:
                break
            began_ns = self._alive_since(record.at_ns)
            if began_ns is None:
                continue
            if began_ns > self._cursor_ns:
                yield from self._closed(began_ns)
            body = record.event.body
            if isinstance(body, StepFinished):
                yield from self._step(record, body)
            elif isinstance(body, TrainingStarted):
                self._begun = body
            elif (ended := self._pairing.feed(record)) is not None:
                self._note(ended, record.at_ns)
        yield from self._closed(self._until_ns)

    def _alive_since(self, at_ns: int) -> int | None:
        """The start of the alive period around a moment; None if the worker was not alive."""
        known = self._period
        if known is None or not known[0] <= at_ns < (known[1] or FOREVER_NS):
            self._period = known = self._life.period(at_ns)
        return None if known is None else known[0]

    def _closed(self, until_ns: int) -> Iterator[Activity]:
        """The time after the last step of a process; its open operations end with it."""
        for operation in self._pairing.open.values():
            started = operation.start
            period = self._life.period(started.at_ns) if started is not None else None
            if period is not None:
                self._note(operation, min(period[1] or until_ns, until_ns))
        yield from self._filled(self._cursor_ns, until_ns, self._begun)
        self._pairing, self._busy, self._begun = Pairing(), [], None

    def _note(self, operation: Operation, to_ns: int) -> None:
        """Add an operation, if it belongs to the training thread."""
        kind = _foreground(operation)
        start = operation.start
        if kind is None or start is None or start.at_ns < self._cursor_ns - CLOCK_ERROR_NS:
            return
        self._busy.append(
            Busy(
                from_ns=start.at_ns,
                to_ns=to_ns,
                kind=kind,
                label=operation.text,
                ref=start.ref,
                ok=operation.ok,
                what=start.text("type") or operation.name,
            )
        )

    def _step(self, record: Record, body: StepFinished) -> Iterator[Activity]:
        """The activities up to the end of a step."""
        took_ns = round(sum(step_parts(body).values()) * SECOND_NS)
        end_ns = max(record.at_ns, self._cursor_ns)
        begin_ns = max(end_ns - took_ns, self._cursor_ns)
        yield from self._filled(self._cursor_ns, begin_ns)
        task = self._life.turns[self._at(end_ns)].task
        yield from _divided((begin_ns, end_ns), record, task, self._busy_in(begin_ns, end_ns))
        self._cursor_ns, self._busy, self._begun = end_ns, [], None

    def _at(self, at_ns: int) -> int:
        """The index of the state at a moment."""
        return max(bisect_right(self._life.turns, at_ns, key=lambda turn: turn.at_ns) - 1, 0)

    def _busy_in(self, from_ns: int, to_ns: int) -> list[Busy]:
        """The training thread's busy spans without overlap; the one that started last wins."""
        while self._barrier is not None and self._barrier.from_ns < to_ns:
            self._busy.append(self._barrier)
            self._barrier = next(self._barriers, None)
        return _exclusive(self._busy, from_ns, to_ns)

    def _filled(
        self, from_ns: int, to_ns: int, begun: TrainingStarted | None = None
    ) -> Iterator[Activity]:
        """The time outside of steps: busy spans, otherwise the worker's state.

        `begun` is a step that never finished.
        """
        at_ns = from_ns
        for busy in self._busy_in(from_ns, to_ns):
            yield from self._states(at_ns, busy.from_ns, begun)
            at_ns = busy.from_ns
            period = self._life.period(at_ns)
            if period is not None:
                at_ns = min(busy.to_ns, period[1] or busy.to_ns)
                task = self._life.turns[self._at(busy.from_ns)].task
                yield _activity(busy, busy.from_ns, at_ns, task)
        yield from self._states(at_ns, to_ns, begun)
        self._cursor_ns = max(self._cursor_ns, to_ns)

    def _states(
        self, from_ns: int, to_ns: int, begun: TrainingStarted | None
    ) -> Iterator[Activity]:
        """The worker's states between two moments."""
        turns, at = self._life.turns, self._at(from_ns)
        while from_ns < to_ns and at < len(turns):
            turn = turns[at]
            end_ns = min(turns[at + 1].at_ns if at + 1 < len(turns) else to_ns, to_ns)
            if turn.kind is not None and end_ns > from_ns:
                label, step = turn.label, -1
                if turn.kind == "train" and begun is not None:
                    label, step = f"step {begun.step}: not finished", begun.step
                yield Activity(
                    from_ns=from_ns,
                    to_ns=end_ns,
                    kind=turn.kind,
                    label=label,
                    ref=turn.ref,
                    task=turn.task,
                    ok=turn.ok,
                    step=step,
                )
            from_ns, at = max(end_ns, from_ns), at + 1


def _activity(
    busy: Busy, from_ns: int, to_ns: int, task: str, step: int = -1, within: str = ""
) -> Activity:
    return Activity(
        from_ns=from_ns,
        to_ns=to_ns,
        kind=busy.kind,
        label=busy.label,
        ref=busy.ref,
        task=task,
        ok=busy.ok,
        step=step,
        what=busy.what,
        within=within,
    )


def _foreground(operation: Operation) -> SpanKind | None:
    """The kind of an operation of the training thread; None for other threads."""
    first = operation.start
    body = first.event.body if first is not None else None
    if isinstance(body, RequestSubmitted):
        return REQUESTS.get(body.type)
    if isinstance(body, BlobDownloadStarted):
        return "recover" if body.what == "model" else None
    return OPERATIONS.get(operation.name)


def _exclusive(busy: Sequence[Busy], from_ns: int, to_ns: int) -> list[Busy]:
    """Cut spans so that none overlap: at any time the one that started last wins."""
    clipped = sorted(
        (max(each.from_ns, from_ns), min(each.to_ns, to_ns), at) for at, each in enumerate(busy)
    )
    clipped = [each for each in clipped if each[0] < each[1]]
    edges = sorted({edge for begin, end, _ in clipped for edge in (begin, end)})
    found: list[Busy] = []
    for begin, end in pairwise(edges):
        inside = [each for each in clipped if each[0] <= begin and each[1] >= end]
        if not inside:
            continue
        chosen = busy[max(inside)[2]]
        if found and (found[-1].to_ns, found[-1].ref) == (begin, chosen.ref):
            begin = found.pop().from_ns
        found.append(structs.replace(chosen, from_ns=begin, to_ns=end))
    return found


PARTS: dict[str, SpanKind] = {
    "data": "data",
    "compute": "train",
    "communication": "wait",
    "wait": "wait",
}


def _divided(
    span: tuple[int, int], record: Record, task: str, busy: Sequence[Busy]
) -> Iterator[Activity]:
    """The parts of a step, placed around the busy spans."""
    body = record.event.body
    assert isinstance(body, StepFinished)
    at_ns, end_ns = span
    free_ns = end_ns - at_ns - sum(each.to_ns - each.from_ns for each in busy)
    left = [(name, length) for name, length in _lengths(body, free_ns, busy).items() if length]
    for each in [*busy, None]:
        stop_ns = end_ns if each is None else each.from_ns
        while at_ns < stop_ns:
            name, length_ns = left[0]
            to_ns = min(at_ns + length_ns, stop_ns)
            yield Activity(
                from_ns=at_ns,
                to_ns=to_ns,
                kind=PARTS[name],
                label=f"step {body.step}: {name}",
                ref=record.ref,
                task=task,
                ok=True,
                step=body.step,
                part=name,
                within=record.ref,
            )
            left[0] = (name, length_ns - (to_ns - at_ns))
            if not left[0][1]:
                left.pop(0)
            at_ns = to_ns
        if each is not None:
            yield _activity(each, each.from_ns, each.to_ns, task, body.step, record.ref)
            at_ns = each.to_ns


def _lengths(body: StepFinished, free_ns: int, busy: Sequence[Busy]) -> dict[str, int]:
    """The length of each part within the free time of a step; they add up to exactly that time.

    Recorded waits are part of the step's wait, and an evaluation, which is an exchange, is part of
    its communication. Other busy spans were measured as compute, because no region of the step
    covers them.
    """
    waited_ns = sum(each.to_ns - each.from_ns for each in busy if each.kind in ("barrier", "wait"))
    scored_ns = sum(each.to_ns - each.from_ns for each in busy if each.kind == "evaluate")
    spent = {name: round(part_s * SECOND_NS) for name, part_s in step_parts(body).items()}
    spent["wait"] = max(spent["wait"] - waited_ns, 0)
    spent["communication"] = max(spent["communication"] - scored_ns, 0)
    left_ns = free_ns
    for name in ("data", "communication", "wait"):
        spent[name] = min(spent[name], left_ns)
        left_ns -= spent[name]
    spent["compute"] = left_ns
    return {name: spent[name] for name in PARTS}
