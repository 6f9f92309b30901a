"""The coordinator's disk, with crashes and write errors.

The log's store is a real one. This module decides what happens to a write: the power fails before
it or right after it, or the disk refuses it and the coordinator lives on. Each kind of write can be
refused separately: facts, or snapshots alone, which need more room.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from strata.core.events import COORDINATOR, Codec, Event
from strata.core.record.snapshot_versions import SCHEMA
from strata.errors import Unavailable
from strata.store.event_store import Batch, Snapshot, Window
from strata.store.memory_store import MemoryStore
from strata.store.sqlite import SqliteStore


class PowerLost(BaseException):
    """The coordinator's machine has stopped: nothing is written any more."""


class DiskRefused(Unavailable):
    """The disk refused the facts."""

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
        """Store facts, unless set to refuse them or to lose power."""
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
        """Start the machine."""
        self.power_fails, self.powered = "", True

    def _require_power(self) -> None:
        if not self.powered:
            raise PowerLost

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot, unless there is no room for it."""
        self._require_power()
        if self.refuse_snapshots:
            raise DiskRefused("no room for a snapshot", hint="free some space")
        super().save_snapshot(snapshot)

    def copy_to(self, target: SqliteStore) -> None:
        """Write the whole log into a file, as a coordinator would have left it."""
        facts = sorted(self.batches(Window(node=COORDINATOR)), key=lambda batch: batch.first_seq)
        workers = (batch for batch in self.batches() if batch.node != COORDINATOR)
        target.load(facts, workers)
        at: int | None = None
        while (snapshot := self.load_snapshot(at, SCHEMA)) is not None:
            target.save_snapshot(snapshot)
            at = snapshot.position - 1
