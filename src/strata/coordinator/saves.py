"""Who waits for a checkpoint to end, and tells them how it did.

A rank that has acknowledged its part is answered when the checkpoint is committed or has failed:
until then it holds on, so that nobody leaves a checkpoint behind that is still being made.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from strata.coordinator.engine import Engine
from strata.core.checkpoints import (
    Checkpoint,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
)
from strata.core.events import Event

Told: TypeAlias = Callable[[Checkpoint], None]
UNDECIDED = ("in_progress", "sealing")


class SaveRoom:
    """The waiters of every checkpoint: one per worker, however often it asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[tuple[str, str], tuple[Checkpoint, dict[str, Told]]] = {}
        engine.follow(self._follow, CheckpointCommitted, CheckpointFailed, CheckpointDeleted)

    def wait(self, task: str, checkpoint: Checkpoint, worker: str, told: Told) -> None:
        """Calls back when the checkpoint has ended; at once if it has."""
        if checkpoint.state in UNDECIDED:
            self._waiters.setdefault((task, checkpoint.id), (checkpoint, {}))[1][worker] = told
        else:
            told(checkpoint)

    def _follow(self, events: Sequence[Event]) -> None:
        for event in events:
            body = event.body
            assert isinstance(body, CheckpointCommitted | CheckpointFailed | CheckpointDeleted)
            held, waiters = self._waiters.pop((body.task, body.checkpoint), (None, {}))
            for told in waiters.values():
                told(self._ended(body.task, body.checkpoint, held))

    def _ended(self, task: str, checkpoint: str, held: Checkpoint | None) -> Checkpoint:
        """The checkpoint as it is now; one that is forgotten already, as it was waited for."""
        known = self._engine.kernel.state.tasks.get(task)
        found = known.checkpoints.get(checkpoint, held) if known is not None else held
        assert found is not None, "whoever waits has named the checkpoint"
        return found
