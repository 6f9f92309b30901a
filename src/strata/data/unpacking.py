"""Files that are stored compressed: each is unpacked once a host, whole, into the host's cache.

What is compressed cannot be read at random, and unpacking it for every batch would cost more than
training. All workers of a host map the same unpacked file (see `cache`).
"""

import bz2
import os
from functools import partial
from pathlib import Path

from strata.config import load_process
from strata.data.base import FileEntry, Mismatch
from strata.data.cache import shared_cache
from strata.data.files import Maps

CODECS = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "snappy": "snappy", "bz2": "bz2"}
"""By a file's suffix, the name that Arrow has for what it is compressed with."""


class Unpacked(Maps):
    """Files mapped into memory; the entry of a compressed one has the size it is unpacked to."""

    def _path(self, entry: FileEntry) -> Path:
        codec = CODECS.get(entry.name.rpartition(".")[2])
        if codec is None:
            return super()._path(entry)
        stamp = self._files.stamp(entry.name)
        return shared_cache(load_process({})).path(
            f"{self._files.place}/{entry.name}/{stamp}/unpacked",
            entry.size_bytes,
            partial(self._unpack, entry, codec),
            partial(self._drop, entry.name),
        )

    def _unpack(self, entry: FileEntry, codec: str, descriptor: int) -> None:
        packed = self._files.path(entry.name).read_bytes()
        try:
            whole = unpacked(packed, codec, entry.size_bytes)
        except (OSError, EOFError, ValueError) as error:
            raise Mismatch(entry.name, f"cannot be unpacked: {error}") from error
        if len(whole) != entry.size_bytes:
            found = f"has {len(whole)} bytes when it is unpacked, and should have"
            raise Mismatch(entry.name, f"{found} {entry.size_bytes}")
        os.pwrite(descriptor, whole, 0)


def unpacked(packed: bytes, codec: str, size_bytes: int) -> memoryview:
    if codec == "bz2":
        return memoryview(bz2.decompress(packed))
    import pyarrow as pa  # type: ignore[import-untyped]

    return memoryview(pa.decompress(packed, size_bytes, codec))
