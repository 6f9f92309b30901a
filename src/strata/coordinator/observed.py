"""What workers last said of themselves: shown to people, never decided upon, never recorded.

It lives beside the state, not in it: a beat is not a fact. After a restart it is empty until the
workers have spoken again.
"""

from msgspec import Struct

from strata.core.checkpoints import Checkpoint
from strata.core.resources import ResourceMetrics, Saving
from strata.core.tasks import Task


class Seen(Struct):
    """The newest beat of a worker, as received; times are the coordinator's."""

    incarnation: int
    last_heartbeat_ms: int
    step: int = 0
    epoch: int = 0
    resources: ResourceMetrics | None = None
    saving: Saving | None = None
    loss: float | None = None


class Observed:
    """The newest beat of every worker."""

    def __init__(self) -> None:
        self.workers: dict[str, Seen] = {}

    def note(self, worker: str, seen: Seen) -> None:
        """Keeps a beat; resources that it does not carry stay as they were."""
        before = self.workers.get(worker)
        if seen.resources is None and before is not None:
            seen.resources = before.resources
        self.workers[worker] = seen

    def saving(self, task: Task, checkpoint: Checkpoint) -> list[Saving]:
        """How far members are whose part of a checkpoint is not acknowledged yet."""
        seen = (
            self.workers.get(worker)
            for rank, worker in enumerate(task.members)
            if rank not in checkpoint.parts
        )
        found = (each.saving for each in seen if each is not None and each.saving is not None)
        return [each for each in found if each.checkpoint == checkpoint.id]

    def forget(self, worker: str) -> None:
        """Drops a worker that is gone."""
        self.workers.pop(worker, None)
