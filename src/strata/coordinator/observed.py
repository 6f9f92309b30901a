"""What workers last said of themselves: shown to people, never decided upon, never recorded.

It lives beside the state, not in it: a beat is not a fact. After a restart it is empty until the
workers have spoken again.
"""

from collections.abc import Container, Sequence

from msgspec import Struct

from strata.core.checkpoints import Checkpoint
from strata.core.events import Event
from strata.core.resources import ResourceMetrics, Saving
from strata.core.tasks import Task
from strata.core.workers import WorkerLost, WorkerStateChanged

SPARE = 1_000


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
        self._heard: set[str] = set()
        self._look_at = SPARE

    def note(self, worker: str, seen: Seen) -> None:
        """Keeps a beat; resources that it does not carry stay as they were."""
        before = self.workers.get(worker)
        if seen.resources is None and before is not None:
            seen.resources = before.resources
        self.workers[worker] = seen
        self._heard.add(worker)

    def heard(self) -> set[str]:
        """Who beat since this was last asked."""
        heard, self._heard = self._heard, set()
        return heard

    def saving(self, task: Task, checkpoint: Checkpoint) -> list[Saving]:
        """How far members are whose part of a checkpoint is not acknowledged yet."""
        seen = (
            self.workers.get(worker)
            for rank, worker in enumerate(task.members)
            if rank not in checkpoint.parts
        )
        found = (each.saving for each in seen if each is not None and each.saving is not None)
        return [each for each in found if each.checkpoint == checkpoint.id]

    def follow(self, events: Sequence[Event], known: Container[str]) -> None:
        """Of those who are gone stays when they were last heard, and not what they used then.

        Of those whom nobody knows any more nothing stays; they are looked for now and then.
        """
        for event in events:
            body = event.body
            if isinstance(body, WorkerLost) or (
                isinstance(body, WorkerStateChanged) and body.after == "left"
            ):
                seen = self.workers.get(body.worker)
                if seen is not None and seen.incarnation == body.incarnation:
                    seen.resources = seen.saving = seen.loss = None
        if len(self.workers) > self._look_at:
            self.workers = {name: each for name, each in self.workers.items() if name in known}
            self._heard &= self.workers.keys()
            self._look_at = 2 * len(self.workers) + SPARE
