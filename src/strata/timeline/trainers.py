"""Who was to train a batch, and whether they did: also of a batch that nobody trained.

What is expected follows from the coordinator's facts alone: which lanes were whose in the
generation that trains the step. So it is known of a worker that died before it recorded anything.
For a step that counts, that is the generation whose training of it counts; for one that does not
(yet), the newest generation, which is to train it.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from strata.core.loops import Stretch, stretches
from strata.core.worker_facts import TrainingFinished, TrainingStarted
from strata.errors import InvalidArgument, NotFound
from strata.store.base import EventReader, Window
from strata.timeline.evidence import ALL
from strata.timeline.lineage import Lineage, Span, read_lineage
from strata.timeline.orders import order_for

Progress: TypeAlias = Literal["applied", "handed out", "not recorded"]
KINDS = frozenset({TrainingStarted.__name__, TrainingFinished.__name__})


class ExpectedTrainer(Struct, frozen=True):
    """A worker that was to train a share of a batch, and what it recorded of it."""

    worker: str
    generation: int
    samples: int
    progress: Progress


class BatchTrainers(Struct, frozen=True):
    """Everyone who was to train a batch. It `counts` when its step is committed."""

    batch: str
    counts: bool
    expected: list[ExpectedTrainer]


def expected_trainers(reader: EventReader, task: str, batch: str) -> BatchTrainers:
    """Who was to train a batch of a dataset that is divided by steps: `DATASET/STEP`."""
    dataset, _, number = batch.rpartition("/")
    if not dataset or not number.isdecimal():
        raise InvalidArgument(f"{batch[:80]!r} is not a batch", hint="name it as DATASET/STEP")
    lineage, step = read_lineage(reader, task), int(number)
    feed = lineage.feeds.get(dataset)
    if feed is None or feed.unit != "lane":
        raise NotFound(
            f"task {task!r} does not train {dataset[:80]!r} step by step",
            hint=f"its datasets are {', '.join(lineage.feeds) or 'none'}",
        )
    stretch, span = _stretch_at(lineage, dataset, step), _span_at(lineage, step)
    if stretch is None or span is None:
        raise NotFound(
            f"step {step} of task {task!r} does not train {dataset[:80]!r}",
            hint="strata story batch:DATASET/STEP tells what is recorded of a batch",
        )
    order, at = order_for(lineage, dataset), step + stretch.shift
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


def _stretch_at(lineage: Lineage, dataset: str, step: int) -> Stretch | None:
    """The loop's steps that the step belongs to; the one that was opened last."""
    found = [each for each in stretches(lineage.loops, dataset, step + 1) if each.stop > step]
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
