"""Where checkpoints lie: one folder per task, below the storage that the settings name.

    <root>/<cluster>/<task>/step-00000100-7.json

The cluster's own name is in it, since several coordinators may share a bucket and all of them begin
with task 1. Nothing outside of these folders is ever written to or deleted, whatever a worker says:
the coordinator computes the place, it is not told.
"""

import asyncio
from urllib.parse import quote

from strata.config import Settings
from strata.storage.base import StorageBackend
from strata.storage.opening import configured_storage, open_storage


class CheckpointPlaces:
    """The storages of tasks, opened when first needed; `reading` is held by whoever reads a lot.

    `far_root` is the second place, to which checkpoints are copied; empty where there is none. A
    setting that names no storage is an error at once, not at the first checkpoint.
    """

    def __init__(self, settings: Settings, cluster: str) -> None:
        self._settings = settings
        self.root = configured_storage(settings).url
        upload = settings.checkpoint_upload.rstrip("/")
        self.far_root = open_storage(upload, settings).url if upload else ""
        self.cluster = cluster
        self.recycle = settings.checkpoint_recycle
        self.reading = asyncio.Lock()
        self._open: dict[str, StorageBackend] = {}
        self._far: dict[str, StorageBackend] = {}

    def folder(self, task: str) -> str:
        """The task's folder, relative to the root."""
        return f"{self.cluster}/{quote(task, safe='').replace('.', '%2E')}"

    def storage(self, task: str) -> StorageBackend:
        """The storage of one task."""
        if task not in self._open:
            self._open[task] = open_storage(f"{self.root}/{self.folder(task)}", self._settings)
        return self._open[task]

    def far_storage(self, task: str) -> StorageBackend | None:
        """Where the checkpoints of a task are copied to, if anywhere."""
        if not self.far_root:
            return None
        if task not in self._far:
            self._far[task] = open_storage(f"{self.far_root}/{self.folder(task)}", self._settings)
        return self._far[task]

    def storages(self, task: str) -> list[StorageBackend]:
        """Every place that may hold checkpoints of a task, the nearest first."""
        far = self.far_storage(task)
        return [self.storage(task)] if far is None else [self.storage(task), far]

    def told(self, task: str) -> dict[str, str]:
        """What a worker has to know to find the same place, which it may see under another root."""
        return {
            "checkpoint_root": self.root,
            "checkpoint_folder": self.folder(task),
            "checkpoint_upload": self._settings.checkpoint_upload.rstrip("/"),
        }

    def close(self) -> None:
        """Lets go of connections."""
        for storage in [*self._open.values(), *self._far.values()]:
            storage.close()
