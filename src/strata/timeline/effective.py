"""How much of a task's time was training that counts.

Productive is, for every step that counts, the time that the workers of the step's generation took
for it, on average. The rest went to starting, to noticing losses and recovering from them, and to
steps that were redone or rolled back.
"""

import numpy as np
from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.core.tasks import TaskStateChanged
from strata.core.worker_facts import BatchesAssigned, StepFinished
from strata.store.base import EventReader, Window
from strata.timeline.evidence import ALL
from strata.timeline.lineage import Lineage


class Effective(Struct, frozen=True):
    """Seconds of training that counts, and of the whole task so far."""

    productive_s: float
    total_s: float

    @property
    def share(self) -> float:
        """The part of the time that was productive."""
        return self.productive_s / self.total_s if self.total_s else 0.0


def effective(reader: EventReader, task: str, lineage: Lineage) -> Effective:
    """Adds up the steps that count, and how long the task ran from its first start to its end."""
    took = Took(lineage.committed)
    for worker in sorted(lineage.workers):
        for incarnation in [i for node, i in reader.streams() if node == worker]:
            _note_steps(reader, worker, incarnation, lineage, took)
    return Effective(took.mean_s, _duration_s(reader, task))


class Took:
    """How long each step took, on average over those who told."""

    def __init__(self, steps: int) -> None:
        self._seconds = np.zeros(steps)
        self._told = np.zeros(steps)

    def note(self, step: int, seconds: float) -> None:
        """A worker took so long for a step."""
        self._seconds[step] += seconds
        self._told[step] += 1

    @property
    def mean_s(self) -> float:
        """All steps together."""
        return float((self._seconds / np.maximum(self._told, 1)).sum())


def _note_steps(
    reader: EventReader, worker: str, incarnation: int, lineage: Lineage, took: Took
) -> None:
    """Takes in one process's steps, of the generations whose training of them counts."""
    generation = 0
    # Steps in a damaged record are not counted; the audit says which records are damaged.
    for event in reader.stream(worker, incarnation, on_damage=lambda _: None):
        body = event.body
        if isinstance(body, BatchesAssigned):
            generation = body.generation
        elif isinstance(body, StepFinished) and lineage.owner_of(body.step) == generation:
            parts_s = (body.data_s, body.compute_s, body.communication_s, body.wait_s)
            took.note(body.step, sum(parts_s))


def _duration_s(reader: EventReader, task: str) -> float:
    started_ns = last_ns = None
    changes = Window(node=COORDINATOR, kinds=frozenset({TaskStateChanged.__name__}))
    for _, _, event in reader.query(changes, limit=ALL):
        body = event.body
        if isinstance(body, TaskStateChanged) and body.task == task:
            if body.after == "starting" and started_ns is None:
                started_ns = event.wall_ns
            last_ns = event.wall_ns
    return (last_ns - started_ns) / 1e9 if started_ns is not None and last_ns is not None else 0.0
