"""Starts a new run with weights of another run or of a file (`run.restore(..., from_=…)`).

The place is a task of this cluster, a folder or `s3://` prefix with checkpoints (each optionally
with `/` and the id of one), or weights that another tool wrote. Every worker reads it. The workers
agree on the checkpoint first, because a task that trains saves new ones, and on a digest of what
they read afterwards: workers with different files would train different models.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from strata.checkpoint.catalog import Catalog, is_id
from strata.checkpoint.foreign.foreign_weights import open_foreign
from strata.checkpoint.manifest import MANIFEST_SUFFIX
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.read.weight_match import (
    WeightMatch,
    listed,
    match_weights,
    require_any,
    require_whole,
)
from strata.checkpoint.read.weight_names import Rename
from strata.checkpoint.read.weight_source import CheckpointWeights, WeightSource
from strata.checkpoint.read.weight_transfer import ReadDigest, WeightTransfer
from strata.checkpoint.state.stateful import SHOWN
from strata.config import Settings
from strata.core.workers.worker_facts import WarmStarted
from strata.core.workers.worker_operations import (
    ModelLoadCompleted,
    ModelLoadProgress,
    ModelLoadStarted,
)
from strata.errors import InvalidArgument, NotFound, Unavailable
from strata.sdk.record.recorder import RecordedOperation, Recorder
from strata.storage.backend import StorageBackend
from strata.storage.locations import open_storage

log = logging.getLogger(__name__)

Agree = Callable[[str, str], str]


class InitialWeights(Struct, frozen=True):
    """Which weights a new run starts with: their place, and how they are matched."""

    place: str | os.PathLike[str]
    strict: bool = True
    rename: Rename | None = None


def initial_weights(
    from_: str | os.PathLike[str] | None, strict: bool, rename: Rename | None
) -> InitialWeights | None:
    """The weights that the arguments of `run.restore` name; None if they name none."""
    if from_:
        return InitialWeights(place=from_, strict=strict, rename=rename)
    if rename is not None or not strict:
        raise InvalidArgument(
            "strict and rename are for weights from elsewhere, but from_ is not given",
            hint="a run always restores the whole of its own checkpoints",
        )
    return None


class WeightLoader:
    """Loads initial weights for one worker.

    `roots` returns the storage URLs in which each task of the cluster has a folder, nearest first.
    """

    def __init__(
        self, recorder: Recorder, settings: Settings, roots: Callable[[], list[str]]
    ) -> None:
        self._recorder, self._settings, self._roots = recorder, settings, roots

    def load(self, state: Any, wanted: InitialWeights, rank: int, agree: Agree) -> Any:
        """Fill a state with the wanted weights; returns it, the same object if possible.

        `agree` returns rank 0's value of a key on every worker.
        """
        source = self._opened(wanted.place, agree)
        try:
            found = matched(source, state, wanted)
            state, digest = self._read(source, found, state)
        finally:
            source.close()
        require_same(digest, agree, source.url)
        self._record(source.url, found, rank)
        return state

    def _read(self, source: WeightSource, found: WeightMatch, state: Any) -> tuple[Any, ReadDigest]:
        load = RecordedOperation(
            self._recorder,
            "load-initial",
            ModelLoadStarted(checkpoint=source.url, step=0),
            lambda done_bytes: ModelLoadProgress(done_bytes=done_bytes, checkpoint=source.url),
            lambda ok, error: ModelLoadCompleted(ok=ok, error=error, checkpoint=source.url),
        )
        transfer = WeightTransfer(source, found, load.progress)
        try:
            state = transfer.run(state)
        except BaseException as error:
            load.end(error)
            raise
        load.end()
        return state, transfer.digest

    def _record(self, url: str, found: WeightMatch, rank: int) -> None:
        """Record what was taken; rank 0 logs it, as a warning if it was cast or is not all."""
        kept = [*found.kept, *found.differing]
        ignored = [*found.ignored, *found.differing]
        objects = [leaf.name for leaf in found.objects]
        self._recorder.emit(
            WarmStarted(
                source=url,
                taken=len(found.taken),
                kept=len(kept),
                ignored=len(ignored),
                casts=found.casts,
                objects=objects,
                kept_names=kept[:SHOWN],
                ignored_names=ignored[:SHOWN],
            )
        )
        if rank == 0:
            level = logging.WARNING if kept or ignored or found.casts else logging.INFO
            log.log(level, "%s", summary(url, found, kept, ignored, objects))

    def _opened(self, place: str | os.PathLike[str], agree: Agree) -> WeightSource:
        text = os.fspath(place)
        if isinstance(place, os.PathLike):
            text = os.path.abspath(text)
        text = text.rstrip("/")
        folder, _, last = text.rpartition("/")
        last = last.removesuffix(MANIFEST_SUFFIX)
        where, checkpoint = (folder, last) if is_id(last) else (text, "")
        if not where:
            raise InvalidArgument(
                f"from_={text!r} names no task or folder",
                hint='give a task, "TASK/CHECKPOINT", a path or s3://bucket/prefix',
            )
        is_task = "/" not in where and not Path(where).is_file()
        places = [f"{root}/{where}" for root in self._roots()] if is_task else [where]
        storages = [open_storage(each, self._settings) for each in places]
        if checkpoint:
            return self._checkpoint(storages, checkpoint)
        newest = next((ids[0] for each in storages if (ids := Catalog(each).newest_ids())), "")
        if newest:
            return self._checkpoint(storages, agree("checkpoint", newest))
        if is_task:
            raise NotFound(
                f"task {where!r} has no checkpoint: {_looked_in(storages)}",
                hint="its checkpoints were deleted or never saved; `strata checkpoints` lists "
                "those of all tasks",
            )
        return open_foreign(storages[0], self._settings)

    def _checkpoint(self, storages: list[StorageBackend], checkpoint: str) -> WeightSource:
        """A checkpoint in the nearest storage that has it."""
        away: Unavailable | None = None
        for storage in storages:
            try:
                manifest = Catalog(storage).read(checkpoint)
            except NotFound:
                continue
            except Unavailable as error:
                away = error
                continue
            reader = CheckpointReader(storage, manifest)
            return CheckpointWeights(f"{storage.url}/{checkpoint}", reader)
        if away is not None:
            raise away
        raise NotFound(
            f"there is no checkpoint {checkpoint}: {_looked_in(storages)}",
            hint="it was deleted or never saved; `strata checkpoints` lists those that exist",
        )


def matched(source: WeightSource, state: Any, wanted: InitialWeights) -> WeightMatch:
    """What the state takes of the source; raises if they do not fit."""
    found = match_weights(source, state, wanted.rename)
    if wanted.strict:
        require_whole(found, source.url)
    require_any(found, source)
    if not found.objects_fit:
        found.objects = []
    return found


def require_same(digest: ReadDigest, agree: Agree, url: str) -> None:
    """Raise if this worker read other weights than rank 0 for the same tensors."""
    agreed = agree("digest", msgspec.json.encode(digest).decode())
    first = msgspec.json.decode(agreed, type=ReadDigest)
    if first.names == digest.names and first.bytes != digest.bytes:
        raise InvalidArgument(
            f"this worker read other weights from {url} than rank 0",
            hint="give every host the same file, or a place that all of them share",
        )


def summary(
    url: str, found: WeightMatch, kept: list[str], ignored: list[str], objects: list[str]
) -> str:
    """What was taken, in one line."""
    parts = [f"started with {len(found.taken)} tensors of {url}"]
    parts += [f"restored {', '.join(objects)}"] if objects else []
    parts += [f"kept {len(kept)} as initialised ({listed(kept)})"] if kept else []
    parts += [f"ignored {len(ignored)} ({listed(ignored)})"] if ignored else []
    parts += [f"cast {', '.join(found.casts)}"] if found.casts else []
    return "; ".join(parts)


def _looked_in(storages: list[StorageBackend]) -> str:
    return f"looked in {' and '.join(each.url for each in storages)}"
