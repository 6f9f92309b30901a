"""The lineage of a task's model: the generation that trained each committed step, and the order.

A generation begins at the step that its recovery chose. Steps from there on that an earlier
generation trained are not in the model: they were trained again, or undone by a rollback. So a step
belongs to the newest generation that began at or before it. The owners of lanes in a generation are
those that the assignments give at its end.

A step of the run and a step of a dataset are different numbers: a loop of the script maps one to
the other (`core/datasets/training_loops`). Logs without loops are of a release in which both were
the same.

The order of samples of a task's dataset or mixture is computed from the facts.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct, field

from strata.core.barriers.agreements import LoopLeft
from strata.core.datasets.dataset_rules import (
    AssignmentChanged,
    DatasetAttached,
    DatasetRegistered,
    order_of,
)
from strata.core.datasets.lane_owners import Holdings, apply_moves
from strata.core.datasets.shard_leases import LeaseGranted, LeaseReturned
from strata.core.datasets.training_loops import (
    LoopContinued,
    LoopOpened,
    LoopRange,
    leave_loop,
    loop_ranges,
    loops_up_to,
)
from strata.core.events import COORDINATOR, Event
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen, RolledBack, StepsCommitted
from strata.core.record.log_salvage import FactLost, LogSalvaged
from strata.core.state import DatasetSpec
from strata.core.task_state import Feed, Loop
from strata.core.tasks.task_forks import TaskForked
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.data.reading.mixture import MixedOrder
from strata.data.reading.step_reader import Ordered
from strata.errors import Corrupt
from strata.store import seq_ranges
from strata.store.event_store import EventReader, Window
from strata.timeline.audit.audit_results import Voided
from strata.timeline.read.past_states import fold

MAX_LOST = 10_000_000


class Span(Struct):
    """Steps `first` up to `stop` (exclusive) of one generation, with the owners of lanes."""

    generation: int
    first: int
    stop: int = 0
    holdings: dict[str, Holdings] = field(default_factory=dict)
    ended: bool = False


class Piece(Struct, frozen=True):
    """Steps `first` up to `stop` of the run, in one generation and one loop over a dataset.

    The dataset's step is the step of the run plus `shift`.
    """

    span: Span
    first: int
    stop: int
    shift: int


class Lineage(Struct):
    """The datasets, spans and rollbacks of a task, from the facts.

    `begun` has the committed steps when a dataset was attached. `granted` maps leases to epochs,
    and `consumed` has the workers that trained a shard in an epoch. `completed`: the script reached
    its end. `lost` has ranges of positions that a salvage could not read; `lost_batches` is not 0
    if worker events were lost as well.
    """

    specs: dict[str, DatasetSpec] = field(default_factory=dict)
    feeds: dict[str, Feed] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    voided: list[Voided] = field(default_factory=list)
    granted: dict[tuple[str, int], int] = field(default_factory=dict)
    consumed: dict[tuple[str, int, int], list[str]] = field(default_factory=dict)
    loops: dict[str, Loop] = field(default_factory=dict)
    committed: int = 0
    attempt: int = 1
    completed: bool = False
    lost: list[tuple[int, int]] = field(default_factory=list)
    lost_batches: int = 0

    @property
    def workers(self) -> set[str]:
        """The workers that owned lanes in a generation of the model."""
        held = (owners for span in self.spans for owners in span.holdings.values())
        return {worker for owners in held for worker in owners}

    def owner_of(self, step: int) -> int:
        """The generation that trained a step of the model; 0 for a step that is not in it."""
        at = bisect_right(self.spans, step, key=lambda span: span.first) - 1
        return self.spans[at].generation if at >= 0 and step < self.spans[at].stop else 0

    def ranges_of(self, dataset: str) -> list[LoopRange]:
        """The committed steps that train a dataset, in order, with the dataset's own steps.

        Of several loops over a dataset that begin at the same step, the one opened last counts:
        the script left the others before their first step.
        """
        committed = self.committed
        if not self.loops and self.feeds[dataset].epochs:
            feed, samples = self.feeds[dataset], self.specs[dataset].total_samples
            committed = min(committed, -(-feed.epochs * samples // feed.global_batch))
        found = {each.start: each for each in loop_ranges(self.loops, dataset, committed)}
        return [found[start] for start in sorted(found)]

    def pieces_of(self, dataset: str, within: Iterable[LoopRange] | None = None) -> Iterator[Piece]:
        """The steps of loops over a dataset (all, or some), cut at the ends of generations."""
        for loop_range in self.ranges_of(dataset) if within is None else within:
            for span in self.spans:
                first, stop = max(span.first, loop_range.start), min(span.stop, loop_range.stop)
                if first < stop:
                    yield Piece(span=span, first=first, stop=stop, shift=loop_range.shift)

    def piece_at(self, dataset: str, step: int) -> Piece | None:
        """The piece with a step of the run; None if the step does not train the dataset."""
        pieces = self.pieces_of(dataset)
        return next((piece for piece in pieces if piece.first <= step < piece.stop), None)

    def left_of(self, dataset: str) -> list[tuple[int, int]]:
        """Ranges of a dataset's steps that were not trained because a loop was left early."""
        found, done = list[tuple[int, int]](), 0
        for loop_range in self.ranges_of(dataset) if self.loops else ():
            if loop_range.first > done:
                found.append((done, loop_range.first))
            done = loop_range.stop + loop_range.shift
        end = self._own_end(dataset) if self.completed else 0
        return [*found, (done, end)] if end > done else found

    def _own_end(self, dataset: str) -> int:
        """The dataset's step at which the last loop over it would have ended; 0 without one."""
        last = next((x for x in reversed(self.loops.values()) if x.dataset == dataset), None)
        return last.first + last.steps if last is not None and last.steps is not None else 0


def read_lineage(
    reader: EventReader, task: str, on_damage: Callable[[int, Corrupt], None] | None = None
) -> Lineage:
    """The lineage of a task; datasets registered before the log begins are taken from its state.

    At an unreadable fact the lineage ends, and `on_damage` is called with the position. Without
    `on_damage` the error is raised.
    """
    first = reader.first
    before = fold(reader, first).state.datasets if first else {}
    specs = {name: dataset.spec for name, dataset in before.items()}
    found = Lineage(specs=specs)
    facts = _kept_facts(reader, first, found)
    if on_damage is not None:
        facts = _up_to_damage(facts, first, on_damage)
    return _folded(ancestry(reader, task), facts, found)


def ancestry(reader: EventReader, task: str) -> list[str]:
    """A task and the tasks it was forked from, the first one first."""
    window = Window(node=COORDINATOR, kinds=frozenset({TaskForked.__name__}))
    found = reader.query(window, MAX_LOST, on_damage=lambda _: None)
    forks = (event.body for _, _, event in found)
    parents = {body.task: body.parent for body in forks if isinstance(body, TaskForked)}
    line = [task]
    while line[0] in parents:
        line.insert(0, parents[line[0]])
    return line


def _kept_facts(reader: EventReader, first: int, found: Lineage) -> Iterator[Event]:
    """The facts in the state: without lost ones, and without those that a salvage left out."""
    kinds = frozenset({LogSalvaged.__name__, FactLost.__name__})
    events = [
        event for _, _, event in reader.query(Window(node=COORDINATOR, kinds=kinds), MAX_LOST)
    ]
    left_out: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event.body, LogSalvaged):
            seq_ranges.add(left_out, event.body.base, event.seq)
            found.lost_batches = found.lost_batches or event.body.lost_batches
        elif isinstance(event.body, FactLost):
            seq_ranges.add(left_out, event.seq, event.seq + 1)
            seq_ranges.add(found.lost, event.seq, event.seq + 1)
    for begin, stop in seq_ranges.missing(left_out, first, reader.position):
        yield from reader.read(begin, stop)


def _up_to_damage(
    facts: Iterator[Event], position: int, on_damage: Callable[[int, Corrupt], None]
) -> Iterator[Event]:
    """The facts up to the first unreadable one."""
    try:
        for event in facts:
            yield event
            position = event.seq + 1
    except Corrupt as error:
        on_damage(position, error)


def _folded(line: list[str], facts: Iterable[Event], found: Lineage) -> Lineage:
    """Apply the facts of the first ancestor up to its fork, and so on, then those of the task."""
    present: dict[str, Holdings] = {}
    task, *forks = line
    for event in facts:
        body = event.body
        if isinstance(body, DatasetRegistered):
            found.specs[body.dataset] = body.spec
        elif isinstance(body, TaskForked) and forks and body.task == forks[0]:
            _freeze(found, present)
            _cut(found, body.step)
            task, present = forks.pop(0), {}
        elif getattr(body, "task", None) != task:
            continue
        elif isinstance(body, GenerationChanged):
            _freeze(found, present)
        elif isinstance(body, AssignmentChanged):
            apply_moves(present.setdefault(body.dataset, {}), body.moves)
        else:
            _take_in(found, body)
    _freeze(found, present)
    ends = [*(span.first for span in found.spans[1:]), found.committed]
    for span, end in zip(found.spans, ends, strict=False):
        span.stop = min(end, found.committed)
    return found


def _cut(found: Lineage, step: int) -> None:
    """Leave out what the parent of a fork did after the step of the fork."""
    found.committed = step
    found.completed = False
    found.spans = [span for span in found.spans if span.first < step]
    found.loops = loops_up_to(found.loops, step)


def _take_in(found: Lineage, body: object) -> None:
    if isinstance(body, DatasetAttached):
        found.feeds[body.dataset] = Feed(
            dataset=body.dataset,
            unit=body.unit,
            count=body.count,
            global_batch=body.global_batch,
            epochs=body.epochs,
            batch_size=body.batch_size,
            mode=body.mode,
            window=body.window,
        )
        found.begun[body.dataset] = found.committed
    elif isinstance(body, LoopLeft):
        leave_loop(found.loops, body.loop, body.step)
    elif isinstance(body, LoopOpened):
        found.loops[body.loop] = Loop(
            dataset=body.dataset, start=body.start, first=body.first, steps=body.steps
        )
    elif isinstance(body, LoopContinued):
        found.loops[body.loop] = msgspec.structs.replace(found.loops[body.loop], steps=body.steps)
    elif isinstance(body, RecoveryChosen):
        found.spans = [span for span in found.spans if span.first < body.step]
        found.spans.append(Span(generation=body.generation, first=body.step))
    elif isinstance(body, StepsCommitted):
        found.committed = body.last + 1
    elif isinstance(body, RolledBack):
        found.voided.append(
            Voided(attempt=body.attempt - 1, first=body.to, stop=body.origin, reason=body.reason)
        )
        found.committed, found.attempt = body.to, body.attempt
        found.loops = loops_up_to(found.loops, body.to)
    elif isinstance(body, TaskStateChanged):
        found.completed = body.after == "completed"
    elif isinstance(body, LeaseGranted):
        found.granted[body.dataset, body.lease] = body.epoch
    elif isinstance(body, LeaseReturned):
        epoch = found.granted.pop((body.dataset, body.lease), 0)
        if body.consumed:
            key = (body.dataset, epoch, body.shard)
            found.consumed.setdefault(key, []).append(body.worker)


def _freeze(found: Lineage, present: dict[str, Holdings]) -> None:
    """Store the owners of lanes in the newest span, when its generation or the log ends."""
    if found.spans and not found.spans[-1].ended:
        found.spans[-1].ended = True
        found.spans[-1].holdings = {
            name: {worker: list(lanes) for worker, lanes in held.items()}
            for name, held in present.items()
        }


def parts_of(spec: DatasetSpec) -> list[tuple[str, float]]:
    """The datasets of a mixture with their weights; empty for a plain dataset."""
    recipe = spec.metadata.get("mixture")
    return msgspec.json.decode(recipe, type=list[tuple[str, float]]) if recipe else []


def order_for(lineage: Lineage, name: str) -> Ordered:
    """The order in which a task trains a dataset or a mixture."""
    spec, feed = lineage.specs[name], lineage.feeds[name]
    parts = parts_of(spec)
    if not parts:
        return order_of(spec, feed)
    orders = [order_of(lineage.specs[part], feed) for part, _ in parts]
    return MixedOrder(orders, [weight for _, weight in parts], seed=spec.seed)
