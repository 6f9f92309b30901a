"""What workers recorded about the samples that they applied: eight bytes a step, by generation.

A batch counts as applied when the worker recorded the end of its step (`TrainingFinished`), in the
incarnation that was handed the batch. That a batch was handed out (`TrainingStarted`) proves
nothing: the worker may have died before it applied the step. Unless another worker of the
generation recorded that the mean which it applied was that of all samples of the step: then the
lost worker's share is in the model.
"""

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.core.events import Fact
from strata.core.worker_facts import SampleSkipped, TrainingFinished, TrainingStarted
from strata.errors import Corrupt
from strata.store.base import EventReader, OnDamage, Window
from strata.timeline.lineage import Lineage, Piece, Span

Flags: TypeAlias = NDArray[np.uint8]
Digests: TypeAlias = NDArray[np.uint64]
Steps: TypeAlias = NDArray[np.bool_]

ALL = 1 << 62

NOTHING, HANDED_OUT, APPLIED, APPLIED_TWICE = range(4)
"""What a worker recorded of its batch of a step."""


class Pairing:
    """Completes the records of one incarnation: older logs have the samples of a batch in the
    record of its start, not of its end."""

    def __init__(self) -> None:
        self._started: dict[str, TrainingStarted] = {}

    def completed(self, body: Fact) -> Fact:
        """A record as the present release writes it."""
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
    """What a worker recorded, with its incarnation, in the order in which it did."""
    for incarnation in [number for node, number in reader.streams() if node == worker]:
        pairing = Pairing()
        for event in reader.stream(worker, incarnation, on_damage=on_damage):
            yield incarnation, pairing.completed(event.body)


class Evidence:
    """What workers recorded, by dataset, generation and worker: an array for each span.

    `damaged` names the records that cannot be read. `gapless` says that nothing is missing between
    the records that there are.
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
        """For each step of a span: what kind of record there is, and the digest in it."""
        length = span.stop - span.first
        key = (dataset, span.generation, worker)
        if key not in self._found:
            self._found[key] = np.zeros(length, np.uint8), np.zeros(length, np.uint64)
        return self._found[key]

    def whole(self, dataset: str, span: Span) -> Steps:
        """The steps of a span in which a worker applied the mean of all samples of the step."""
        key = (dataset, span.generation)
        if key not in self._whole:
            self._whole[key] = np.zeros(span.stop - span.first, bool)
        return self._whole[key]

    def holders(self, dataset: str) -> list[tuple[Span, str]]:
        """The spans and workers of which there is a record of a dataset."""
        found = [key for key in self._found if key[0] == dataset]
        return [(self._spans[generation], worker) for _, generation, worker in found]

    def never_applied(self, dataset: str, piece: Piece) -> bool:
        """Whether it is certain that no worker applied a batch of a dataset in some steps.

        Every worker that owned lanes of it recorded that it applied another dataset's batch in each
        of the steps, and nothing is missing between its records. Where it was handed a batch, as by
        a look at the first one, it also recorded a later step.
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
    """The ranges of a worker's events that cannot be read, or what was found reading them."""
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
    except Corrupt:  # an archive does not say what was in a part of it that is damaged
        found = []
    return found or [f"events of {worker}: {fault.message}" for fault in faults]
