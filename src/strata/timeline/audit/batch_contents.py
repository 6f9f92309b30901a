"""Content audit: find workers that read wrong bytes.

With `run.batches(…, contents=True)` workers record an eight-byte checksum of each batch.
`recorded_contents` finds these records in the log, a page of steps at a time, and `compare` reads
the data of a page again. The two may run on different hosts: `compare` runs where the data is.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field

from strata.core.state import DatasetSpec
from strata.core.workers.worker_facts import BatchesAssigned, TrainingFinished
from strata.data.reading.batch_measures import content_of
from strata.data.reading.mixture import MixedDataset
from strata.data.reading.step_reader import Readable
from strata.data.source_dataset import Dataset
from strata.errors import NotFound
from strata.store.event_store import EventReader
from strata.timeline.audit.applied_records import recorded
from strata.timeline.audit.lineage import Lineage, Piece, order_for, parts_of, read_lineage

Opened: TypeAlias = Callable[[str, DatasetSpec], Dataset]

PAGE_SAMPLES = 1 << 17


class RecordedBatch(Struct, frozen=True):
    """The samples of a worker's batch, and the recorded checksum of their content, in hex."""

    worker: str
    generation: int
    step: int
    columns: list[str]
    samples: list[int]
    content: str


class FeedContents(Struct, frozen=True):
    """The batches of a dataset; `parts` are the datasets of a mixture, or the dataset itself."""

    dataset: str
    parts: dict[str, DatasetSpec]
    batches: list[RecordedBatch]


class ContentPage(Struct, frozen=True):
    """The records of some committed steps; `next_step` starts the next page."""

    feeds: list[FeedContents]
    next_step: int | None


class WrongContent(Struct, frozen=True):
    """A worker recorded a checksum that differs from the data."""

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
    """The recorded contents of a page: at least one step, about `samples` samples."""
    lineage = read_lineage(reader, task)
    feeds = {name: feed for name, feed in lineage.feeds.items() if feed.unit == "lane"}
    if not feeds:
        raise NotFound(
            f"the log has no steps of task {task!r}", hint="`strata tasks` lists the tasks"
        )
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
    """Read every batch of a page again and compare its checksum."""
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
    """A worker's content records of committed steps, with the columns they cover."""
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
