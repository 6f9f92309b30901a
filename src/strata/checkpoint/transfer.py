"""Copies a committed checkpoint from one storage to another: parts first, the manifest last.

Without its manifest the copy does not exist, so an interrupted copy is simply repeated. Parts that
were copied completely are not copied again, nor are files with unchanged tensors that the target
already has in another checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.manifest import MANIFEST_SUFFIX, Manifest
from strata.checkpoint.write.part_writer import commit
from strata.errors import Corrupt, NotFound, UnknownKind
from strata.storage.backend import LinkingStorage, StorageBackend

COPY_BYTES = 16 * 1024 * 1024
LOOK_BACK = 3


def copy_checkpoint(
    source: StorageBackend,
    target: StorageBackend,
    manifest: Manifest,
    progress: Callable[[int], None] = lambda copied_bytes: None,
) -> None:
    """Copy a checkpoint from one storage to another."""
    if target.exists(manifest.checkpoint_id + MANIFEST_SUFFIX):
        return
    copied_bytes = 0
    for file in files_of(manifest):
        name = f"{manifest.checkpoint_id}/{file}"
        size_bytes = source.head(name).size_bytes
        if not (_is_there(target, name, size_bytes) or _linked(target, manifest, file)):
            blocks = _blocks(source, name, copied_bytes, progress)
            target.put_stream(name, blocks, size_bytes=size_bytes)
        copied_bytes += size_bytes
        progress(copied_bytes)
    commit(target, manifest)


def files_of(manifest: Manifest) -> list[str]:
    """All files of a checkpoint: its parts, and files of earlier checkpoints that it refers to."""
    kept = {tensor.file for part in manifest.parts for tensor in part.tensors if tensor.file}
    return [part.file for part in manifest.parts] + sorted(kept)


def _linked(target: StorageBackend, manifest: Manifest, file: str) -> bool:
    """Link a file with unchanged tensors from a checkpoint that the target already has."""
    if not isinstance(target, LinkingStorage) or any(part.file == file for part in manifest.parts):
        return False
    wanted, catalog = tensors_in(manifest, file), Catalog(target)
    for other in catalog.newest_ids()[:LOOK_BACK]:
        with suppress(NotFound, Corrupt, UnknownKind):
            for each in files_of(earlier := catalog.manifest(other)):
                if wanted <= tensors_in(earlier, each):
                    return target.link(f"{other}/{each}", f"{manifest.checkpoint_id}/{file}")
    return False


def tensors_in(manifest: Manifest, file: str) -> set[tuple[str, int, tuple[str, ...]]]:
    """The content of a file: each tensor's name, offset and checksums."""
    return {
        (tensor.name, tensor.offset, tuple(tensor.xxh3))
        for part in manifest.parts
        for tensor in part.tensors
        if (tensor.file or part.file) == file
    }


def _is_there(storage: StorageBackend, name: str, size_bytes: int) -> bool:
    try:
        return storage.head(name).size_bytes == size_bytes
    except NotFound:
        return False


def _blocks(
    storage: StorageBackend, name: str, before_bytes: int, progress: Callable[[int], None]
) -> Iterator[bytearray]:
    """An object in large blocks; each has its own memory, since it is written in the background."""
    with storage.open(name) as reader:
        for at in range(0, reader.size_bytes, COPY_BYTES):
            block = bytearray(min(COPY_BYTES, reader.size_bytes - at))
            reader.read_into(at, [memoryview(block)])
            yield block
            progress(before_bytes + at + len(block))
