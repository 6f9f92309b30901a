"""One save, from captured to committed: claim, part, manifest.

A storage that does not answer is asked again, twice, a little later each time: the capture is still
there. What fails for good leaves nothing behind that anybody could take for a checkpoint.
"""

import logging
import time
from typing import Any

from msgspec import Struct

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.claims import drop_claim, own_claim, put_claim
from strata.checkpoint.format import MANIFEST_SUFFIX, Manifest, Part
from strata.checkpoint.parts import commit, write_part
from strata.checkpoint.retrying import retried
from strata.checkpoint.reuse import Saved, glances
from strata.checkpoint.spares import drop_spares, spare
from strata.checkpoint.staging import Capture
from strata.errors import StrataError, Unavailable
from strata.storage.base import StorageBackend

log = logging.getLogger(__name__)


class Progress(Struct, frozen=True):
    """How far a save has come."""

    checkpoint_id: str
    written_bytes: int
    total_bytes: int
    committed: bool


class Save:
    """What is in flight. `run` belongs to the background thread; the rest may be read any time."""

    def __init__(
        self,
        storage: StorageBackend,
        catalog: Catalog,
        checkpoint_id: str,
        step: int,
        epoch: int,
        metadata: dict[str, Any],
        capture: Capture,
        last: Saved | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.saved: Saved | None = None
        self._last = last
        self.failure: BaseException | None = None
        self._storage, self._catalog = storage, catalog
        self._step, self._epoch, self._metadata = step, epoch, metadata
        self._created_ns = time.time_ns()
        self._capture: Capture | None = capture
        self._total_bytes = capture.size_bytes
        self._written_bytes = 0
        self._committed = self._claimed = False
        self._claim = own_claim()

    def run(self) -> None:
        """Writes and commits; a failure is kept, not raised."""
        try:
            retried(self._write, self._clear)
            self._committed = True
        except BaseException as error:
            self.failure = error
            log.error("checkpoint %s was not saved: %s", self.checkpoint_id, error)
            self._remove()
        finally:
            self._capture = None  # staging memory is free for the next save

    def _clear(self, error: Unavailable) -> None:
        """Makes room for another try."""
        log.warning("checkpoint %s is tried again: %s", self.checkpoint_id, error)
        self._remove()
        try:
            drop_spares(self._storage)
        except StrataError as error:
            log.warning("no room could be made: %s", error)

    def _write(self) -> None:
        assert self._capture is not None
        put_claim(self._storage, self.checkpoint_id, self._claim)
        self._claimed = True
        part = write_part(
            self._storage,
            self.checkpoint_id,
            0,
            self._capture,
            recycle=spare(self._storage, 0),
            progress=self._note,
            last=self._last,
        )
        self.saved = Saved(self.checkpoint_id, part, glances(self._capture))
        commit(self._storage, self._manifest([part]))
        self._drop_claim()

    def _manifest(self, parts: list[Part]) -> Manifest:
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
            parts=parts,
        )

    def _drop_claim(self) -> None:
        try:
            drop_claim(self._storage, self.checkpoint_id)
        except StrataError as error:  # committed all the same; a sweep takes the claim
            log.warning("the claim of %s stays for now: %s", self.checkpoint_id, error)

    def _remove(self) -> None:
        """Takes back what was written. A manifest whose writing was not confirmed may be there all
        the same, so it goes first; while it cannot be deleted, the parts stay."""
        if not self._claimed:
            return
        try:
            self._storage.delete(self.checkpoint_id + MANIFEST_SUFFIX)
            self._storage.delete_folder(self.checkpoint_id)
            drop_claim(self._storage, self.checkpoint_id)
        except StrataError as error:
            log.warning("the remains of %s stay for now: %s", self.checkpoint_id, error)

    def _note(self, written_bytes: int) -> None:
        self._written_bytes = written_bytes

    def progress(self) -> Progress:
        return Progress(self.checkpoint_id, self._written_bytes, self._total_bytes, self._committed)

    def failure_to_raise(self) -> StrataError:
        """The failure, told as what did not happen."""
        told = f"checkpoint {self.checkpoint_id} was not saved"
        if isinstance(self.failure, StrataError):
            error: StrataError = type(self.failure)(
                f"{told}: {self.failure.message}", hint=self.failure.hint
            )
            return error
        return StrataError(f"{told}: {type(self.failure).__name__}: {self.failure}")
