"""The last heartbeat of each worker and agent: shown, never recorded, never used for decisions.

Heartbeats are not facts, so they are kept beside the state and not in it. After a restart the
tables are empty until the workers and agents have sent heartbeats again.
"""

from collections.abc import Container, Sequence

from msgspec import Struct

from strata.core.events import Event
from strata.core.task_state import Checkpoint, Task
from strata.core.workers.heartbeats import Beat, ResourceMetrics, Saving
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerStateChanged

UNKNOWN_WORKERS_KEPT = 1_000


class LastHeartbeat(Struct):
    """The last heartbeat of a worker; its time is the coordinator's."""

    incarnation: int
    last_heartbeat_ms: int
    step: int = 0
    epoch: int = 0
    resources: ResourceMetrics | None = None
    saving: Saving | None = None
    loss: float | None = None
    beat: Beat | None = None


class Heartbeats:
    """The last heartbeat of every worker, and its time in Unix milliseconds for every agent."""

    def __init__(self) -> None:
        self.workers: dict[str, LastHeartbeat] = {}
        self.agents: dict[str, int] = {}
        self._updated: set[str] = set()
        self._prune_above = UNKNOWN_WORKERS_KEPT

    def note(self, worker: str, heartbeat: LastHeartbeat) -> None:
        """Store a heartbeat; one without resources keeps the resources of the one before."""
        before = self.workers.get(worker)
        if heartbeat.resources is None and before is not None:
            heartbeat.resources = before.resources
        self.workers[worker] = heartbeat
        self._updated.add(worker)

    def take_updated(self) -> set[str]:
        """Ids of the workers that sent a heartbeat since the last call."""
        updated, self._updated = self._updated, set()
        return updated

    def saving(self, task: Task, checkpoint: Checkpoint) -> list[Saving]:
        """Progress of the members whose part of a checkpoint is not acknowledged yet."""
        pending = (
            self.workers.get(worker)
            for rank, worker in enumerate(task.members)
            if rank not in checkpoint.parts
        )
        found = (each.saving for each in pending if each is not None and each.saving is not None)
        return [each for each in found if each.checkpoint == checkpoint.id]

    def follow(self, events: Sequence[Event], known: Container[str]) -> None:
        """Drop the resources of workers that left; keep the time of their last heartbeat.

        Workers that are not `known` are deleted when there are many of them.
        """
        for event in events:
            body = event.body
            if isinstance(body, WorkerLost) or (
                isinstance(body, WorkerStateChanged) and body.after == "left"
            ):
                last = self.workers.get(body.worker)
                if last is not None and last.incarnation == body.incarnation:
                    last.resources = last.saving = last.loss = None
        if len(self.workers) > self._prune_above:
            self.workers = {name: each for name, each in self.workers.items() if name in known}
            self._updated &= self.workers.keys()
            self._prune_above = 2 * len(self.workers) + UNKNOWN_WORKERS_KEPT
