"""Files that are stored compressed: each is unpacked once a host, whole, into the host's cache.

What is compressed cannot be read at random, and unpacking it for every batch would cost more than
training. All workers of a host map the same unpacked file (see `cache`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from strata.config import load_process
from strata.data.base import FileEntry, Mismatch
from strata.data.cache import shared_cache, write_all
from strata.data.files import Maps

CODECS = {"zstd": "zstd", "zst": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}
WHOLE = "snappy"  # not a stream: whoever unpacks it knows the size
BLOCK_BYTES = 16 << 20


def packed_or_not(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, and those of such files when they are compressed."""
    return (*suffixes, *(f"{plain}.{each}" for plain in suffixes for each in CODECS))


class Unpacked(Maps):
    """Files mapped into memory; the entry of a compressed one has the size it is unpacked to."""

    def entry(self, name: str) -> FileEntry:
        """A file as it is when it is unpacked."""
        codec = codec_of(name)
        if codec is None:
            return self._files.entry(name)
        return FileEntry(name, sum(map(len, self._blocks(name, codec))))

    def path(self, entry: FileEntry) -> Path:
        codec = codec_of(entry.name)
        if codec is None:
            return super().path(entry)
        stamp = self._files.stamp(entry.name)
        return shared_cache(load_process({})).path(
            f"{self._files.place}/{entry.name}/{stamp}/unpacked",
            entry.size_bytes,
            lambda: _Unpacking(partial(self._unpack, entry, codec)),
            partial(self._drop, entry.name),
        )

    def _unpack(self, entry: FileEntry, codec: str, descriptor: int) -> None:
        at = 0
        for block in self._blocks(entry.name, codec, entry.size_bytes):
            at += len(block)
            if at <= entry.size_bytes:
                write_all(descriptor, block, at - len(block))
        if at != entry.size_bytes:
            found = f"has {at} bytes when it is unpacked"
            raise Mismatch(entry.name, f"{found}, and should have {entry.size_bytes}")

    def _blocks(self, name: str, codec: str, size_bytes: int = 0) -> Iterator[memoryview]:
        try:
            yield from blocks(self._files.path(name), codec, size_bytes)
        except (OSError, ValueError) as error:
            raise Mismatch(name, f"cannot be unpacked: {error}") from error


class _Unpacking:
    """A file that is unpacked here; nothing is downloaded for it that is not told elsewhere."""

    def __init__(self, bring: Callable[[int], None]) -> None:
        self.bring = bring

    def arrived(self) -> None:
        """Nobody is told."""

    def shared(self) -> None:
        """Nobody is told."""

    def failed(self, error: BaseException) -> None:
        """The error is raised."""


def codec_of(name: str) -> str | None:
    suffix = name.rpartition(".")[2]
    return WHOLE if suffix == WHOLE else CODECS.get(suffix)


def plain_name(name: str) -> str:
    """The name of a file without what tells that it is compressed."""
    return name.rpartition(".")[0] if codec_of(name) else name


def blocks(path: Path, codec: str, size_bytes: int) -> Iterator[memoryview]:
    """What a compressed file holds, some megabytes at a time."""
    import pyarrow as pa  # type: ignore[import-untyped]

    if codec == WHOLE:
        yield memoryview(pa.decompress(path.read_bytes(), size_bytes, codec))
        return
    with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
        while block := stream.read_buffer(BLOCK_BYTES):
            yield memoryview(block)
