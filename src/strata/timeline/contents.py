"""Compares what workers read with what there is to read: finds the one that read wrong bytes.

Workers that were asked to (`run.batches(…, contents=True)`) recorded eight bytes for the content of
each of their batches. The data is read once more here, for every step that counts.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct, field

from strata.core.datasets import DatasetSpec
from strata.core.worker_facts import BatchesAssigned, TrainingStarted
from strata.data.contents import content_of
from strata.data.dataset import Dataset
from strata.data.mixing import MixedDataset
from strata.data.steps import Readable
from strata.store.base import EventReader
from strata.timeline.lineage import Lineage, Span, read_lineage
from strata.timeline.orders import order_for, parts_of

Opened: TypeAlias = Callable[[str, DatasetSpec], Dataset]


class WrongContent(Struct, frozen=True):
    """A worker recorded other content for a step than there is."""

    worker: str
    generation: int
    step: int


class ContentAudit(Struct):
    """The steps of a dataset whose content was compared, and those that differ."""

    dataset: str
    compared: int = 0
    wrong: list[WrongContent] = field(default_factory=list)


def compare_contents(reader: EventReader, task: str, opened: Opened) -> list[ContentAudit]:
    """Reads every batch again whose content was recorded and whose step counts."""
    lineage = read_lineage(reader, task)
    names = [name for name, feed in lineage.feeds.items() if feed.unit == "lane"]
    return [_compared(reader, lineage, name, _readable(lineage, name, opened)) for name in names]


def _compared(reader: EventReader, lineage: Lineage, name: str, dataset: Readable) -> ContentAudit:
    found, order = ContentAudit(name), order_for(lineage, name)
    for worker in sorted(lineage.workers):
        for span, columns, record in _records(reader, lineage, name, worker):
            lanes = span.holdings[name][worker]
            samples = order.samples(order.positions(record.step, record.step + 1, lanes)[0])
            there, _ = dataset.gather(
                samples, dataset.checked_columns(columns or None), lambda row: None
            )
            found.compared += 1
            if content_of(there) != record.content:
                found.wrong.append(WrongContent(worker, span.generation, record.step))
    return found


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


def _readable(lineage: Lineage, name: str, opened: Opened) -> Readable:
    spec = lineage.specs[name]
    parts = parts_of(spec)
    if not parts:
        return opened(name, spec)
    return MixedDataset([opened(part, lineage.specs[part]) for part, _ in parts])
