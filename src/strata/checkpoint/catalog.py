"""The list of checkpoints, always read from storage.

Every process sees what any other committed. Manifests never change, so a manifest that was read is
cached by its id for as long as it is listed.
"""

import logging

from strata.checkpoint.manifest import (
    CHECKPOINT_ID,
    CLAIM_SUFFIX,
    MANIFEST_SUFFIX,
    CheckpointInfo,
    Manifest,
    decode_manifest,
)
from strata.errors import Corrupt, InvalidArgument, NotFound, UnknownKind
from strata.storage.backend import ObjectListing, StorageBackend

log = logging.getLogger(__name__)


class Catalog:
    """The committed checkpoints of one storage."""

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self._known: dict[str, Manifest] = {}

    def manifest(self, checkpoint_id: str) -> Manifest:
        """The manifest of a checkpoint, from the cache or from storage."""
        known = self._known.get(checkpoint_id)
        return known if known is not None else self.read(checkpoint_id)

    def read(self, checkpoint_id: str) -> Manifest:
        if not checkpoint_id or "/" in checkpoint_id:
            raise InvalidArgument(
                f"{checkpoint_id!r} is not a checkpoint id",
                hint="strata checkpoints ls lists them",
            )
        name = checkpoint_id + MANIFEST_SUFFIX
        try:
            data = self._storage.get(name)
        except NotFound as error:
            self._known.pop(checkpoint_id, None)
            raise NotFound(
                f"there is no checkpoint {checkpoint_id!r} in {self._storage.url}",
                hint="all_checkpoints() lists those that exist",
            ) from error
        manifest = decode_manifest(data, f"{self._storage.url}/{name}")
        if manifest.checkpoint_id != checkpoint_id:
            raise Corrupt(
                f"the manifest {self._storage.url}/{name} is that of another checkpoint, "
                f"{manifest.checkpoint_id[:80]!r}",
                hint="use another checkpoint",
            )
        self._known[checkpoint_id] = manifest
        return manifest

    def ids(self) -> list[str]:
        """Every committed checkpoint, in no particular order."""
        ids = committed_ids(self._storage.list())
        self._known = {each: self._known[each] for each in ids if each in self._known}
        return ids

    def oldest_first(self) -> list[Manifest]:
        """Manifests by step; those of one step in the order of their commits."""
        found = []
        for each in self.ids():
            try:
                found.append(self.manifest(each))
            except NotFound:
                continue  # deleted by retention meanwhile
            except (Corrupt, UnknownKind) as error:
                log.warning("skipped checkpoint %s: %s", each, error)
        return sorted(found, key=lambda m: (m.step, m.sequence, m.created_ns, m.checkpoint_id))

    def newest_ids(self) -> list[str]:
        """Ids, newest first. The step is in the id, so manifests are read only to break ties."""
        by_step: dict[int, list[str]] = {}
        for each in self.ids():
            by_step.setdefault(step_of(each), []).append(each)
        ordered = []
        for step in sorted(by_step, reverse=True):
            same = by_step[step]
            ordered += same if len(same) == 1 else sorted(same, key=self._order, reverse=True)
        return ordered

    def _order(self, checkpoint_id: str) -> tuple[int, int]:
        try:
            manifest = self.manifest(checkpoint_id)
        except (NotFound, Corrupt, UnknownKind):
            return (-1, 0)
        return (manifest.sequence, manifest.created_ns)


def committed_ids(listing: ObjectListing) -> list[str]:
    names = [found.name for found in listing.objects if found.name.endswith(MANIFEST_SUFFIX)]
    return [each for each in (name.removesuffix(MANIFEST_SUFFIX) for name in names) if is_id(each)]


def claimed_ids(listing: ObjectListing) -> list[str]:
    names = [found.name for found in listing.objects if found.name.endswith(CLAIM_SUFFIX)]
    return [each for each in (name.removesuffix(CLAIM_SUFFIX) for name in names) if is_id(each)]


def is_id(text: str) -> bool:
    return CHECKPOINT_ID.fullmatch(text) is not None


def step_of(checkpoint_id: str) -> int:
    found = CHECKPOINT_ID.fullmatch(checkpoint_id)
    assert found is not None
    return int(found[1])


def info_of(manifest: Manifest, url: str) -> CheckpointInfo:
    return CheckpointInfo(
        checkpoint_id=manifest.checkpoint_id,
        step=manifest.step,
        epoch=manifest.epoch,
        path=f"{url}/{manifest.checkpoint_id}",
        size_bytes=manifest.whole_bytes,
        created_at=manifest.created_ns / 1e9,
        metadata=manifest.metadata,
        new_bytes=manifest.size_bytes,
        metrics=manifest.metrics,
    )
