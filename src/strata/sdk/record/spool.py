"""The spool: batches of events on disk until the coordinator has stored them.

A batch is written here before it is sent. So a crash of this process loses only events that were
not packed yet, and an unreachable coordinator loses none up to the limit. The file survives the
process; the host's agent, or the embedded coordinator, delivers it later.

Format: records, each with the length and CRC-32 of its content, a `Batch` as msgpack. A torn last
record is ignored.

The file only grows, and is truncated when everything in it is stored. It needs no compaction:
batches are stored within a round trip, and at the limit nothing is added until the coordinator has
stored everything, which empties it.

A batch that the disk refuses (full, read-only) is held in memory until it is stored, up to a limit;
only a crash of this process then loses it.
"""

import logging
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
from strata.sdk.record import blackbox
from strata.store.event_store import Batch
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 64 * 2**20
MAX_HELD_BYTES = 8 * 2**20
FORGOTTEN_AFTER_S = 7 * 86400
SUFFIX = ".events"

_head = Layout(">LL")
_decoder = msgspec.msgpack.Decoder(Batch)


class _Entry(Struct, frozen=True, gc=False):
    first_seq: int
    stop_seq: int
    offset: int
    size: int
    held: Batch | None = None


def default_folder() -> Path:
    """The default folder of spools: one per user of the host."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"strata-spool-{user}"
    folder.mkdir(exist_ok=True, mode=0o700)
    # The name is predictable, so another user may have created it.
    return folder if folder.stat().st_uid == user else Path(tempfile.mkdtemp(prefix="strata-"))


class Spool:
    """The file of one worker's incarnation; one thread at a time.

    `stored_seq` is the last event that the coordinator has stored, `in_flight_bytes` the size of
    the batches that were sent and not acknowledged.
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
        self._held_bytes = 0
        self._entries: deque[_Entry] = deque()
        self._sent = 0

    @property
    def in_flight_batches(self) -> int:
        """How many batches were sent and are not yet known to be stored."""
        return self._sent

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._size >= self.max_bytes

    @property
    def empty(self) -> bool:
        """Whether everything in it is stored."""
        return not self._entries

    def add(self, batch: Batch) -> None:
        """Write a batch; it is read back when it is sent.

        Raises if the disk refuses it and too much is held in memory already.
        """
        body = msgspec.msgpack.encode(batch)
        record = _head.pack(len(body), zlib.crc32(body)) + body
        held = None
        try:
            self._write(record)
        except OSError as error:
            if self._held_bytes + len(record) > MAX_HELD_BYTES:
                raise
            if not self._held_bytes:
                log.warning("events are held in memory: %s cannot be written: %s", self.path, error)
            held = batch
            self._held_bytes += len(record)
        entry = _Entry(
            first_seq=batch.first_seq,
            stop_seq=batch.stop_seq,
            offset=self._size,
            size=len(record),
            held=held,
        )
        self._entries.append(entry)
        self._size += len(record) if held is None else 0

    def _write(self, record: bytes) -> None:
        """Append a record; of one that does not fit nothing is left in the file."""
        self._file.seek(self._size)
        unwritten = memoryview(record)
        try:
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        except OSError:
            self._file.truncate(self._size)
            raise

    def next_unsent(self) -> Batch | None:
        """The oldest unsent batch of this connection; marks it as sent."""
        if self._sent >= len(self._entries):
            return None
        entry = self._entries[self._sent]
        self._sent += 1
        self.in_flight_bytes += entry.size
        if entry.held is not None:
            return entry.held
        self._file.seek(entry.offset + _head.size)
        return _decoder.decode(self._file.read(entry.size - _head.size))

    def stored(self, seq: int) -> None:
        """Note that the coordinator has stored everything up to `seq`."""
        self.stored_seq = max(self.stored_seq, seq)
        while self._entries and self._entries[0].stop_seq <= self.stored_seq + 1:
            entry = self._entries.popleft()
            self._held_bytes -= entry.size if entry.held is not None else 0
            if self._sent:
                self._sent -= 1
                self.in_flight_bytes -= entry.size
        if not self._entries and self._size:
            self._file.truncate(0)
            self._size = 0

    def discard(self, first_seq: int) -> int:
        """Drop a batch that will never be stored; returns its number of events."""
        for place, entry in enumerate(self._entries):
            if entry.first_seq == first_seq:
                del self._entries[place]
                self._held_bytes -= entry.size if entry.held is not None else 0
                if place < self._sent:
                    self._sent -= 1
                    self.in_flight_bytes -= entry.size
                return entry.stop_seq - entry.first_seq
        return 0

    def resend(self) -> None:
        """Mark everything that may not be stored as unsent, for a new connection."""
        self._sent = self.in_flight_bytes = 0

    def abandon(self) -> None:
        """Close the file and leave it: it belongs to another process."""
        self._file.close()

    def close(self) -> None:
        """Close the file, and delete it if everything in it is stored."""
        self._file.close()
        if self.empty:
            self.path.unlink(missing_ok=True)


def read_spool(path: Path) -> Iterator[Batch]:
    """The batches of an ended process: its spool up to a torn record, and its black box."""
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
    """Delete the spool and the black box of an ended process."""
    path.with_suffix(blackbox.SUFFIX).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def batch_message(batch: Batch) -> pb.EventBatch:
    """A batch as a wire message."""
    return pb.EventBatch(
        first_seq=batch.first_seq,
        count=batch.count,
        wall_from_ns=batch.wall_from_ns,
        wall_to_ns=batch.wall_to_ns,
        kinds=batch.kinds,
        payload=batch.payload,
    )


def _forget_old(folder: Path) -> None:
    """Delete files that were not delivered within a week, so that the folder stays bounded."""
    horizon_s = time.time() - FORGOTTEN_AFTER_S
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            if path.stat().st_mtime < horizon_s:
                remove(path)
        except FileNotFoundError:
            continue  # another worker of this host deleted it first
