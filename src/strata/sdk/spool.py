"""Batches of events on disk until the coordinator has stored them.

A batch is written here before it is sent, so a crash of this process loses at most what was not
yet packed, and an absence of the coordinator loses nothing up to the limit. The file survives the
process; the agent of the host, or the embedded coordinator, delivers it later.

The format: records, each the length and CRC-32 of what follows, then a `Batch` as msgpack. A torn
last record is not part of the file.

The file only grows, and is emptied whenever everything in it is stored. That needs no compaction:
stored batches leave within a round trip, and when the limit is reached nothing is added until the
coordinator has caught up, which empties it.
"""

import os
import re
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from struct import Struct as Layout

import msgspec
from msgspec import Struct

from strata.errors import Corrupt
from strata.sdk import blackbox
from strata.store.base import Batch
from strata.wire.v1 import coordinator_pb2 as pb

DEFAULT_MAX_BYTES = 64 * 2**20
FORGOTTEN_AFTER_S = 7 * 86400
SUFFIX = ".events"

_head = Layout(">LL")
_decoder = msgspec.msgpack.Decoder(Batch)


class _Entry(Struct, frozen=True, gc=False):
    first_seq: int
    stop_seq: int
    offset: int
    size: int


def default_folder() -> Path:
    """The default folder of spools: one per user of the host."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"strata-spool-{user}"
    folder.mkdir(exist_ok=True, mode=0o700)
    # The name can be guessed, so another user may have made it.
    return folder if folder.stat().st_uid == user else Path(tempfile.mkdtemp(prefix="strata-"))


class Spool:
    """The file of one worker's incarnation; one thread at a time.

    `stored_seq` is up to where the coordinator has everything, `in_flight_bytes` how much was sent
    and is not yet known to be stored.
    """

    def __init__(
        self, folder: Path, worker: str, incarnation: int, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _forget_old(folder)
        name = re.sub(r"[^\w.-]", "_", worker)[:100]
        self.path = folder / f"{name}.{incarnation}.{os.getpid()}{SUFFIX}"
        self.max_bytes = max_bytes
        self.stored_seq = -1
        self.in_flight_bytes = 0
        self._file = open(self.path, "w+b", buffering=0)  # noqa: SIM115 - open until `close`
        self._size = 0
        self._entries: deque[_Entry] = deque()
        self._sent = 0

    @property
    def full(self) -> bool:
        """Whether it takes no more until the coordinator has caught up."""
        return self._size >= self.max_bytes

    @property
    def empty(self) -> bool:
        """Whether everything in it is stored."""
        return not self._entries

    def add(self, batch: Batch) -> None:
        """Writes a batch; it is read back when it is sent."""
        body = msgspec.msgpack.encode(batch)
        record = _head.pack(len(body), zlib.crc32(body)) + body
        self._file.seek(self._size)
        unwritten = memoryview(record)
        while unwritten:
            unwritten = unwritten[self._file.write(unwritten) :]
        self._entries.append(_Entry(batch.first_seq, batch.stop_seq, self._size, len(record)))
        self._size += len(record)

    def next_unsent(self) -> Batch | None:
        """The oldest batch that was not sent over this connection; it counts as sent now."""
        if self._sent >= len(self._entries):
            return None
        entry = self._entries[self._sent]
        self._sent += 1
        self.in_flight_bytes += entry.size
        self._file.seek(entry.offset + _head.size)
        return _decoder.decode(self._file.read(entry.size - _head.size))

    def stored(self, seq: int) -> None:
        """Everything up to `seq` is stored by the coordinator."""
        self.stored_seq = max(self.stored_seq, seq)
        while self._entries and self._entries[0].stop_seq <= self.stored_seq + 1:
            entry = self._entries.popleft()
            if self._sent:
                self._sent -= 1
                self.in_flight_bytes -= entry.size
        if not self._entries and self._size:
            self._file.truncate(0)
            self._size = 0

    def discard(self, first_seq: int) -> int:
        """Takes out a batch that will never be stored; how many events that were."""
        for place, entry in enumerate(self._entries):
            if entry.first_seq == first_seq:
                del self._entries[place]
                if place < self._sent:
                    self._sent -= 1
                    self.in_flight_bytes -= entry.size
                return entry.stop_seq - entry.first_seq
        return 0

    def resend(self) -> None:
        """A new connection: whatever is not known to be stored goes out again."""
        self._sent = self.in_flight_bytes = 0

    def abandon(self) -> None:
        """Close the file and leave it: it belongs to another process."""
        self._file.close()

    def close(self) -> None:
        """Closes the file, and removes it when everything in it is stored."""
        self._file.close()
        if self.empty:
            self.path.unlink(missing_ok=True)


def read_spool(path: Path) -> Iterator[Batch]:
    """The batches that a process left behind: its file, up to where it was torn, and what it had
    not packed yet."""
    last_seq = -1
    for batch in _read_file(path):
        last_seq = batch.stop_seq - 1
        yield batch
    newest = path.with_suffix(blackbox.SUFFIX)
    rest = blackbox.read_newest(newest, last_seq) if newest.exists() else None
    if rest is not None:
        yield rest


def _read_file(path: Path) -> Iterator[Batch]:
    data = path.read_bytes()
    offset = 0
    while offset + _head.size <= len(data):
        size, checksum = _head.unpack_from(data, offset)
        body = data[offset + _head.size : offset + _head.size + size]
        offset += _head.size + size
        if len(body) < size:
            return
        if zlib.crc32(body) != checksum:
            raise Corrupt(f"{path.name}: the record before byte {offset} is damaged")
        yield _decoder.decode(body)


def remove(path: Path) -> None:
    """Removes the file of a process that has ended, and its newest events beside it."""
    path.with_suffix(blackbox.SUFFIX).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def batch_message(batch: Batch) -> pb.EventBatch:
    """A batch for the wire."""
    return pb.EventBatch(
        first_seq=batch.first_seq,
        count=batch.count,
        wall_from_ns=batch.wall_from_ns,
        wall_to_ns=batch.wall_to_ns,
        kinds=batch.kinds,
        payload=batch.payload,
    )


def _forget_old(folder: Path) -> None:
    """Remove what was not delivered within a week, so that the folder stays bounded."""
    horizon_s = time.time() - FORGOTTEN_AFTER_S
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            if path.stat().st_mtime < horizon_s:
                remove(path)
        except FileNotFoundError:
            continue  # another worker of this host was faster
