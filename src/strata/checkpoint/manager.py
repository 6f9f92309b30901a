"""Save a state without stopping, load it anywhere; works without a coordinator.

    manager = CheckpointManager("checkpoints", keep_count=5)
    manager.save({"model": weights, "step": 7}, step=7)      # returns after one copy in memory
    state = manager.load()                                   # newest, verified

One save at a time is in flight, in one set of staging memory. A second one meanwhile waits for
the first, or is skipped, as `when_busy` says; either is logged. What goes wrong in the background
is raised by the next `save`, `wait_pending` or `close`, once. A failed save leaves nothing: the
checkpoint before stays the latest.
"""

import logging
import os
import secrets
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from strata.checkpoint.catalog import Catalog, info_of, is_id
from strata.checkpoint.format import CheckpointInfo
from strata.checkpoint.reader import CheckpointReader
from strata.checkpoint.retention import SWEEP_AGE_S, Keeper
from strata.checkpoint.reuse import Saved
from strata.checkpoint.saving import Progress, Save
from strata.checkpoint.spares import drop_spares
from strata.checkpoint.staging import Capture, Staging
from strata.checkpoint.tree import flatten
from strata.config import Settings, load_process
from strata.errors import Corrupt, InvalidArgument, NotFound, StrataError, UnknownKind
from strata.storage.base import StorageBackend
from strata.storage.opening import open_storage

log = logging.getLogger(__name__)

MAX_STEP = 10**18
WhenBusy = Literal["wait", "skip"]


class CheckpointManager:
    """The checkpoints of one place: a folder or `s3://bucket/prefix`.

    `keep_count` is how many stay; `when_busy` what a save does while one is in flight; `recycle`
    whether files of an expired checkpoint are written over (local disks, costs the space of one).
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StorageBackend,
        keep_count: int = 5,
        *,
        when_busy: WhenBusy = "wait",
        recycle: bool = True,
        settings: Settings | None = None,
    ) -> None:
        if keep_count < 1:
            raise InvalidArgument(f"keep_count is {keep_count}", hint="keep at least one")
        if when_busy not in ("wait", "skip"):
            raise InvalidArgument(f"when_busy is {when_busy!r}", hint="use 'wait' or 'skip'")
        if isinstance(path, str | os.PathLike):
            path = open_storage(path, settings or load_process({}))
        self.storage: StorageBackend = path
        self.loaded: CheckpointInfo | None = None
        self._when_busy = when_busy
        self._staging = Staging()
        self._catalog = Catalog(self.storage)
        self._keeper = Keeper(self.storage, keep_count, recycle)
        self._pins: Counter[str] = Counter()
        self._saving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._save: Save | None = None
        self._swept = False
        self._last: Saved | None = None

    def prepare(self, state: object) -> None:
        """Makes the staging memory ready, so that the first save is as quick as the others."""
        self._staging.prepare_for([*flatten(state).sources.values()])

    def save(
        self,
        state: object,
        step: int,
        epoch: int = 0,
        metadata: dict[str, Any] | None = None,
        *,
        checkpoint_id: str | None = None,
    ) -> str | None:
        """Captures a state and returns the checkpoint's id; the rest happens in the background.

        The state is bytes, or dicts, lists and tuples of arrays, tensors and plain values. None
        means that the save was skipped because another was in flight.
        """
        checkpoint_id = checked(step, epoch, metadata, checkpoint_id)
        with self._saving:
            if self.busy:
                if self._when_busy == "skip":
                    log.warning("step %d is not saved: a save is still in flight", step)
                    return None
                begun = time.monotonic()
                self._finish()
                log.warning("step %d waited %.2f s for a save", step, time.monotonic() - begun)
            self._raise_failure()
            labels = {"checkpoint": checkpoint_id, "step": str(step), "epoch": str(epoch)}
            capture = self._staging.begin(flatten(state), labels)
            self._save = Save(
                self.storage,
                self._catalog,
                checkpoint_id,
                step,
                epoch,
                metadata or {},
                capture,
                self._last,
            )
            self._begin(self._save, capture)
            return checkpoint_id

    def _begin(self, save: Save, capture: Capture) -> None:
        """Copies the state, while a thread writes it; what cannot be copied is not saved."""
        # Not a daemon: a script that ends right after saving still gets its checkpoint.
        thread = threading.Thread(target=self._run, args=(save,), name="strata-save")
        try:
            thread.start()
            self._thread = thread
            capture.fill()
        except BaseException as error:
            capture.abandon(error)
            self._finish()
            self._save = None
            raise

    def _run(self, save: Save) -> None:
        save.run()
        if save.failure is None:
            self._last = save.saved
            self._tidy()

    def _tidy(self) -> None:
        """After a commit; the checkpoint is safe, so whatever fails here is only reported."""
        try:
            gone = [] if self._swept else self._keeper.sweep()
            self._swept = True
            gone += self._keeper.retain(self._catalog, {*self._pins})
            if gone:
                log.info("removed %s", ", ".join(gone))
        except Exception as error:
            log.warning("old checkpoints stay for now: %s", error)

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def progress(self) -> Progress | None:
        """How far the save in flight, or else the last one, has come."""
        return self._save.progress() if self._save is not None else None

    def wait_pending(self) -> None:
        """Waits until what was saved is committed; raises what went wrong."""
        with self._saving:
            self._finish()
            self._raise_failure()

    def _finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _raise_failure(self) -> None:
        if self._save is not None and self._save.failure is not None:
            save, self._save = self._save, None
            raise save.failure_to_raise() from save.failure

    def latest(self) -> CheckpointInfo | None:
        """The committed checkpoint with the highest step, whoever saved it."""
        for checkpoint_id in self._catalog.newest_ids():
            try:
                return self._info(checkpoint_id)
            except NotFound:
                continue  # expired between listing and reading
            except (Corrupt, UnknownKind) as error:
                log.warning("%s is passed over: %s", checkpoint_id, error)
        return None

    get_latest = latest

    def get_by_step(self, step: int) -> CheckpointInfo | None:
        """The checkpoint of a step; of several the one committed last."""
        found = [m for m in self._catalog.oldest_first() if m.step == step]
        return info_of(found[-1], self.storage.url) if found else None

    def all_checkpoints(self) -> list[CheckpointInfo]:
        """Every committed checkpoint, the oldest step first."""
        return [info_of(manifest, self.storage.url) for manifest in self._catalog.oldest_first()]

    def load(self, checkpoint_id: str | None = None, *, into: Any = None) -> Any:
        """A state, verified: the newest, or the one named.

        Without an id, a damaged checkpoint is passed over for the one before it, with a warning;
        `loaded` says which it was. With `into`, arrays of that state are filled in place and
        returned; when nothing can be loaded their content is undefined.
        """
        if checkpoint_id is not None:
            return self._load(checkpoint_id, into)
        failure: StrataError | None = None
        tried: set[str] = set()
        # Listed anew after each failure: one that expired meanwhile has a newer one instead.
        while untried := [each for each in self._catalog.newest_ids() if each not in tried]:
            tried.add(untried[0])
            try:
                return self._load(untried[0], into)
            except (Corrupt, NotFound, UnknownKind) as error:
                log.warning("checkpoint %s is passed over: %s", untried[0], error)
                failure = failure or error
        if failure is not None:
            raise failure
        raise NotFound(
            f"there is no checkpoint in {self.storage.url}",
            hint="ask latest() first: it answers None where there is none",
        )

    def _load(self, checkpoint_id: str, into: Any) -> Any:
        with self.open(checkpoint_id) as reader:
            state = reader.load(into)
            self.loaded = info_of(reader.manifest, self.storage.url)
            return state

    def open(self, checkpoint_id: str | None = None) -> CheckpointReader:
        """A checkpoint to read lazily, by tensor or by slice; it stays until closed."""
        if checkpoint_id is None:
            newest = self.latest()
            if newest is None:
                raise NotFound(
                    f"there is no checkpoint in {self.storage.url}",
                    hint="check the path, or save one first",
                )
            checkpoint_id = newest.checkpoint_id
        pinned = checkpoint_id
        self._pins[pinned] += 1
        try:
            manifest = self._catalog.read(pinned)
        except BaseException:
            self._unpin(pinned)
            raise
        return CheckpointReader(self.storage, manifest, lambda: self._unpin(pinned))

    def _unpin(self, checkpoint_id: str) -> None:
        self._pins[checkpoint_id] -= 1
        if self._pins[checkpoint_id] <= 0:
            del self._pins[checkpoint_id]

    def _info(self, checkpoint_id: str) -> CheckpointInfo:
        return info_of(self._catalog.manifest(checkpoint_id), self.storage.url)

    def sweep(self, older_than_s: float = SWEEP_AGE_S) -> list[str]:
        """Removes what dead writers left behind; returns their ids."""
        return self._keeper.sweep(older_than_s)

    def close(self) -> None:
        """Waits for the save in flight and gives the memory back; raises what went wrong."""
        try:
            self.wait_pending()
        finally:
            drop_spares(self.storage)
            self._staging.close()
            self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def checked(
    step: int, epoch: int, metadata: dict[str, Any] | None, checkpoint_id: str | None
) -> str:
    """The id to use, when everything about the request makes sense."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < MAX_STEP:
        raise InvalidArgument(f"step is {step!r}", hint="count the applied steps, from 0")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch < MAX_STEP:
        raise InvalidArgument(f"epoch is {epoch!r}", hint="count epochs from 0")
    try:
        msgspec.json.encode(metadata)
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidArgument(
            f"metadata is not JSON: {error}", hint="use strings, numbers, lists and dicts"
        ) from error
    if checkpoint_id is None:
        return f"step-{step:08d}-{secrets.token_hex(4)}"
    if not is_id(checkpoint_id):
        raise InvalidArgument(
            f"{checkpoint_id!r} cannot be the id of a checkpoint", hint="use step-00000100-name"
        )
    return checkpoint_id
