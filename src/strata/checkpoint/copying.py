"""Copying a committed checkpoint from one storage to another: parts first, the manifest last.

Until the manifest is there the copy does not exist, so a copy that broke off is simply made again;
parts that arrived whole are not sent a second time.
"""

from collections.abc import Callable, Iterator

from strata.checkpoint.format import MANIFEST_SUFFIX, Manifest
from strata.checkpoint.parts import commit
from strata.errors import NotFound
from strata.storage.base import StorageBackend

COPY_BYTES = 16 * 1024 * 1024


def copy_checkpoint(
    source: StorageBackend,
    target: StorageBackend,
    manifest: Manifest,
    progress: Callable[[int], None] = lambda copied_bytes: None,
) -> None:
    """Makes a checkpoint that lies in one storage lie in another as well."""
    if target.exists(manifest.checkpoint_id + MANIFEST_SUFFIX):
        return
    copied_bytes = 0
    for file in files_of(manifest):
        name = f"{manifest.checkpoint_id}/{file}"
        size_bytes = source.head(name).size_bytes
        if not _is_there(target, name, size_bytes):
            blocks = _blocks(source, name, copied_bytes, progress)
            target.put_stream(name, blocks, size_bytes=size_bytes)
        copied_bytes += size_bytes
        progress(copied_bytes)
    commit(target, manifest)


def files_of(manifest: Manifest) -> list[str]:
    """Every file that holds some of a checkpoint: its parts, and what it keeps of earlier ones."""
    kept = {tensor.file for part in manifest.parts for tensor in part.tensors if tensor.file}
    return [part.file for part in manifest.parts] + sorted(kept)


def _is_there(storage: StorageBackend, name: str, size_bytes: int) -> bool:
    try:
        return storage.head(name).size_bytes == size_bytes
    except NotFound:
        return False


def _blocks(
    storage: StorageBackend, name: str, before_bytes: int, progress: Callable[[int], None]
) -> Iterator[bytearray]:
    """An object in large pieces; each has memory of its own, since it is written meanwhile."""
    with storage.open(name) as reader:
        for at in range(0, reader.size_bytes, COPY_BYTES):
            block = bytearray(min(COPY_BYTES, reader.size_bytes - at))
            reader.read_into(at, [memoryview(block)])
            yield block
            progress(before_bytes + at + len(block))
