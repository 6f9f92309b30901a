"""What workers recorded about the samples they read: eight bytes a step, by generation."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.core.worker_facts import SampleSkipped, TrainingStarted
from strata.store.base import EventReader, Window
from strata.timeline.lineage import Lineage, Span

Flags: TypeAlias = NDArray[np.uint8]
Digests: TypeAlias = NDArray[np.uint64]

ALL = 1 << 62
TELLING = frozenset({TrainingStarted.__name__, SampleSkipped.__name__})


class Evidence:
    """The digests that workers recorded, by dataset, generation and worker: an array a span."""

    def __init__(self, lineage: Lineage, reader: EventReader) -> None:
        self.first_step: dict[str, int] = {}
        self.skipped: dict[str, set[int]] = {}
        self._spans = {span.generation: span for span in lineage.spans}
        self._found: dict[tuple[str, int, str], tuple[Flags, Digests]] = {}
        for worker in sorted(lineage.workers):
            for _, _, event in reader.query(Window(node=worker, kinds=TELLING), limit=ALL):
                self._note(worker, event.body)

    def of(self, dataset: str, span: Span, worker: str) -> tuple[Flags, Digests]:
        """For each step of a span: whether there is a record (2: two that differ), and what it
        says."""
        length = span.stop - span.first
        key = (dataset, span.generation, worker)
        if key not in self._found:
            self._found[key] = np.zeros(length, np.uint8), np.zeros(length, np.uint64)
        return self._found[key]

    def _note(self, worker: str, record: object) -> None:
        if isinstance(record, SampleSkipped):
            self.skipped.setdefault(record.dataset, set()).add(record.row)
        elif isinstance(record, TrainingStarted):
            span = self._spans.get(record.generation)
            if span is not None and span.first <= record.step < span.stop:
                self._note_step(worker, span, record)

    def _note_step(self, worker: str, span: Span, record: TrainingStarted) -> None:
        seen, proofs = self.of(record.dataset, span, worker)
        at = record.step - span.first
        seen[at] = 2 if seen[at] and proofs[at] != np.uint64(record.digest) else 1
        proofs[at] = record.digest
        known = self.first_step.get(record.dataset, record.step)
        self.first_step[record.dataset] = min(known, record.step)
