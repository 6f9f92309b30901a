"""Compares what workers read with what there is to read: finds the one that read wrong bytes.

Workers that were asked to (`run.batches(…, contents=True)`) recorded eight bytes for the content of
each of their batches. `recorded_contents` finds these records in the log, some steps at a time, and
`compare` reads the data of such a page once more. The second may happen on another host than the
first: where the data is.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field

from strata.core.datasets import DatasetSpec
from strata.core.worker_facts import BatchesAssigned, TrainingStarted
from strata.data.contents import content_of
from strata.data.dataset import Dataset
from strata.data.mixing import MixedDataset
from strata.data.steps import Readable
from strata.errors import NotFound
from strata.store.base import EventReader
from strata.timeline.lineage import Lineage, Span, read_lineage
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


def compare(recorded: FeedContents, opened: Opened) -> ContentAudit:
    """Reads every batch of a page again."""
    found = ContentAudit(recorded.dataset)
    dataset = _readable(recorded, opened)
    for batch in recorded.batches:
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
        for span, columns, record in _records(reader, lineage, name, worker):
            if first <= record.step < stop:
                lanes = span.holdings[name][worker]
                samples = order.samples(order.positions(record.step, record.step + 1, lanes)[0])
                yield RecordedBatch(
                    worker,
                    span.generation,
                    record.step,
                    columns,
                    samples.tolist(),
                    f"{record.content:016x}",
                )


def _records(
    reader: EventReader, lineage: Lineage, name: str, worker: str
) -> Iterator[tuple[Span, list[str], TrainingStarted]]:
    """What a worker recorded of the content of steps that count, and of which columns."""
    spans = {span.generation: span for span in lineage.spans}
    for incarnation in [i for node, i in reader.streams() if node == worker]:
        columns: list[str] = []
        for event in reader.stream(worker, incarnation):
            body = event.body
            if isinstance(body, BatchesAssigned) and body.dataset == name:
                columns = body.columns
            elif isinstance(body, TrainingStarted) and body.dataset == name and body.content:
                span = spans.get(body.generation)
                if span is not None and span.first <= body.step < span.stop:
                    yield span, columns, body


def _parts(lineage: Lineage, name: str) -> dict[str, DatasetSpec]:
    spec = lineage.specs[name]
    parts = parts_of(spec)
    return {part: lineage.specs[part] for part, _ in parts} if parts else {name: spec}


def _readable(recorded: FeedContents, opened: Opened) -> Readable:
    datasets = [opened(name, spec) for name, spec in recorded.parts.items()]
    return datasets[0] if list(recorded.parts) == [recorded.dataset] else MixedDataset(datasets)
