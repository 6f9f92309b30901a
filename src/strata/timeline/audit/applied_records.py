"""The workers' records of applied samples: an eight-byte digest per step, by generation.

A batch counts as applied if the worker recorded the end of its step (`TrainingFinished`) in the
incarnation that got the batch. The start (`TrainingStarted`) proves nothing, because the worker may
have died before it applied the step; unless another worker of the generation recorded that it
applied the mean over all samples of the step: then the lost worker's share is in the model.
"""

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.core.events import Fact
from strata.core.workers.worker_facts import SampleSkipped, TrainingFinished, TrainingStarted
from strata.errors import Corrupt
from strata.store.event_store import EventReader, OnDamage, Window
from strata.timeline.audit.lineage import Lineage, Piece, Span

Flags: TypeAlias = NDArray[np.uint8]
Digests: TypeAlias = NDArray[np.uint64]
Steps: TypeAlias = NDArray[np.bool_]

ALL = 1 << 62

NOTHING, HANDED_OUT, APPLIED, APPLIED_TWICE = range(4)
"""The kind of record that a worker has of its batch of a step."""


class Pairing:
    """Completes the records of one incarnation: in older logs the record of a batch's start, not of
    its end, has the samples."""

    def __init__(self) -> None:
        self._started: dict[str, TrainingStarted] = {}

    def completed(self, body: Fact) -> Fact:
        """A record as the current release writes it."""
        if isinstance(body, TrainingStarted) and body.digest:
            self._started[body.batch] = body
        elif isinstance(body, TrainingFinished):
            started = self._started.pop(body.batch, None)
            if started is not None and not body.dataset:
                return msgspec.structs.replace(
                    body,
                    dataset=started.dataset,
                    generation=started.generation,
                    samples=started.samples,
                    digest=started.digest,
                    content=started.content,
                )
        return body


def recorded(
    reader: EventReader, worker: str, on_damage: OnDamage | None = None
) -> Iterator[tuple[int, Fact]]:
    """A worker's events in order, each with its incarnation."""
    for incarnation in [number for node, number in reader.streams() if node == worker]:
        pairing = Pairing()
        for event in reader.stream(worker, incarnation, on_damage=on_damage):
            yield incarnation, pairing.completed(event.body)


class Evidence:
    """The workers' records by dataset, generation and worker, as an array per span.

    `damaged` names the records that cannot be read. `gapless`: no record is missing between others.
    """

    def __init__(self, lineage: Lineage, reader: EventReader) -> None:
        self.first_step: dict[str, int] = {}
        self.skipped: dict[str, set[int]] = {}
        self.damaged: list[str] = []
        self._spans = {span.generation: span for span in lineage.spans}
        self._batches = {name: feed.global_batch for name, feed in lineage.feeds.items()}
        self._found: dict[tuple[str, int, str], tuple[Flags, Digests]] = {}
        self._whole: dict[tuple[str, int], Steps] = {}
        for worker in sorted(lineage.workers):
            faults: list[Corrupt] = []
            for _, body in recorded(reader, worker, faults.append):
                self._note(worker, body)
            if faults:
                self.damaged += _damaged_ranges(reader, worker, faults)
        self.gapless = not (self.damaged or lineage.lost_batches) and not any(
            reader.gaps(node, number)
            for node, number in reader.streams()
            if node in lineage.workers
        )

    def of(self, dataset: str, span: Span, worker: str) -> tuple[Flags, Digests]:
        """For each step of a span: the kind of record and its digest."""
        length = span.stop - span.first
        key = (dataset, span.generation, worker)
        if key not in self._found:
            self._found[key] = np.zeros(length, np.uint8), np.zeros(length, np.uint64)
        return self._found[key]

    def whole(self, dataset: str, span: Span) -> Steps:
        """The steps of a span in which some worker applied the mean over all samples."""
        key = (dataset, span.generation)
        if key not in self._whole:
            self._whole[key] = np.zeros(span.stop - span.first, bool)
        return self._whole[key]

    def holders(self, dataset: str) -> list[tuple[Span, str]]:
        """The spans and workers with records of a dataset."""
        found = [key for key in self._found if key[0] == dataset]
        return [(self._spans[generation], worker) for _, generation, worker in found]

    def never_applied(self, dataset: str, piece: Piece) -> bool:
        """Whether certainly no worker applied a batch of a dataset in the steps of a piece.

        That is: every worker that owned lanes of the dataset recorded that it applied a batch of
        another dataset in each step, and no record is missing in between. A worker that got a batch
        of the dataset (a script may look at the first one) must also have recorded a later step.
        """
        span, members = piece.span, piece.span.holdings.get(dataset, {})
        cut = slice(piece.first - span.first, piece.stop - span.first)
        seen = {worker: self.of(dataset, span, worker)[0][cut] for worker in members}
        if not self.gapless or any((each >= APPLIED).any() for each in seen.values()):
            return False
        for worker, own in seen.items():
            applied = self._applied_others(span, worker)
            handed = np.flatnonzero(own == HANDED_OUT)
            after = cut.start + int(handed[-1]) + 1 if handed.size else 0
            if not applied[cut].all() or not applied[after:].any():
                return False
        return True

    def _applied_others(self, span: Span, worker: str) -> NDArray[np.bool_]:
        """The steps of a span in which a worker applied a batch of any dataset."""
        found = np.zeros(span.stop - span.first, bool)
        for (_, generation, holder), (seen, _) in self._found.items():
            if (generation, holder) == (span.generation, worker):
                found |= seen >= APPLIED
        return found

    def _note(self, worker: str, record: Fact) -> None:
        if isinstance(record, SampleSkipped):
            self.skipped.setdefault(record.dataset, set()).add(record.row)
        elif isinstance(record, TrainingStarted | TrainingFinished) and record.dataset:
            span = self._spans.get(record.generation)
            if span is not None and span.first <= record.step < span.stop:
                self._note_step(worker, span, record)

    def _note_step(
        self, worker: str, span: Span, record: TrainingStarted | TrainingFinished
    ) -> None:
        seen, proofs = self.of(record.dataset, span, worker)
        at = record.step - span.first
        if isinstance(record, TrainingStarted):
            if seen[at] < APPLIED:
                seen[at], proofs[at] = HANDED_OUT, record.digest
        else:
            seen[at] = APPLIED_TWICE if seen[at] >= APPLIED else APPLIED
            proofs[at] = record.digest
            if record.averaged and record.averaged == self._batches.get(record.dataset):
                self.whole(record.dataset, span)[at] = True
        known = self.first_step.get(record.dataset, record.step)
        self.first_step[record.dataset] = min(known, record.step)


def _damaged_ranges(reader: EventReader, worker: str, faults: list[Corrupt]) -> list[str]:
    """Sentences on a worker's unreadable events: their ranges, or else the errors."""
    found = []
    try:
        for batch in reader.headers(Window(node=worker)):
            inside: list[Corrupt] = []
            span = batch.first_seq, batch.stop_seq
            for _ in reader.stream(worker, batch.incarnation, *span, on_damage=inside.append):
                pass
            if inside:
                events = f"events {batch.first_seq} to {batch.stop_seq - 1} of {worker}"
                found.append(f"{events} (incarnation {batch.incarnation}): {inside[0].message}")
    except Corrupt:  # a damaged part of an archive has no headers
        found = []
    return found or [f"events of {worker}: {fault.message}" for fault in faults]
