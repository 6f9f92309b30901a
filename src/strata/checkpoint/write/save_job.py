"""One save after the capture: claim, part, manifest.

A write that fails is tried again twice, after increasing delays: the capture is still in memory. A
save that fails for good leaves nothing that could be mistaken for a checkpoint.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.cleanup import drop_spares, spare_for
from strata.checkpoint.manifest import MANIFEST_SUFFIX, CheckpointPart, Manifest
from strata.checkpoint.write.claims import drop_claim, own_claim, put_claim
from strata.checkpoint.write.part_writer import commit, write_part
from strata.checkpoint.write.staging import StateCapture
from strata.checkpoint.write.unchanged_tensors import LastSave, edge_checksums
from strata.errors import StrataError, Unavailable
from strata.storage.backend import StorageBackend

RETRY_DELAYS_S = (0.5, 2.0)

Result = TypeVar("Result")


def retried(attempt: Callable[[], Result], again: Callable[[Unavailable], None]) -> Result:
    """Call the function, with two retries after increasing delays; `again` is called with the error
    before each retry.
    """
    for delay_s in RETRY_DELAYS_S:
        try:
            return attempt()
        except Unavailable as error:
            again(error)
            time.sleep(delay_s * random.uniform(0.5, 1.5))
    return attempt()


log = logging.getLogger(__name__)


class SaveProgress(Struct, frozen=True):
    """The progress of a save."""

    checkpoint_id: str
    written_bytes: int
    total_bytes: int
    committed: bool


class SaveJob:
    """A save in flight. `run` is called by the background thread; the rest may be read by any
    thread.
    """

    def __init__(
        self,
        storage: StorageBackend,
        catalog: Catalog,
        checkpoint_id: str,
        step: int,
        epoch: int,
        metadata: dict[str, Any],
        metrics: dict[str, float],
        capture: StateCapture,
        last: LastSave | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.saved: LastSave | None = None
        self._last = last
        self.failure: BaseException | None = None
        self._storage, self._catalog = storage, catalog
        self._step, self._epoch, self._metadata = step, epoch, metadata
        self._metrics = metrics
        self._created_ns = time.time_ns()
        self._capture: StateCapture | None = capture
        self._total_bytes = capture.size_bytes
        self._written_bytes = 0
        self._committed = self._claimed = False
        self._claim = own_claim()

    def run(self) -> None:
        """Write and commit; an error is stored, not raised."""
        try:
            retried(self._write, self._clear)
            self._committed = True
        except BaseException as error:
            self.failure = error
            log.error("checkpoint %s was not saved: %s", self.checkpoint_id, error)
            self._remove()
        finally:
            self._capture = None  # the staging memory is free for the next save

    def _clear(self, error: Unavailable) -> None:
        """Free space for another attempt."""
        log.warning("retrying checkpoint %s: %s", self.checkpoint_id, error)
        self._remove()
        try:
            drop_spares(self._storage)
        except StrataError as error:
            log.warning("could not free space: %s", error)

    def _write(self) -> None:
        assert self._capture is not None
        put_claim(self._storage, self.checkpoint_id, self._claim)
        self._claimed = True
        part = write_part(
            self._storage,
            self.checkpoint_id,
            0,
            self._capture,
            recycle=spare_for(self._storage, 0),
            progress=self._note,
            last=self._last,
        )
        self.saved = LastSave(self.checkpoint_id, part, edge_checksums(self._capture))
        commit(self._storage, self._manifest([part]))
        self._drop_claim()

    def _manifest(self, parts: list[CheckpointPart]) -> Manifest:
        earlier = self._catalog.oldest_first()
        return Manifest(
            checkpoint_id=self.checkpoint_id,
            step=self._step,
            epoch=self._epoch,
            sequence=max((manifest.sequence for manifest in earlier), default=0) + 1,
            created_ns=self._created_ns,
            size_bytes=sum(part.size_bytes for part in parts),
            world_size=len(parts),
            metadata=self._metadata,
            metrics=self._metrics,
            parts=parts,
        )

    def _drop_claim(self) -> None:
        try:
            drop_claim(self._storage, self.checkpoint_id)
        except StrataError as error:  # committed anyway; a sweep deletes the claim
            log.warning("could not delete the claim of %s: %s", self.checkpoint_id, error)

    def _remove(self) -> None:
        """Delete what was written. A manifest whose write was not confirmed may exist, so it is
        deleted first; if that fails, the parts are kept.
        """
        if not self._claimed:
            return
        try:
            self._storage.delete(self.checkpoint_id + MANIFEST_SUFFIX)
            self._storage.delete_folder(self.checkpoint_id)
            drop_claim(self._storage, self.checkpoint_id)
        except StrataError as error:
            log.warning("could not delete the files of %s: %s", self.checkpoint_id, error)

    def _note(self, written_bytes: int) -> None:
        self._written_bytes = written_bytes

    def progress(self) -> SaveProgress:
        return SaveProgress(
            checkpoint_id=self.checkpoint_id,
            written_bytes=self._written_bytes,
            total_bytes=self._total_bytes,
            committed=self._committed,
        )

    def failure_to_raise(self) -> StrataError:
        """The stored error, with the checkpoint that was not saved."""
        message = f"checkpoint {self.checkpoint_id} was not saved"
        if isinstance(self.failure, StrataError):
            error: StrataError = type(self.failure)(
                f"{message}: {self.failure.message}", hint=self.failure.hint
            )
            return error
        return StrataError(f"{message}: {type(self.failure).__name__}: {self.failure}")
