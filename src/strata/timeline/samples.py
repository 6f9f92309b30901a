"""The story of a sample, and of a step: what the audit counts, looked up.

Which step trained a sample follows from the order, and who trained it from the lanes of the step's
generation. Finding a sample means evaluating the order of every step that counts, at some 20
million samples a second.
"""

from msgspec import Struct, field

from strata.errors import NotFound
from strata.store.base import EventReader
from strata.timeline.lineage import Lineage, Piece, Span, read_lineage
from strata.timeline.orders import order_for

MAX_TRAININGS = 1_000
_AT_ONCE_SAMPLES = 1 << 18


class Trained(Struct, frozen=True):
    """A sample was applied in a step, by a worker; `void` are attempts in which that was undone."""

    step: int
    epoch: int
    lane: int
    worker: str
    generation: int
    void: list[int] = field(default_factory=list)


class Share(Struct, frozen=True):
    """What one worker trained of a step."""

    worker: str
    lanes: list[int]
    samples: list[int]


class StepStory(Struct, frozen=True):
    """Who trained which samples in a step."""

    step: int
    epoch: int
    generation: int
    shares: list[Share]


def trainings_of(reader: EventReader, task: str, sample: int, dataset: str = "") -> list[Trained]:
    """The steps that count and applied a sample, the newest `MAX_TRAININGS` of them."""
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
    """The training of the sample at a position of a dataset."""
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
    """What everyone trained in a step that counts."""
    lineage, name = _asked(reader, task, dataset)
    if step >= lineage.committed:
        raise NotFound(
            f"step {step} of task {task!r} does not count",
            hint=f"steps 0 to {lineage.committed - 1} do",
        )
    piece = lineage.piece_at(name, step)
    if piece is None:
        raise NotFound(
            f"step {step} of task {task!r} does not train dataset {name!r}",
            hint="name the dataset of the loop that the step belongs to",
        )
    order, own_step = order_for(lineage, name), step + piece.shift
    shares = [
        Share(
            worker, lanes, order.samples(order.positions(own_step, own_step + 1, lanes)[0]).tolist()
        )
        for worker, lanes in sorted(piece.span.holdings.get(name, {}).items())
        if lanes
    ]
    return StepStory(step, order.epoch_of(own_step), piece.span.generation, shares)


def _asked(reader: EventReader, task: str, dataset: str) -> tuple[Lineage, str]:
    """The task's lineage, and the dataset that is meant: the only one, if none is named."""
    lineage = read_lineage(reader, task)
    known = [name for name, feed in lineage.feeds.items() if feed.unit == "lane"]
    if dataset in known or (not dataset and len(known) == 1):
        return lineage, dataset or known[0]
    raise NotFound(
        f"task {task!r} has {'steps of several datasets' if known and not dataset else 'no steps'}"
        + (f" of dataset {dataset!r}" if dataset else ""),
        hint=f"name one of {', '.join(known)}" if known else "it trained shards, by lease",
    )


def _owner(span: Span, name: str, lane: int) -> str:
    held = span.holdings.get(name, {})
    return next((worker for worker, lanes in held.items() if lane in lanes), "")
