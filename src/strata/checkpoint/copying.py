"""Copying a committed checkpoint from one storage to another: parts first, the manifest last.

Until the manifest is there the copy does not exist, so a copy that broke off is simply made again;
parts that arrived whole are not sent a second time, nor are files with unchanged tensors that the
target has in another checkpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.format import MANIFEST_SUFFIX, Manifest
from strata.checkpoint.parts import commit
from strata.errors import Corrupt, NotFound, UnknownKind
from strata.storage.base import Linking, StorageBackend

COPY_BYTES = 16 * 1024 * 1024
LOOK_BACK = 3


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
        if not (_is_there(target, name, size_bytes) or _linked(target, manifest, file)):
            blocks = _blocks(source, name, copied_bytes, progress)
            target.put_stream(name, blocks, size_bytes=size_bytes)
        copied_bytes += size_bytes
        progress(copied_bytes)
    commit(target, manifest)


def files_of(manifest: Manifest) -> list[str]:
    """Every file that holds some of a checkpoint: its parts, and what it keeps of earlier ones."""
    kept = {tensor.file for part in manifest.parts for tensor in part.tensors if tensor.file}
    return [part.file for part in manifest.parts] + sorted(kept)


def _linked(target: StorageBackend, manifest: Manifest, file: str) -> bool:
    """Takes a file with unchanged tensors from a checkpoint that lies in the target already."""
    if not isinstance(target, Linking) or any(part.file == file for part in manifest.parts):
        return False
    wanted, catalog = tensors_in(manifest, file), Catalog(target)
    for other in catalog.newest_ids()[:LOOK_BACK]:
        with suppress(NotFound, Corrupt, UnknownKind):
            for each in files_of(earlier := catalog.manifest(other)):
                if wanted <= tensors_in(earlier, each):
                    return target.link(f"{other}/{each}", f"{manifest.checkpoint_id}/{file}")
    return False


def tensors_in(manifest: Manifest, file: str) -> set[tuple[str, int, tuple[str, ...]]]:
    """What a file holds: each tensor's name, place and checksums."""
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
    """An object in large pieces; each has memory of its own, since it is written meanwhile."""
    with storage.open(name) as reader:
        for at in range(0, reader.size_bytes, COPY_BYTES):
            block = bytearray(min(COPY_BYTES, reader.size_bytes - at))
            reader.read_into(at, [memoryview(block)])
            yield block
            progress(before_bytes + at + len(block))
