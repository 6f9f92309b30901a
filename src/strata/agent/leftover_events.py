"""Deliver the events that ended workers had recorded and not sent.

Each start of a worker has its own spool folder. A process that ends normally leaves it empty. The
agent sends the batches of a killed process one at a time, and deletes the folder when all are
settled; until then it survives the agent. The coordinator knows which events it has, so no event is
stored twice.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from strata.errors import Corrupt
from strata.sdk.record.spool import SUFFIX, batch_message, read_spool, remove
from strata.store.event_store import Batch
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

FOLDER = "spools"


class _Left(Struct):
    """The spool folder of an ended start, a callback for damage, and the batch in flight."""

    folder: Path
    on_damage: Callable[[str], None]
    batches: Iterator[Batch] | None = None
    batch: Batch | None = None
    sent: bool = False


class Leftovers:
    """The spools of an agent's workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._waiting: dict[str, _Left] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be delivered."""
        return not self._waiting

    def folder_of(self, key: str) -> Path:
        """The spool folder of the process with that key."""
        return self._folder / key

    def keys(self) -> list[str]:
        """The keys of all processes with a folder."""
        return [path.name for path in self._folder.glob("*")]

    def ended(self, key: str, on_damage: Callable[[str], None]) -> None:
        """Queue the events of an ended process."""
        left = _Left(folder=self.folder_of(key), on_damage=on_damage)
        left.batches = _read(left)
        if self._advance(left):
            self._waiting[key] = left

    def next_message(self) -> pb.LeftEvents | None:
        """The next message to send; None if there is none, or one is in flight."""
        for left in self._waiting.values():
            if left.sent:
                return None
            assert left.batch is not None, "a queued folder has a batch"
            left.sent = True
            events = batch_message(left.batch)
            return pb.LeftEvents(
                worker_id=left.batch.node, incarnation=left.batch.incarnation, events=events
            )
        return None

    def settled(self, settled: pb.LeftSettled) -> None:
        """Handle a batch that the coordinator has stored or refused."""
        batch_id = (settled.worker_id, settled.incarnation, settled.first_seq)
        for key, left in list(self._waiting.items()):
            batch = left.batch
            if batch is not None and (batch.node, batch.incarnation, batch.first_seq) == batch_id:
                if settled.HasField("refused"):
                    left.on_damage(f"{batch.count} events were refused: {settled.refused.message}")
                if not self._advance(left):
                    del self._waiting[key]

    def resend(self) -> None:
        """Send the batches in flight again, over a new connection."""
        for left in self._waiting.values():
            left.sent = False

    def _advance(self, left: _Left) -> bool:
        """Take the next batch; deletes the folder after the last one."""
        assert left.batches is not None
        left.batch, left.sent = next(left.batches, None), False
        if left.batch is None:
            shutil.rmtree(left.folder, ignore_errors=True)
        return left.batch is not None


def batches_left_by(pid: int, folder: Path) -> Iterator[Batch]:
    """The undelivered events of a process in a spool folder."""
    for path in _spools(pid, folder):
        yield from read_spool(path)


def remove_left_by(pid: int, folder: Path) -> None:
    """Delete the spool files of a process."""
    for path in _spools(pid, folder):
        remove(path)


def _spools(pid: int, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*.{pid}{SUFFIX}"))


def _read(left: _Left) -> Iterator[Batch]:
    for path in sorted(left.folder.glob(f"*{SUFFIX}")):
        try:
            yield from read_spool(path)
        except (OSError, Corrupt) as error:
            left.on_damage(f"its undelivered events cannot be read: {error}")
