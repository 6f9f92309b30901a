"""The lineage of a task's model: in which generation each step that counts was trained.

A generation begins at the step that its recovery chose, so everything that an earlier one trained
from that step on is not in the model: it was redone, or voided by a rollback. Of all generations
that began at or before a step, the newest is the one whose training of it counts.

Which lanes were whose in a generation is what the assignments say up to its end.

A step of the run and a step of a dataset are two numbers: a loop of the script says which step of
the dataset a step of the run trains (`core.loops`). A log without loops is of a release in which
the two were the same.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field

from strata.core.agreements import LoopLeft
from strata.core.datasets import (
    AssignmentChanged,
    DatasetAttached,
    DatasetRegistered,
    DatasetSpec,
    Feed,
)
from strata.core.events import COORDINATOR, Event
from strata.core.generations import GenerationChanged
from strata.core.leases import LeaseGranted, LeaseReturned
from strata.core.loops import Loop, LoopOpened, Stretch, leave_loop, loops_up_to, stretches
from strata.core.recovery import RecoveryChosen, RolledBack, StepsCommitted
from strata.core.salvage import FactLost, LogSalvaged
from strata.core.sharding import Holdings, apply_moves
from strata.core.tasks import TaskStateChanged
from strata.errors import Corrupt
from strata.store import ranges
from strata.store.base import EventReader, Window
from strata.timeline.states import fold

MAX_LOST = 10_000_000


class Span(Struct):
    """Steps `first` up to `stop`, exclusive, as one generation trained them; lanes by dataset."""

    generation: int
    first: int
    stop: int = 0
    holdings: dict[str, Holdings] = field(default_factory=dict)
    ended: bool = False


class Piece(Struct, frozen=True):
    """Steps `first` up to `stop` of the run, of one generation and of one loop over a dataset.

    `shift` is what to add to a step of the run to get the dataset's step.
    """

    span: Span
    first: int
    stop: int
    shift: int


class Voided(Struct, frozen=True):
    """Steps that counted and, after a rollback, no longer do."""

    attempt: int
    first: int
    stop: int
    reason: str


class Lineage(Struct):
    """What the facts say about a task: its datasets, its spans, and what was undone.

    `begun` is how many steps had counted when a dataset was attached; `granted` maps a dataset's
    leases to their epochs, and `consumed` names who trained a dataset's shard in an epoch. A task
    is `completed` when its script came to its end. `lost` are ranges of positions whose facts a
    salvage could not read; `lost_batches` is not 0 where events of workers were lost as well.
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
        """Everyone who held lanes in a generation that counts."""
        held = (owners for span in self.spans for owners in span.holdings.values())
        return {worker for owners in held for worker in owners}

    def owner_of(self, step: int) -> int:
        """The generation whose training of a step counts; 0 for a step that does not."""
        at = bisect_right(self.spans, step, key=lambda span: span.first) - 1
        return self.spans[at].generation if at >= 0 and step < self.spans[at].stop else 0

    def stretches_of(self, dataset: str) -> list[Stretch]:
        """The committed steps that train a dataset, in order, with the dataset's own steps.

        Of several loops over a dataset that begin at the same step, the one opened last trains it:
        the script left the others before their first step.
        """
        committed = self.committed
        if not self.loops and self.feeds[dataset].epochs:
            feed, samples = self.feeds[dataset], self.specs[dataset].total_samples
            committed = min(committed, -(-feed.epochs * samples // feed.global_batch))
        found = {each.start: each for each in stretches(self.loops, dataset, committed)}
        return [found[start] for start in sorted(found)]

    def pieces_of(self, dataset: str, within: Iterable[Stretch] | None = None) -> Iterator[Piece]:
        """The stretches of a dataset, or some of them, cut where a generation ends."""
        for stretch in self.stretches_of(dataset) if within is None else within:
            for span in self.spans:
                first, stop = max(span.first, stretch.start), min(span.stop, stretch.stop)
                if first < stop:
                    yield Piece(span=span, first=first, stop=stop, shift=stretch.shift)

    def piece_at(self, dataset: str, step: int) -> Piece | None:
        """The piece that a step of the run belongs to; None if it does not train the dataset."""
        pieces = self.pieces_of(dataset)
        return next((piece for piece in pieces if piece.first <= step < piece.stop), None)

    def left_of(self, dataset: str) -> list[tuple[int, int]]:
        """Steps of a dataset, first and stop, that no loop trained: it was left before its end."""
        found, done = list[tuple[int, int]](), 0
        for stretch in self.stretches_of(dataset) if self.loops else ():
            if stretch.first > done:
                found.append((done, stretch.first))
            done = stretch.stop + stretch.shift
        end = self._own_end(dataset) if self.completed else 0
        return [*found, (done, end)] if end > done else found

    def _own_end(self, dataset: str) -> int:
        """The dataset's step with which the last loop over it would have ended; 0 for none."""
        last = next((x for x in reversed(self.loops.values()) if x.dataset == dataset), None)
        return last.first + last.steps if last is not None and last.steps is not None else 0


def read_lineage(
    reader: EventReader, task: str, on_damage: Callable[[int, Corrupt], None] | None = None
) -> Lineage:
    """The lineage of a task; a log that begins later knows the datasets of before by its state.

    Where a fact cannot be read, what follows it cannot be understood: the lineage ends there, and
    `on_damage` is told the position. Without it the error is raised.
    """
    first = reader.first
    before = fold(reader, first).state.datasets if first else {}
    specs = {name: dataset.spec for name, dataset in before.items()}
    found = Lineage(specs=specs)
    facts = _kept_facts(reader, first, found)
    if on_damage is not None:
        facts = _up_to_damage(facts, first, on_damage)
    return _folded(task, facts, found)


def _kept_facts(reader: EventReader, first: int, found: Lineage) -> Iterator[Event]:
    """The facts that the state includes: without those that a salvage left out, and lost ones."""
    kinds = frozenset({LogSalvaged.__name__, FactLost.__name__})
    told = [event for _, _, event in reader.query(Window(node=COORDINATOR, kinds=kinds), MAX_LOST)]
    left_out: list[tuple[int, int]] = []
    for event in told:
        if isinstance(event.body, LogSalvaged):
            ranges.add(left_out, event.body.base, event.seq)
            found.lost_batches = found.lost_batches or event.body.lost_batches
        elif isinstance(event.body, FactLost):
            ranges.add(left_out, event.seq, event.seq + 1)
            ranges.add(found.lost, event.seq, event.seq + 1)
    for begin, stop in ranges.missing(left_out, first, reader.position):
        yield from reader.read(begin, stop)


def _up_to_damage(
    facts: Iterator[Event], position: int, on_damage: Callable[[int, Corrupt], None]
) -> Iterator[Event]:
    """The facts up to the first that cannot be read."""
    try:
        for event in facts:
            yield event
            position = event.seq + 1
    except Corrupt as error:
        on_damage(position, error)


def _folded(task: str, facts: Iterable[Event], found: Lineage) -> Lineage:
    """Folds facts into the lineage of one task."""
    present: dict[str, Holdings] = {}
    for event in facts:
        body = event.body
        if isinstance(body, DatasetRegistered):
            found.specs[body.dataset] = body.spec
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


def _take_in(found: Lineage, body: object) -> None:
    if isinstance(body, DatasetAttached):
        found.feeds[body.dataset] = Feed(
            body.dataset,
            body.unit,
            body.count,
            body.global_batch,
            body.epochs,
            body.batch_size,
            body.mode,
            body.window,
        )
        found.begun[body.dataset] = found.committed
    elif isinstance(body, LoopLeft):
        leave_loop(found.loops, body.loop, body.step)
    elif isinstance(body, LoopOpened):
        found.loops[body.loop] = Loop(
            dataset=body.dataset, start=body.start, first=body.first, steps=body.steps
        )
    elif isinstance(body, RecoveryChosen):
        found.spans = [span for span in found.spans if span.first < body.step]
        found.spans.append(Span(body.generation, body.step))
    elif isinstance(body, StepsCommitted):
        found.committed = body.last + 1
    elif isinstance(body, RolledBack):
        found.voided.append(Voided(body.attempt - 1, body.to, body.origin, body.reason))
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
    """The newest generation ends, or the log does: what it held stays its own."""
    if found.spans and not found.spans[-1].ended:
        found.spans[-1].ended = True
        found.spans[-1].holdings = {
            name: {worker: list(lanes) for worker, lanes in held.items()}
            for name, held in present.items()
        }
