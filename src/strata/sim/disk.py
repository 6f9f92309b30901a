"""The coordinator's disk, as far as a crash or a fault can touch it.

The log's store is a real one. What can happen to a write is decided here: the power fails before
it or right after it, or the disk refuses it and the coordinator lives on. Each kind of write can be
refused by itself: facts, or snapshots alone, which need more room.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from strata.core.events import COORDINATOR, Codec, Event
from strata.core.state_versions import SCHEMA
from strata.errors import Unavailable
from strata.store.base import Batch, Snapshot, Window
from strata.store.memory import MemoryStore
from strata.store.sqlite import SqliteStore


class PowerLost(BaseException):
    """The coordinator's machine has stopped: what it would write is not written."""


class DiskRefused(Unavailable):
    """The disk did not take the facts."""

    code = "disk_refused"


class SimDisk(MemoryStore):
    """A store whose writes can be made to fail; `on_stored` is called with facts on disk.

    With `power_fails` the machine stops at the next write of facts, before it or right after.
    """

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self.refuse_next = False
        self.refuse_snapshots = False
        self.power_fails: Literal["", "before", "after"] = ""
        self.powered = True
        self.on_stored: list[Callable[[Sequence[Event]], None]] = []

    def append(
        self,
        events: Sequence[Event],
        *,
        incarnation: int,
        expected: int,
        batches: Sequence[Batch] = (),
    ) -> int:
        """Stores, unless told to refuse or to lose power."""
        if self.refuse_next:
            self.refuse_next = False
            raise DiskRefused("the disk is full", hint="free some space")
        if self.power_fails == "before":
            self.powered = False
        self._require_power()
        position = super().append(
            events, incarnation=incarnation, expected=expected, batches=batches
        )
        for observe in self.on_stored:
            observe(events)
        if self.power_fails == "after":
            self.powered = False
        return position

    def power_on(self) -> None:
        """The machine starts."""
        self.power_fails, self.powered = "", True

    def _require_power(self) -> None:
        if not self.powered:
            raise PowerLost

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot, unless there is no room for one."""
        self._require_power()
        if self.refuse_snapshots:
            raise DiskRefused("no room for a snapshot", hint="free some space")
        super().save_snapshot(snapshot)

    def copy_to(self, target: SqliteStore) -> None:
        """Writes the whole log into a file, as a coordinator would have left it."""
        facts = sorted(self.batches(Window(node=COORDINATOR)), key=lambda batch: batch.first_seq)
        workers = (batch for batch in self.batches() if batch.node != COORDINATOR)
        target.load(facts, workers)
        at: int | None = None
        while (snapshot := self.load_snapshot(at, SCHEMA)) is not None:
            target.save_snapshot(snapshot)
            at = snapshot.position - 1
