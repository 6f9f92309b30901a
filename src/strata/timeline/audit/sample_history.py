"""History of a batch, a sample or a step: which worker should have trained it, and which did.

The workers that should have trained a batch follow from the coordinator's facts alone: they are the
owners of lanes in the generation that trains the step. So they are known even if a worker died
before it recorded anything. A committed step belongs to the generation of the model (`lineage`), a
later step to the newest generation.

The step that trained a sample follows from the order, the worker from the lanes of the step's
generation. Finding a sample evaluates the order of every committed step, at about 20 million
samples per second.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.core.datasets.training_loops import LoopRange, loop_ranges
from strata.core.workers.worker_facts import TrainingFinished, TrainingStarted
from strata.errors import InvalidArgument, NotFound
from strata.store.event_store import EventReader, Window
from strata.timeline.audit.applied_records import ALL
from strata.timeline.audit.lineage import Lineage, Piece, Span, order_for, read_lineage

Progress: TypeAlias = Literal["applied", "handed out", "not recorded"]
KINDS = frozenset({TrainingStarted.__name__, TrainingFinished.__name__})


class ExpectedTrainer(Struct, frozen=True):
    """A worker that should train a share of a batch, and what it recorded."""

    worker: str
    generation: int
    samples: int
    progress: Progress


class BatchTrainers(Struct, frozen=True):
    """The expected workers of a batch; `counts` if its step is committed."""

    batch: str
    counts: bool
    expected: list[ExpectedTrainer]


def expected_trainers(reader: EventReader, task: str, batch: str) -> BatchTrainers:
    """The expected workers of a batch, given as `DATASET/STEP`."""
    dataset, _, number = batch.rpartition("/")
    if not dataset or not number.isdecimal():
        raise InvalidArgument(f"{batch[:80]!r} is not a batch", hint="use DATASET/STEP")
    lineage, step = read_lineage(reader, task), int(number)
    feed = lineage.feeds.get(dataset)
    if feed is None or feed.unit != "lane":
        raise NotFound(
            f"task {task!r} does not train {dataset[:80]!r} step by step",
            hint=f"its datasets are {', '.join(lineage.feeds) or 'none'}",
        )
    loop_range, span = _range_at(lineage, dataset, step), _span_at(lineage, step)
    if loop_range is None or span is None:
        raise NotFound(
            f"step {step} of task {task!r} does not train {dataset[:80]!r}",
            hint="`strata story batch:DATASET/STEP` shows the events of a batch",
        )
    order, at = order_for(lineage, dataset), step + loop_range.shift
    expected = [
        ExpectedTrainer(
            worker=worker,
            generation=span.generation,
            samples=order.positions(at, at + 1, lanes).size,
            progress=_progress(reader, worker, span.generation, batch),
        )
        for worker, lanes in sorted(span.holdings.get(dataset, {}).items())
        if lanes
    ]
    return BatchTrainers(batch=batch, counts=step < lineage.committed, expected=expected)


def _range_at(lineage: Lineage, dataset: str, step: int) -> LoopRange | None:
    """The steps of the loop that a step belongs to, the one opened last."""
    found = [each for each in loop_ranges(lineage.loops, dataset, step + 1) if each.stop > step]
    return found[-1] if found and found[-1].start <= step else None


def _span_at(lineage: Lineage, step: int) -> Span | None:
    begun = [span for span in lineage.spans if span.first <= step]
    return begun[-1] if begun else None


def _progress(reader: EventReader, worker: str, generation: int, batch: str) -> Progress:
    found: Progress = "not recorded"
    for _, _, event in reader.query(Window(node=worker, kinds=KINDS), limit=ALL):
        body = event.body
        if not isinstance(body, TrainingStarted | TrainingFinished):
            continue
        if (body.batch, body.generation) == (batch, generation):
            found = "applied" if isinstance(body, TrainingFinished) else "handed out"
    return found


MAX_TRAININGS = 1_000
_AT_ONCE_SAMPLES = 1 << 18


class Trained(Struct, frozen=True):
    """A step in which a worker applied a sample; `void` are rolled-back attempts of that step."""

    step: int
    epoch: int
    lane: int
    worker: str
    generation: int
    void: list[int] = field(default_factory=list)


class Share(Struct, frozen=True):
    """The samples that one worker trained in a step."""

    worker: str
    lanes: list[int]
    samples: list[int]


class StepStory(Struct, frozen=True):
    """The samples of a step by worker."""

    step: int
    epoch: int
    generation: int
    shares: list[Share]


def trainings_of(reader: EventReader, task: str, sample: int, dataset: str = "") -> list[Trained]:
    """The committed steps that applied a sample, the newest `MAX_TRAININGS` of them."""
    lineage, name = _asked(reader, task, dataset)
    spec, feed = lineage.specs[name], lineage.feeds[name]
    if not 0 <= sample < spec.total_samples:
        raise NotFound(
            f"dataset {name!r} has no sample {sample}",
            hint=f"samples are 0 to {spec.total_samples - 1}",
        )
    order, found = order_for(lineage, name), list[Trained]()
    at_once = max(1, _AT_ONCE_SAMPLES // feed.global_batch)
    for piece in lineage.pieces_of(name):
        for step in range(piece.first, piece.stop, at_once):
            stop = min(step + at_once, piece.stop)
            positions = order.positions(step + piece.shift, stop + piece.shift).ravel()
            for place in positions[order.samples(positions) == sample].tolist():
                found.append(_trained(lineage, piece, name, place))
    return found[-MAX_TRAININGS:]


def _trained(lineage: Lineage, piece: Piece, name: str, place: int) -> Trained:
    """The step and the worker of a position in a dataset's order."""
    feed, samples = lineage.feeds[name], lineage.specs[name].total_samples
    own_step, lane = place // feed.global_batch, place % feed.count
    step = own_step - piece.shift
    return Trained(
        step=step,
        epoch=place // samples,
        lane=lane,
        worker=_owner(piece.span, name, lane),
        generation=piece.span.generation,
        void=[each.attempt for each in lineage.voided if each.first <= step < each.stop],
    )


def step_story(reader: EventReader, task: str, step: int, dataset: str = "") -> StepStory:
    """The samples of a committed step by worker."""
    lineage, name = _asked(reader, task, dataset)
    if step >= lineage.committed:
        raise NotFound(
            f"step {step} of task {task!r} is not committed",
            hint=f"steps 0 to {lineage.committed - 1} are",
        )
    piece = lineage.piece_at(name, step)
    if piece is None:
        raise NotFound(
            f"step {step} of task {task!r} does not train dataset {name!r}",
            hint="give the dataset of the loop that trained this step",
        )
    order, own_step = order_for(lineage, name), step + piece.shift
    shares = [
        Share(
            worker, lanes, order.samples(order.positions(own_step, own_step + 1, lanes)[0]).tolist()
        )
        for worker, lanes in sorted(piece.span.holdings.get(name, {}).items())
        if lanes
    ]
    return StepStory(
        step=step, epoch=order.epoch_of(own_step), generation=piece.span.generation, shares=shares
    )


def _asked(reader: EventReader, task: str, dataset: str) -> tuple[Lineage, str]:
    """The task's lineage and the dataset, by default the only one."""
    lineage = read_lineage(reader, task)
    known = [name for name, feed in lineage.feeds.items() if feed.unit == "lane"]
    if dataset in known or (not dataset and len(known) == 1):
        return lineage, dataset or known[0]
    raise NotFound(
        f"task {task!r} has {'steps of several datasets' if known and not dataset else 'no steps'}"
        + (f" of dataset {dataset!r}" if dataset else ""),
        hint=f"choose one of {', '.join(known)}" if known else "the task leases shards",
    )


def _owner(span: Span, name: str, lane: int) -> str:
    held = span.holdings.get(name, {})
    return next((worker for worker, lanes in held.items() if lane in lanes), "")
