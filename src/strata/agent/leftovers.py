"""Events that workers recorded and could not deliver: their agent does, once they have ended.

Each start of a worker has a folder of its own for its spool. A process that ends well leaves it
empty. What one left that was killed is sent batch by batch, each when the one before it is settled,
and is gone when all of it is; until then it outlives the agent, too. The coordinator knows which
events it has, so what a worker had sent itself is not stored twice.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from strata.errors import Corrupt
from strata.sdk.spool import SUFFIX, batch_message, read_spool, remove
from strata.store.base import Batch
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

FOLDER = "spools"


class _Left(Struct):
    """The folder of a start that is over, who is told about damage, and what is under way."""

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
        """Where the process of that key spools."""
        return self._folder / key

    def keys(self) -> list[str]:
        """Of every process that has a folder."""
        return [path.name for path in self._folder.glob("*")]

    def ended(self, key: str, on_damage: Callable[[str], None]) -> None:
        """A process has ended: what it left may be sent."""
        left = _Left(self.folder_of(key), on_damage)
        left.batches = _read(left)
        if self._advance(left):
            self._waiting[key] = left

    def next_message(self) -> pb.LeftEvents | None:
        """What to send now, if there is something and nothing is under way."""
        for left in self._waiting.values():
            if left.sent:
                return None
            assert left.batch is not None, "what waits has a batch"
            left.sent = True
            events = batch_message(left.batch)
            return pb.LeftEvents(
                worker_id=left.batch.node, incarnation=left.batch.incarnation, events=events
            )
        return None

    def settled(self, settled: pb.LeftSettled) -> None:
        """The coordinator has stored a batch, or never will."""
        told = (settled.worker_id, settled.incarnation, settled.first_seq)
        for key, left in list(self._waiting.items()):
            batch = left.batch
            if batch is not None and (batch.node, batch.incarnation, batch.first_seq) == told:
                if settled.HasField("refused"):
                    left.on_damage(f"{batch.count} events were refused: {settled.refused.message}")
                if not self._advance(left):
                    del self._waiting[key]

    def resend(self) -> None:
        """A new connection: what is not known to be settled is sent again."""
        for left in self._waiting.values():
            left.sent = False

    def _advance(self, left: _Left) -> bool:
        """Goes on to the next batch; the last one's folder goes with it."""
        assert left.batches is not None
        left.batch, left.sent = next(left.batches, None), False
        if left.batch is None:
            shutil.rmtree(left.folder, ignore_errors=True)
        return left.batch is not None


def batches_left_by(pid: int, folder: Path) -> Iterator[Batch]:
    """The events that a process recorded in a folder and did not deliver."""
    for path in _spools(pid, folder):
        yield from read_spool(path)


def remove_left_by(pid: int, folder: Path) -> None:
    """Removes the files in which a process recorded its events."""
    for path in _spools(pid, folder):
        remove(path)


def _spools(pid: int, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*.{pid}{SUFFIX}"))


def _read(left: _Left) -> Iterator[Batch]:
    for path in sorted(left.folder.glob(f"*{SUFFIX}")):
        try:
            yield from read_spool(path)
        except (OSError, Corrupt) as error:
            left.on_damage(f"events that it left cannot be read: {error}")
