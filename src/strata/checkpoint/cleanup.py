"""Deletes old checkpoints and the files of failed saves.

*Retention* keeps the `keep_count` checkpoints committed last, and those that `keep_every` and
`keep_best` select (`core/checkpoints/keep_reasons`). It never deletes the one with the highest
step, which `latest` returns, nor one that is being read.

*Sweeping* deletes what dead writers left. A folder without a manifest is being written while it has
a claim; without both it is garbage. The claim is checked before the manifest, so that a checkpoint
committed between the two checks is seen. Only folders with the name and the content of a checkpoint
are touched.

*Spare files* are files of an expired checkpoint that the next save overwrites. Overwriting blocks
that a file already has takes 0.6 to 0.8 of the time of writing new ones. So on a local disk the
parts of the checkpoint that expired last are renamed, by rank:

    spare/part-00003.safetensors    what rank 3 may overwrite

The manifest is deleted first, durably: from then on the checkpoint does not exist and its files are
unused. The storage does the rest: one writer gets a spare, by rename; a spare that is still being
read, or that holds tensors of another checkpoint, is deleted instead. The cost is the space of one
more checkpoint.
"""

import logging
import time
from collections.abc import Collection

from strata.checkpoint.catalog import Catalog, claimed_ids, committed_ids, is_id
from strata.checkpoint.manifest import CLAIM_SUFFIX, MANIFEST_SUFFIX, PART_FILE, Manifest
from strata.checkpoint.write.claims import drop_claim, writer_state
from strata.checkpoint.write.part_writer import part_file
from strata.core.checkpoints.keep_reasons import best, first_of_each
from strata.core.task_spec import Retention
from strata.errors import StrataError
from strata.storage.backend import LinkingStorage, StorageBackend

SPARES = "spare"
PART_PREFIX, PART_SUFFIX = "part-", ".safetensors"


def spare_for(storage: StorageBackend, rank: int) -> str | None:
    """The object that a rank's next part may overwrite, or None."""
    return f"{SPARES}/{part_file(rank)}" if storage.recycles else None


def delete_files(storage: StorageBackend, checkpoint_id: str, *, recycle: bool) -> None:
    """Delete the manifest, then the files; parts may become spares."""
    storage.delete(checkpoint_id + MANIFEST_SUFFIX)
    if recycle and storage.recycles and isinstance(storage, LinkingStorage):
        drop_spares(storage)
        for found in storage.list(checkpoint_id).objects:
            file = found.name.removeprefix(f"{checkpoint_id}/")
            if file.startswith(PART_PREFIX) and file.endswith(PART_SUFFIX):
                storage.link(found.name, f"{SPARES}/{file}")
    storage.delete_folder(checkpoint_id)


def drop_spares(storage: StorageBackend) -> None:
    """Delete all spares."""
    if storage.recycles:
        storage.delete_folder(SPARES)


log = logging.getLogger(__name__)

SWEEP_AGE_S = 6 * 3600.0


def expired(
    manifests: list[Manifest], retention: Retention, reading: Collection[str]
) -> list[Manifest]:
    """The committed checkpoints (oldest step first) to delete, oldest commit first."""
    by_commit = sorted(manifests, key=lambda m: (m.sequence, m.created_ns))
    newest = manifests[::-1]
    kept = [*newest[:1], *by_commit[-retention.keep_count :], *best(newest, retention)]
    kept += first_of_each(newest, retention.keep_every)
    ids = {*reading, *(manifest.checkpoint_id for manifest in kept)}
    return [manifest for manifest in by_commit if manifest.checkpoint_id not in ids]


class CheckpointCleaner:
    """Retention and sweeping for one storage; `recycle` keeps files of the last one as `spares`."""

    def __init__(self, storage: StorageBackend, retention: Retention, recycle: bool) -> None:
        self._storage = storage
        self._retention = retention
        self._recycle = recycle

    def retain(self, catalog: Catalog, reading: Collection[str]) -> list[str]:
        """Delete surplus checkpoints; return their ids."""
        gone = []
        for manifest in expired(catalog.oldest_first(), self._retention, reading):
            if self._being_read(manifest):
                continue
            delete_files(self._storage, manifest.checkpoint_id, recycle=self._recycle)
            gone.append(manifest.checkpoint_id)
        return gone

    def _being_read(self, manifest: Manifest) -> bool:
        return any(
            self._storage.in_use(f"{manifest.checkpoint_id}/{part.file}") for part in manifest.parts
        )

    def sweep(self, older_than_s: float = SWEEP_AGE_S) -> list[str]:
        """Delete what dead writers left; return the ids.

        Whether a writer on another machine is alive cannot be known; there only the age decides.
        """
        drop_spares(self._storage)
        listing = self._storage.list()
        ages = {found.name: time.time() - found.modified_s for found in listing.objects}
        committed = set(committed_ids(listing))
        gone = []
        for each in claimed_ids(listing):
            state = writer_state(self._storage, each)
            old = ages[each + CLAIM_SUFFIX] > older_than_s
            if state == "dead" or (state == "unknown" and old):
                if each not in committed and not self._storage.exists(each + MANIFEST_SUFFIX):
                    self._storage.delete_folder(each)
                    gone.append(each)
                drop_claim(self._storage, each)
        known = {*claimed_ids(listing), *committed}
        for folder in listing.folders:
            if folder not in known and self._is_garbage(folder):
                self._storage.delete_folder(folder)
                gone.append(folder)
        self._abort_uploads(older_than_s)
        return gone

    def _is_garbage(self, folder: str) -> bool:
        if not is_id(folder):
            return False
        if self._storage.exists(folder + CLAIM_SUFFIX):
            return False
        if self._storage.exists(folder + MANIFEST_SUFFIX):
            return False
        files = [found.name.removeprefix(f"{folder}/") for found in self._storage.walk(folder)]
        return all(PART_FILE.fullmatch(file) for file in files)

    def _abort_uploads(self, older_than_s: float) -> None:
        try:
            self._storage.abort_uploads(older_than_s)
        except StrataError as error:
            log.warning("could not abort left-over uploads: %s", error)
