"""What stays and what goes.

*Retention* keeps the `keep_count` checkpoints committed last. It never takes the one with the
highest step, which is what `latest` answers, nor one that is being read.

*Sweeping* removes what dead writers left. A folder without a manifest is in flight while it has a
claim; without both it is garbage. The claim is looked for first, then the manifest: a checkpoint
committed between the two looks is seen. Only folders with the name and the content of a
checkpoint are touched, whatever else lies there.
"""

import logging
import time
from collections.abc import Collection

from strata.checkpoint.catalog import Catalog, claimed_ids, committed_ids, is_id
from strata.checkpoint.claims import drop_claim, standing
from strata.checkpoint.format import CLAIM_SUFFIX, MANIFEST_SUFFIX, PART_FILE, Manifest
from strata.checkpoint.spares import drop_spares, retire
from strata.errors import StrataError
from strata.storage.base import StorageBackend

log = logging.getLogger(__name__)

SWEEP_AGE_S = 6 * 3600.0


def expired(manifests: list[Manifest], keep_count: int, pinned: Collection[str]) -> list[Manifest]:
    """Which of the committed checkpoints (oldest step first) are to go, oldest commit first."""
    if not manifests:
        return []
    by_commit = sorted(manifests, key=lambda m: (m.sequence, m.created_ns))
    latest = manifests[-1].checkpoint_id
    surplus = by_commit[: max(len(by_commit) - keep_count, 0)]
    return [m for m in surplus if m.checkpoint_id != latest and m.checkpoint_id not in pinned]


class Keeper:
    """Retention and sweeping for one storage; `recycle` leaves `spares` to write over."""

    def __init__(self, storage: StorageBackend, keep_count: int, recycle: bool) -> None:
        self._storage = storage
        self._keep_count = keep_count
        self._recycle = recycle

    def retain(self, catalog: Catalog, pinned: Collection[str]) -> list[str]:
        """Expires what is too many; returns the ids that went."""
        gone = []
        for manifest in expired(catalog.oldest_first(), self._keep_count, pinned):
            if self._being_read(manifest):
                continue
            retire(self._storage, manifest.checkpoint_id, recycle=self._recycle)
            gone.append(manifest.checkpoint_id)
        return gone

    def _being_read(self, manifest: Manifest) -> bool:
        return any(
            self._storage.in_use(f"{manifest.checkpoint_id}/{part.file}") for part in manifest.parts
        )

    def sweep(self, older_than_s: float = SWEEP_AGE_S) -> list[str]:
        """Removes what dead writers left; returns the ids.

        Whether a writer on another machine lives cannot be known; there only age decides.
        """
        drop_spares(self._storage)
        listing = self._storage.list()
        ages = {found.name: time.time() - found.modified_s for found in listing.objects}
        committed = set(committed_ids(listing))
        gone = []
        for each in claimed_ids(listing):
            state = standing(self._storage, each)
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
            log.warning("left-over uploads stay where they are: %s", error)
