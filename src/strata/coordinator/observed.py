"""What workers last said of themselves: shown to people, never decided upon, never recorded.

It lives beside the state, not in it: a beat is not a fact. After a restart it is empty until the
workers have spoken again.
"""

from msgspec import Struct

from strata.core.resources import ResourceMetrics, Saving


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

    def written(self, checkpoint: str) -> dict[str, int]:
        """How many bytes of their part of a checkpoint workers say they have written."""
        return {
            worker: seen.saving.written_bytes
            for worker, seen in self.workers.items()
            if seen.saving is not None and seen.saving.checkpoint == checkpoint
        }

    def forget(self, worker: str) -> None:
        """Drops a worker that is gone."""
        self.workers.pop(worker, None)
