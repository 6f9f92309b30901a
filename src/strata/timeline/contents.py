"""Compares what workers read with what there is to read: finds the one that read wrong bytes.

Workers that were asked to (`run.batches(…, contents=True)`) recorded eight bytes for the content of
each of their batches. `recorded_contents` finds these records in the log, some steps at a time, and
`compare` reads the data of such a page once more. The second may happen on another host than the
first: where the data is.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field

from strata.core.datasets import DatasetSpec
from strata.core.worker_facts import BatchesAssigned, TrainingFinished
from strata.data.contents import content_of
from strata.data.dataset import Dataset
from strata.data.mixing import MixedDataset
from strata.data.steps import Readable
from strata.errors import NotFound
from strata.store.base import EventReader
from strata.timeline.evidence import recorded
from strata.timeline.lineage import Lineage, Piece, read_lineage
from strata.timeline.orders import order_for, parts_of

Opened: TypeAlias = Callable[[str, DatasetSpec], Dataset]

PAGE_SAMPLES = 1 << 17


class RecordedBatch(Struct, frozen=True):
    """The samples of a worker's batch, and eight bytes (in hex) that it recorded for them."""

    worker: str
    generation: int
    step: int
    columns: list[str]
    samples: list[int]
    content: str


class FeedContents(Struct, frozen=True):
    """The batches of a dataset; `parts` are the datasets that it is mixed of, or itself."""

    dataset: str
    parts: dict[str, DatasetSpec]
    batches: list[RecordedBatch]


class ContentPage(Struct, frozen=True):
    """What was recorded of some steps that count; `next_step` begins the next page."""

    feeds: list[FeedContents]
    next_step: int | None


class WrongContent(Struct, frozen=True):
    """A worker recorded other content for a step than there is."""

    worker: str
    generation: int
    step: int


class ContentAudit(Struct):
    """The batches of a dataset whose content was compared, and those that differ."""

    dataset: str
    compared: int = 0
    wrong: list[WrongContent] = field(default_factory=list)


def recorded_contents(
    reader: EventReader, task: str, first: int = 0, samples: int = PAGE_SAMPLES
) -> ContentPage:
    """The contents that were recorded of as many steps as have so many samples, at least one."""
    lineage = read_lineage(reader, task)
    feeds = {name: feed for name, feed in lineage.feeds.items() if feed.unit == "lane"}
    if not feeds:
        raise NotFound(f"the log has no steps of task {task!r}", hint="strata tasks lists them")
    at_once = max(1, samples // sum(feed.global_batch for feed in feeds.values()))
    stop = min(first + at_once, lineage.committed)
    found = [
        FeedContents(
            name, _parts(lineage, name), list(_batches(reader, lineage, name, first, stop))
        )
        for name in feeds
    ]
    return ContentPage(found, stop if stop < lineage.committed else None)


def compare(page: FeedContents, opened: Opened) -> ContentAudit:
    """Reads every batch of a page again."""
    found = ContentAudit(page.dataset)
    dataset = _readable(page, opened)
    for batch in page.batches:
        columns = dataset.checked_columns(batch.columns or None)
        samples = np.array(batch.samples, np.int64)
        there, _ = dataset.gather(samples, columns, lambda row: None)
        found.compared += 1
        if f"{content_of(there):016x}" != batch.content:
            found.wrong.append(WrongContent(batch.worker, batch.generation, batch.step))
    return found


def _batches(
    reader: EventReader, lineage: Lineage, name: str, first: int, stop: int
) -> Iterator[RecordedBatch]:
    order = order_for(lineage, name)
    for worker in sorted(lineage.workers):
        for piece, columns, record in _records(reader, lineage, name, worker):
            if first <= record.step < stop:
                lanes = piece.span.holdings[name].get(worker, [])
                own_step = record.step + piece.shift
                samples = order.samples(order.positions(own_step, own_step + 1, lanes)[0])
                yield RecordedBatch(
                    worker=worker,
                    generation=piece.span.generation,
                    step=record.step,
                    columns=columns,
                    samples=samples.tolist(),
                    content=f"{record.content:016x}",
                )


def _records(
    reader: EventReader, lineage: Lineage, name: str, worker: str
) -> Iterator[tuple[Piece, list[str], TrainingFinished]]:
    """What a worker recorded of the content of applied steps, and of which columns."""
    pieces = list(lineage.pieces_of(name))
    columns: dict[int, list[str]] = {}
    for incarnation, body in recorded(reader, worker):
        if isinstance(body, BatchesAssigned) and body.dataset == name:
            columns[incarnation] = body.columns
        elif isinstance(body, TrainingFinished) and body.dataset == name and body.content:
            at = bisect_right(pieces, body.step, key=lambda piece: piece.first) - 1
            counts = at >= 0 and body.step < pieces[at].stop
            if counts and pieces[at].span.generation == body.generation:
                yield pieces[at], columns.get(incarnation, []), body


def _parts(lineage: Lineage, name: str) -> dict[str, DatasetSpec]:
    spec = lineage.specs[name]
    parts = parts_of(spec)
    return {part: lineage.specs[part] for part, _ in parts} if parts else {name: spec}


def _readable(recorded: FeedContents, opened: Opened) -> Readable:
    datasets = [opened(name, spec) for name, spec in recorded.parts.items()]
    return datasets[0] if list(recorded.parts) == [recorded.dataset] else MixedDataset(datasets)
