"""Save a state without stopping, load it anywhere; works without a coordinator.

    manager = CheckpointManager("checkpoints", keep_count=5)
    manager.save({"model": weights, "step": 7}, step=7)      # returns after one copy in memory
    state = manager.load()                                   # newest, verified

One save at a time is in flight, in one staging buffer. A second save meanwhile waits for the first,
or is skipped, as `when_busy` says; both are logged. An error in the background is raised by the
next `save`, `wait_pending` or `close`, once. A failed save leaves nothing: the checkpoint before it
stays the latest.

`strata.load` returns the state of a checkpoint by its path:

info = CheckpointManager("s3://bucket/model-alpha").get_latest()
model.load_state_dict(strata.load(info.path)["model"])
"""

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Self

import msgspec

from strata.checkpoint.catalog import Catalog, info_of, is_id
from strata.checkpoint.cleanup import SWEEP_AGE_S, CheckpointCleaner, drop_spares
from strata.checkpoint.manifest import MANIFEST_SUFFIX, CheckpointInfo
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.state_tree import flatten
from strata.checkpoint.write.save_job import SaveJob, SaveProgress
from strata.checkpoint.write.staging import Staging, StateCapture
from strata.checkpoint.write.unchanged_tensors import LastSave
from strata.config import Settings, load_process
from strata.core.checkpoints.keep_reasons import require_retention
from strata.core.limits import finite_values
from strata.core.rule_settings import KEEP_COUNT
from strata.core.task_spec import Retention
from strata.errors import Corrupt, InvalidArgument, NotFound, StrataError, UnknownKind
from strata.storage.backend import StorageBackend
from strata.storage.locations import open_storage

log = logging.getLogger(__name__)

MAX_STEP = 10**18
WhenBusy = Literal["wait", "skip"]


class CheckpointManager:
    """The checkpoints in one folder or `s3://bucket/prefix`.

    Kept are the `keep_count` checkpoints committed last, the first at or after each multiple of
    `keep_every` steps (0: none), and the `keep_best_count` best by the metric `keep_best`: the
    lowest `"val_loss"`, the highest `"max:accuracy"`. `when_busy` is what a save does while another
    is in flight; `recycle` whether files of an expired checkpoint are overwritten (local disks;
    costs the space of one).
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StorageBackend,
        keep_count: int = KEEP_COUNT,
        *,
        keep_every: int = 0,
        keep_best: str = "",
        keep_best_count: int = 1,
        when_busy: WhenBusy = "wait",
        recycle: bool = True,
        settings: Settings | None = None,
    ) -> None:
        retention = Retention(
            keep_count=keep_count,
            keep_every=keep_every,
            keep_best=keep_best,
            keep_best_count=keep_best_count,
        )
        require_retention(retention)
        if when_busy not in ("wait", "skip"):
            raise InvalidArgument(f"when_busy is {when_busy!r}", hint="use 'wait' or 'skip'")
        if isinstance(path, str | os.PathLike):
            path = open_storage(path, settings or load_process({}))
        self.storage: StorageBackend = path
        self.loaded: CheckpointInfo | None = None
        self._when_busy = when_busy
        self._staging = Staging()
        self._catalog = Catalog(self.storage)
        self._keeper = CheckpointCleaner(self.storage, retention, recycle)
        self._readers: Counter[str] = Counter()
        self._saving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._save: SaveJob | None = None
        self._swept = False
        self._last: LastSave | None = None

    def prepare(self, state: object) -> None:
        """Prepare the staging memory, so that the first save is as fast as the others."""
        self._staging.prepare_for([*flatten(state).sources.values()])

    def save(
        self,
        state: object,
        step: int,
        epoch: int = 0,
        metadata: dict[str, Any] | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        checkpoint_id: str | None = None,
    ) -> str | None:
        """Capture a state and return the checkpoint's id; writing happens in the background.

        The state is bytes, or dicts, lists and tuples of arrays, tensors and plain values. None
        means that the save was skipped because another was in flight. `metrics` are numbers that
        describe the state, for `keep_best`; those that are not finite are left out.
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
            self._save = SaveJob(
                self.storage,
                self._catalog,
                checkpoint_id,
                step,
                epoch,
                metadata or {},
                finite_values(metrics or {}),
                capture,
                self._last,
            )
            self._begin(self._save, capture)
            return checkpoint_id

    def _begin(self, save: SaveJob, capture: StateCapture) -> None:
        """Copy the state while a thread writes it; if copying fails, nothing is saved."""
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

    def _run(self, save: SaveJob) -> None:
        save.run()
        if save.failure is None:
            self._last = save.saved
            self._tidy()

    def _tidy(self) -> None:
        """Delete old checkpoints after a commit; errors are only logged, because the checkpoint is
        safe.
        """
        try:
            gone = [] if self._swept else self._keeper.sweep()
            self._swept = True
            gone += self._keeper.retain(self._catalog, {*self._readers})
            if gone:
                log.info("removed %s", ", ".join(gone))
        except Exception as error:
            log.warning("could not delete old checkpoints: %s", error)

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def progress(self) -> SaveProgress | None:
        """The progress of the save in flight, or of the last one."""
        return self._save.progress() if self._save is not None else None

    def wait_pending(self) -> None:
        """Wait until the last save is committed; raises its error."""
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
        """The committed checkpoint with the highest step, of any process."""
        for checkpoint_id in self._catalog.newest_ids():
            try:
                return self._info(checkpoint_id)
            except NotFound:
                continue  # deleted between listing and reading
            except (Corrupt, UnknownKind) as error:
                log.warning("skipped checkpoint %s: %s", checkpoint_id, error)
        return None

    get_latest = latest

    def get_by_step(self, step: int) -> CheckpointInfo | None:
        """The checkpoint of a step; of several the one committed last."""
        found = [m for m in self._catalog.oldest_first() if m.step == step]
        return info_of(found[-1], self.storage.url) if found else None

    def all_checkpoints(self) -> list[CheckpointInfo]:
        """All committed checkpoints, the oldest step first."""
        return [info_of(manifest, self.storage.url) for manifest in self._catalog.oldest_first()]

    def load(self, checkpoint_id: str | None = None, *, into: Any = None) -> Any:
        """A verified state: of the newest checkpoint, or of the given one.

        Without an id, a damaged checkpoint is skipped for the one before it, with a warning;
        `loaded` says which one was used. With `into`, arrays of that state are filled in place and
        returned; if nothing can be loaded, their content is undefined.
        """
        if checkpoint_id is not None:
            return self._load(checkpoint_id, into)
        failure: StrataError | None = None
        tried: set[str] = set()
        # Listed again after each failure: a checkpoint that expired meanwhile has a newer one.
        while untried := [each for each in self._catalog.newest_ids() if each not in tried]:
            tried.add(untried[0])
            try:
                return self._load(untried[0], into)
            except (Corrupt, NotFound, UnknownKind) as error:
                log.warning("skipped checkpoint %s: %s", untried[0], error)
                failure = failure or error
        if failure is not None:
            raise failure
        raise NotFound(
            f"there is no checkpoint in {self.storage.url}",
            hint="call latest() first: it returns None if there is none",
        )

    def _load(self, checkpoint_id: str, into: Any) -> Any:
        with self.open(checkpoint_id) as reader:
            state = reader.load(into)
            self.loaded = info_of(reader.manifest, self.storage.url)
            return state

    def open(self, checkpoint_id: str | None = None) -> CheckpointReader:
        """A checkpoint to read lazily, by tensor or by slice; it is not deleted before it is
        closed.
        """
        if checkpoint_id is None:
            newest = self.latest()
            if newest is None:
                raise NotFound(
                    f"there is no checkpoint in {self.storage.url}",
                    hint="check the path, or save one first",
                )
            checkpoint_id = newest.checkpoint_id
        opened = checkpoint_id
        self._readers[opened] += 1
        try:
            manifest = self._catalog.read(opened)
        except BaseException:
            self._release(opened)
            raise
        return CheckpointReader(self.storage, manifest, lambda: self._release(opened))

    def _release(self, checkpoint_id: str) -> None:
        self._readers[checkpoint_id] -= 1
        if self._readers[checkpoint_id] <= 0:
            del self._readers[checkpoint_id]

    def _info(self, checkpoint_id: str) -> CheckpointInfo:
        return info_of(self._catalog.manifest(checkpoint_id), self.storage.url)

    def sweep(self, older_than_s: float = SWEEP_AGE_S) -> list[str]:
        """Delete what dead writers left behind; return the ids."""
        return self._keeper.sweep(older_than_s)

    def close(self) -> None:
        """Wait for the save in flight and free the memory; raises the save's error."""
        try:
            self.wait_pending()
        finally:
            drop_spares(self.storage)
            self._staging.close()
            self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def checked(
    step: int, epoch: int, metadata: dict[str, Any] | None, checkpoint_id: str | None
) -> str:
    """The id to use, after checking the arguments of a save."""
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
            f"{checkpoint_id!r} is not a valid checkpoint id", hint="use step-00000100-name"
        )
    return checkpoint_id


def load(
    path: str | os.PathLike[str] | CheckpointInfo,
    *,
    into: Any = None,
    settings: Settings | None = None,
) -> Any:
    """Return the state of a checkpoint, verified.

    `path` is that of a checkpoint (`CheckpointInfo.path`, or as shown by `strata checkpoints`), or
    of the folder or bucket that holds several: then the newest undamaged one is loaded. The state
    is returned as it was saved: `{"model": model.state_dict()}` has the tensors of the model under
    `["model"]`. With `into`, arrays and tensors of that state are filled in place.
    """
    if isinstance(path, CheckpointInfo):
        path = path.path
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidArgument(
            f"strata.load got {path!r:.80}",
            hint="give the path of a checkpoint, such as CheckpointManager(…).latest().path",
        )
    where = os.fspath(path).removesuffix(MANIFEST_SUFFIX).rstrip("/")
    where = where if "://" in where else os.path.abspath(where)
    root, _, name = where.rpartition("/")
    chosen = name if is_id(name) else None
    manager = CheckpointManager(root or "/" if chosen else where, settings=settings)
    try:
        return manager.load(chosen, into=into)
    finally:
        manager.storage.close()  # the manager's close() would delete spares that others use
