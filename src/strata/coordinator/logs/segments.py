"""The log on disk: one open segment of plain lines, and older ones compressed.

The open segment is JSON lines, so that writing costs one call and a crash can only tear the last
line, which is cut when the store is opened again. A segment that is full is *sealed*: rewritten as
zstd frames of about `BLOCK_BYTES` of text each (a tenth of the size, in practice) behind an index.
The index sits in a skippable frame, which every zstd tool passes over: `zstdcat *.zst` gives back
the plain lines without Strata.

A file is named by the number of its first line and by how many lines were ever stored before it.
So the oldest file that is left tells how many lines have been dropped, and nothing else has to be
kept. A file that exists both open and sealed was being sealed when the process died: the sealed
one is whole, since it is renamed into place.
"""

import os
import re
import struct
from pathlib import Path

import msgspec
import xxhash
import zstandard
from msgspec import Struct

from strata.coordinator.logs.entries import SEVERITY, LogEntry, decode_line, encode_lines
from strata.errors import Corrupt

BLOCK_BYTES = 128 * 1024
LINES_AT_ONCE = 256
MAX_NAMES = 20_000
ZSTD_LEVEL = 3

SKIPPABLE = 0x184D2A50
HEAD = struct.Struct("<IIQ")
"""Magic and size of the skippable frame, and the checksum of the index in it."""

NAME = re.compile(r"log-([0-9a-f]{16})-(\d{12})\.jsonl(\.zst)?")


class Span(Struct):
    """What some consecutive lines hold, to tell without reading them that they do not matter."""

    first_seq: int = 0
    last_seq: int = -1
    count: int = 0
    from_ms: int = 2**63 - 1
    to_ms: int = 0
    levels: int = 0

    def take(self, entries: list[LogEntry]) -> None:
        """Widens it by lines that follow."""
        if not self.count:
            self.first_seq = entries[0].seq
        self.last_seq = entries[-1].seq
        self.count += len(entries)
        stamps = [entry.timestamp for entry in entries]
        self.from_ms = min(self.from_ms, min(stamps))
        self.to_ms = max(self.to_ms, max(stamps))
        for level in {entry.level for entry in entries}:
            self.levels |= 1 << SEVERITY[level]


class Block(Struct):
    """A part of a segment that is read at once; `size` and `checksum` as it is on disk."""

    span: Span
    offset: int
    size: int = 0
    checksum: int = 0


class Index(Struct):
    """What a sealed segment begins with. No `names` means that there are too many to tell."""

    span: Span
    blocks: list[Block]
    names: list[int] | None = None

    def may_name(self, names: list[str]) -> bool:
        """Whether lines of all these tasks, workers and sources can be in it."""
        return self.names is None or {hashed(name) for name in names} <= set(self.names)


def hashed(name: str) -> int:
    """A name as it stands in an index."""
    return xxhash.xxh32_intdigest(name.encode())


def file_name(first_seq: int, before: int) -> str:
    """The name of a segment that is open."""
    return f"log-{first_seq:016x}-{before:012d}.jsonl"


class Segment:
    """A file of the log; `before` lines were stored ahead of it."""

    def __init__(self, path: Path) -> None:
        named = NAME.fullmatch(path.name)
        assert named, f"{path} is not a segment"
        self.path = path
        self.first_seq = int(named[1], 16)
        self.before = int(named[2])
        self.span = Span(self.first_seq)
        self.size_bytes = 0
        self.damaged = False

    def index(self) -> Index:
        """Its blocks."""
        raise NotImplementedError

    def read(self, block: Block) -> bytes:
        """The lines of a block; raises `Corrupt` when they are not what was written."""
        raise NotImplementedError

    def _bytes(self, block: Block) -> bytes:
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), block.size, block.offset)


class OpenSegment(Segment):
    """The segment that lines are added to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.blocks: list[Block] = []
        self.names: set[str] = set()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._recover()

    def _recover(self) -> None:
        """Takes in what an earlier process wrote, and cuts what it did not finish."""
        entries: list[LogEntry] = []
        size = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                entry = decode_line(line)
                whole = line.endswith(b"\n") and entry.seq >= self.first_seq
            except ValueError:  # what msgspec raises as well
                whole = False
            if not whole:
                break
            entries.append(entry)
            size += len(line)
            if len(entries) == LINES_AT_ONCE:
                self._note(entries, size)
                entries, size = [], 0
        if entries:
            self._note(entries, size)
        os.ftruncate(self._fd, self.size_bytes)

    def append(self, entries: list[LogEntry]) -> None:
        """Writes lines; either all of them are in the file afterwards or none."""
        data = encode_lines(entries)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except OSError:
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self._note(entries, len(data))

    def _note(self, entries: list[LogEntry], size: int) -> None:
        if not self.blocks or self.blocks[-1].size >= BLOCK_BYTES:
            self.blocks.append(Block(Span(), self.size_bytes))
        block = self.blocks[-1]
        block.span.take(entries)
        block.size += size
        self.span.take(entries)
        self.size_bytes += size
        if len(self.names) <= MAX_NAMES:
            self.names.update({entry.source for entry in entries})
            self.names.update({entry.task_id for entry in entries})
            self.names.update({entry.worker_id for entry in entries})

    def index(self) -> Index:
        return Index(self.span, list(self.blocks))

    def read(self, block: Block) -> bytes:
        return self._bytes(block)

    def seal(self) -> "SealedSegment":
        """Rewrites itself compressed; the caller forgets it, then calls `remove`."""
        compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
        frames = [compress(self._bytes(block)) for block in self.blocks]
        hashes = sorted({hashed(name) for name in self.names})
        index = Index(self.span, [], hashes if len(self.names) <= MAX_NAMES else None)
        offset = 0
        for block, frame in zip(self.blocks, frames, strict=True):
            checksum = xxhash.xxh64_intdigest(frame)
            index.blocks.append(Block(block.span, offset, len(frame), checksum))
            offset += len(frame)
        encoded = msgspec.msgpack.encode(index)
        checksum = xxhash.xxh64_intdigest(encoded)
        head = HEAD.pack(SKIPPABLE, len(encoded) + HEAD.size - 8, checksum)
        place(self.path.with_name(self.path.name + ".zst"), b"".join([head, encoded, *frames]))
        return SealedSegment(self.path.with_name(self.path.name + ".zst"))

    def close(self) -> None:
        """Puts everything on disk and lets go of the file."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Deletes the file; its sealed form has taken its place."""
        os.close(self._fd)
        self._fd = -1
        self.path.unlink()


class SealedSegment(Segment):
    """A segment that does not change any more. Its index is read when it is needed.

    One that is damaged counts as empty; it stays until its turn to be dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._frames_at = 0
        self.size_bytes = path.stat().st_size
        try:
            self.span = self.index().span
        except Corrupt:
            self.damaged = True

    def index(self) -> Index:
        with self.path.open("rb") as file:
            head = file.read(HEAD.size)
            if len(head) < HEAD.size:
                raise Corrupt(f"{self.path} has no index")
            magic, size, checksum = HEAD.unpack(head)
            encoded = file.read(size - (HEAD.size - 8)) if magic == SKIPPABLE else b""
        if xxhash.xxh64_intdigest(encoded) != checksum:
            raise Corrupt(f"the index of {self.path} is not what was written")
        self._frames_at = HEAD.size + len(encoded)
        return msgspec.msgpack.decode(encoded, type=Index)

    def read(self, block: Block) -> bytes:
        at = msgspec.structs.replace(block, offset=block.offset + self._frames_at)
        frame = self._bytes(at)
        if xxhash.xxh64_intdigest(frame) != block.checksum:
            raise Corrupt(f"a block of {self.path} is not what was written")
        return zstandard.ZstdDecompressor().decompress(frame)


def load(file: Path) -> Segment | None:
    """A segment that an earlier process left, sealed now if it was not; None if it was empty."""
    if file.suffix == ".zst":
        return SealedSegment(file)
    if file.with_name(file.name + ".zst").exists():
        file.unlink()
        return None
    left = OpenSegment(file)
    sealed = left.seal() if left.span.count else None
    left.remove()
    return sealed


def place(path: Path, data: bytes) -> None:
    """Creates a whole file or none, and puts it on disk."""
    draft = path.with_name(path.name + ".tmp")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
