"""Files of the log: one open segment of plain lines, and older compressed ones.

The open segment has JSON lines, so that writing is one system call and a crash can only leave the
last line incomplete; it is cut when the store is opened again. A full segment is *sealed*:
rewritten as zstd frames of about `BLOCK_BYTES` of text each (a tenth of the size, in practice)
after an index. The index is in a skippable frame, which all zstd tools ignore: `zstdcat *.zst`
prints the plain lines without Strata.

A file name has the number of its first line and the number of lines ever stored before it. So the
oldest file tells how many lines have been deleted. If a segment exists both open and sealed, the
process died while sealing it: the sealed file is complete, because it is renamed into place.
"""

import os
import re
import struct
from pathlib import Path

import msgspec
import xxhash
import zstandard
from msgspec import Struct

from strata.coordinator.logs.log_entries import SEVERITY, LogEntry, decode_line, encode_lines
from strata.errors import UNDECODABLE, Corrupt

BLOCK_BYTES = 128 * 1024
LINES_AT_ONCE = 256
MAX_NAMES = 20_000
ZSTD_LEVEL = 3

SKIPPABLE = 0x184D2A50
HEAD = struct.Struct("<IIQ")
"""Magic number and size of the skippable frame, and the checksum of the index in it."""

NAME = re.compile(r"log-([0-9a-f]{16})-(\d{12})\.jsonl(\.zst)?")


class Span(Struct):
    """Range of numbers, times and levels of consecutive lines, to skip them without reading."""

    first_seq: int = 0
    last_seq: int = -1
    count: int = 0
    from_ms: int = 2**63 - 1
    to_ms: int = 0
    levels: int = 0

    def take(self, entries: list[LogEntry]) -> None:
        """Add the lines that follow."""
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
    """A part of a segment that is read at once; `size` and `checksum` are those on disk."""

    span: Span
    offset: int
    size: int = 0
    checksum: int = 0


class Index(Struct):
    """Index of a sealed segment. `names` is None if there are too many."""

    span: Span
    blocks: list[Block]
    names: list[int] | None = None

    def may_name(self, names: list[str]) -> bool:
        """Whether the segment may have lines of all these tasks, workers and sources."""
        return self.names is None or {hashed(name) for name in names} <= set(self.names)


def hashed(name: str) -> int:
    """Hash of a name in an index."""
    return xxhash.xxh32_intdigest(name.encode())


def file_name(first_seq: int, before: int) -> str:
    """File name of an open segment."""
    return f"log-{first_seq:016x}-{before:012d}.jsonl"


class Segment:
    """A file of the log; `before` is the number of lines stored before it."""

    def __init__(self, path: Path) -> None:
        named = NAME.fullmatch(path.name)
        assert named, f"{path} is not a segment"
        self.path = path
        self.first_seq = int(named[1], 16)
        self.before = int(named[2])
        self.span = Span(first_seq=self.first_seq)
        self.size_bytes = 0
        self.damaged = False

    def index(self) -> Index:
        """The index of its blocks."""
        raise NotImplementedError

    def read(self, block: Block) -> bytes:
        """The lines of a block; raises `Corrupt` if they are damaged."""
        raise NotImplementedError

    def _bytes(self, block: Block) -> bytes:
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), block.size, block.offset)


class OpenSegment(Segment):
    """The segment that lines are appended to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.blocks: list[Block] = []
        self.names: set[str] = set()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._recover()

    def _recover(self) -> None:
        """Read the lines of an earlier process, and cut an incomplete last line."""
        entries: list[LogEntry] = []
        size = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                entry = decode_line(line)
                whole = line.endswith(b"\n") and entry.seq >= self.first_seq
            except UNDECODABLE:
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
        """Write lines; after an error none of them is in the file."""
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
            self.blocks.append(Block(span=Span(), offset=self.size_bytes))
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
        """Write the compressed segment and return it; the caller then calls `remove`."""
        compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
        frames = [compress(self._bytes(block)) for block in self.blocks]
        hashes = sorted({hashed(name) for name in self.names})
        index = Index(self.span, [], hashes if len(self.names) <= MAX_NAMES else None)
        offset = 0
        for block, frame in zip(self.blocks, frames, strict=True):
            checksum = xxhash.xxh64_intdigest(frame)
            index.blocks.append(
                Block(span=block.span, offset=offset, size=len(frame), checksum=checksum)
            )
            offset += len(frame)
        encoded = msgspec.msgpack.encode(index)
        checksum = xxhash.xxh64_intdigest(encoded)
        head = HEAD.pack(SKIPPABLE, len(encoded) + HEAD.size - 8, checksum)
        place(self.path.with_name(self.path.name + ".zst"), b"".join([head, encoded, *frames]))
        return SealedSegment(self.path.with_name(self.path.name + ".zst"))

    def close(self) -> None:
        """Sync and close the file."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Delete the file after it was sealed."""
        os.close(self._fd)
        self._fd = -1
        self.path.unlink()


class SealedSegment(Segment):
    """A compressed segment, which does not change. Its index is read when needed.

    A damaged segment counts as empty; its file stays until the size limit deletes it.
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
            raise Corrupt(f"the index of {self.path} is damaged")
        self._frames_at = HEAD.size + len(encoded)
        return msgspec.msgpack.decode(encoded, type=Index)

    def read(self, block: Block) -> bytes:
        at = msgspec.structs.replace(block, offset=block.offset + self._frames_at)
        frame = self._bytes(at)
        if xxhash.xxh64_intdigest(frame) != block.checksum:
            raise Corrupt(f"a block of {self.path} is damaged")
        return zstandard.ZstdDecompressor().decompress(frame)


def load(file: Path) -> Segment | None:
    """Open a segment of an earlier process, sealed now if it was not; None if it is empty."""
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
    """Create a file atomically and sync it to disk."""
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
