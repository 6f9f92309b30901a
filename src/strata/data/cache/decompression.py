"""Compressed files: each is unpacked once per host, as a whole, into the host's cache.

Compressed data cannot be read at random, and unpacking it for every batch would cost more than
training. All workers of a host map the same unpacked file (see `host_cache`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from strata import extras
from strata.config import load_process
from strata.data.cache.dataset_files import FileMaps
from strata.data.cache.host_cache import shared_cache
from strata.data.formats.source import FileEntry, Mismatch
from strata.storage.direct_io import write_all

CODECS = {"zstd": "zstd", "zst": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}
WHOLE = "snappy"  # not a stream format: the caller must know the size
BLOCK_BYTES = 16 << 20


def with_compressed(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, and the same with each suffix of a compressed file."""
    return (*suffixes, *(f"{plain}.{each}" for plain in suffixes for each in CODECS))


class UnpackedMaps(FileMaps):
    """Files mapped into memory; the entry of a compressed file has its unpacked size."""

    def entry(self, name: str) -> FileEntry:
        """The entry of a file with its unpacked size."""
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
            found = f"has {at} bytes when unpacked"
            raise Mismatch(entry.name, f"{found}, but should have {entry.size_bytes}")

    def _blocks(self, name: str, codec: str, size_bytes: int = 0) -> Iterator[memoryview]:
        try:
            yield from blocks(self._files.path(name), codec, size_bytes)
        except (OSError, ValueError) as error:
            raise Mismatch(name, f"cannot be unpacked: {error}") from error


class _Unpacking:
    """A file that is unpacked here. Nothing is reported: its download, if any, reports itself."""

    def __init__(self, write: Callable[[int], None]) -> None:
        self.write = write

    def arrived(self) -> None: ...

    def shared(self) -> None: ...

    def failed(self, error: BaseException) -> None: ...


def codec_of(name: str) -> str | None:
    suffix = name.rpartition(".")[2]
    return WHOLE if suffix == WHOLE else CODECS.get(suffix)


def plain_name(name: str) -> str:
    """The name of a file without the suffix of its compression."""
    return name.rpartition(".")[0] if codec_of(name) else name


def blocks(path: Path, codec: str, size_bytes: int) -> Iterator[memoryview]:
    """The content of a compressed file, in blocks of some megabytes."""
    extras.check("pyarrow")
    import pyarrow as pa  # type: ignore[import-untyped]

    if codec == WHOLE:
        yield memoryview(pa.decompress(path.read_bytes(), size_bytes, codec))
        return
    with pa.CompressedInputStream(pa.OSFile(str(path)), codec) as stream:
        while block := stream.read_buffer(BLOCK_BYTES):
            yield memoryview(block)
