"""The coordinator's disk and the checkpoint storage, as far as a crash can touch them.

The log's store is a real one. What a crash may do to an append is decided here: nothing of it is
stored, or all of it although the answer never goes out, or the disk refuses and the coordinator
lives on.
"""

from collections.abc import Sequence

from msgspec import Struct

from strata.core.events import COORDINATOR, Event
from strata.core.state_versions import SCHEMA
from strata.errors import Unavailable
from strata.store.base import Batch, Window
from strata.store.memory import MemoryStore
from strata.store.sqlite import SqliteStore


class DiskRefused(Unavailable):
    """The disk did not take the facts."""

    code = "disk_refused"


class SimDisk(MemoryStore):
    """A store whose next append can be made to fail."""

    refuse_next = False

    def append(
        self,
        events: Sequence[Event],
        *,
        incarnation: int,
        expected: int,
        batches: Sequence[Batch] = (),
    ) -> int:
        """Stores, unless told to refuse."""
        if self.refuse_next:
            self.refuse_next = False
            raise DiskRefused("the disk is full", hint="free some space")
        return super().append(events, incarnation=incarnation, expected=expected, batches=batches)

    def copy_to(self, target: SqliteStore) -> None:
        """Writes the whole log into a file, as a coordinator would have left it."""
        facts = sorted(self.batches(Window(node=COORDINATOR)), key=lambda batch: batch.first_seq)
        workers = (batch for batch in self.batches() if batch.node != COORDINATOR)
        target.load(facts, workers)
        at: int | None = None
        while (snapshot := self.load_snapshot(at, SCHEMA)) is not None:
            target.save_snapshot(snapshot)
            at = snapshot.position - 1


class Model(Struct):
    """A model in training: `digest` depends on every step applied and on their order."""

    attempt: int
    generation: int
    steps: int = 0
    digest: int = 0

    def train(self) -> None:
        """Applies the next step."""
        self.digest = step_digest(self.digest, self.steps)
        self.steps += 1

    def copy(self) -> "Model":
        """The same model elsewhere."""
        return Model(self.attempt, self.generation, self.steps, self.digest)


def step_digest(digest: int, step: int) -> int:
    """What a model's digest becomes by applying a step."""
    return (digest * 6364136223846793005 + step + 1442695040888963407) % (1 << 64)


class Storage(Struct):
    """Checkpoint parts and manifests; a checkpoint without a manifest does not exist."""

    parts: dict[tuple[str, str, int], Model] = {}
    manifests: dict[tuple[str, str], Model] = {}
