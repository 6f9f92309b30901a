"""`DatasetRegistry` and `ShardManager`: the assignment of shards to workers.

Without a coordinator URL the registry works in this process, with the same rules as the coordinator
(the pure core with its own state). With a URL it calls the coordinator; workers registered here
then send heartbeats in the background until they are removed.

A shard has one owner in all epochs; with `shuffle` the order of a worker's shards differs between
epochs but not between callers. When workers join or leave, as few shards as possible move.
"""

import threading
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from strata.core.cluster import decide
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.shard_leases import AdvanceEpoch
from strata.core.events import Command, Now
from strata.core.rule_settings import SHUFFLE_SEED
from strata.core.state import Cluster, DatasetSpec, Worker
from strata.core.task_state import Feed, Task
from strata.core.workers.worker_lifecycle import DeregisterWorker, RegisterWorker
from strata.data.dataset_specs import measured
from strata.data.source_dataset import OPTIONS
from strata.errors import InvalidArgument, NotFound
from strata.sdk.seeds.orchestrator import TrainingOrchestrator
from strata.sdk.seeds.shard_info import ShardInfo, shard_info
from strata.wire.messages import dataset_messages

MAX_EPOCH = 2**62
NONCE = "registry"


class RegistryBackend(Protocol):
    """The implementation of a registry."""

    def register_worker(self, worker_id: str) -> None: ...

    def remove_worker(self, worker_id: str) -> None: ...

    def register_dataset(self, dataset_id: str, spec: DatasetSpec) -> None: ...

    def get_shards(self, dataset_id: str, worker_id: str, epoch: int) -> list[ShardInfo]: ...

    def advance_epoch(self, dataset_id: str) -> int: ...

    def current_epoch(self, dataset_id: str) -> int: ...

    def active_workers(self) -> list[str]: ...

    def datasets(self) -> list[str]: ...

    def close(self) -> None: ...


class DatasetRegistry:
    """Registers workers and datasets, and assigns shards to workers."""

    def __init__(self, coordinator_url: str | None = None) -> None:
        self._backend: RegistryBackend = (
            LocalRegistry() if coordinator_url is None else RemoteRegistry(coordinator_url)
        )

    def register_worker(self, worker_id: str) -> None:
        """Register a worker, which gets a share of the shards. Idempotent."""
        self._backend.register_worker(worker_id)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker; its shards move to the others."""
        self._backend.remove_worker(worker_id)

    def register_dataset(
        self,
        dataset_id: str,
        total_samples: int = 0,
        shard_size: int = 0,
        shuffle: bool = True,
        seed: int = SHUFFLE_SEED,
        *,
        path: str = "",
        format: str = "",
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Register a dataset; idempotent for the same parameters.

        With a path, the number of samples and the shards are read from the data, by the coordinator
        if there is one; `options` are passed to the format.
        """
        for name, value in (("total_samples", total_samples), ("shard_size", shard_size)):
            _require_whole(name, value, 0 if path else 1)
        _require_whole("seed", seed, -(2**63))
        spec = DatasetSpec(
            total_samples=total_samples,
            shard_size=shard_size,
            shuffle=shuffle,
            seed=seed,
            path=path,
            format=format,
            metadata={OPTIONS: msgspec.json.encode(options).decode()} if options else {},
        )
        self._backend.register_dataset(dataset_id, spec)

    def get_shards(self, dataset_id: str, worker_id: str, epoch: int = 0) -> list[ShardInfo]:
        """The shards that a worker owns, in the order of an epoch."""
        _require_whole("epoch", epoch, 0)
        return self._backend.get_shards(dataset_id, worker_id, epoch)

    def advance_epoch(self, dataset_id: str) -> int:
        """Open the next epoch; returns its number."""
        return self._backend.advance_epoch(dataset_id)

    def current_epoch(self, dataset_id: str) -> int:
        """The current epoch, from 0."""
        return self._backend.current_epoch(dataset_id)

    def active_workers(self) -> list[str]:
        """The registered workers; with a coordinator, those registered by this object."""
        return self._backend.active_workers()

    def datasets(self) -> list[str]:
        """The registered datasets; with a coordinator, those registered by this object."""
        return self._backend.datasets()

    @property
    def worker_count(self) -> int:
        """The number of registered workers."""
        return len(self.active_workers())

    @property
    def dataset_count(self) -> int:
        """The number of registered datasets."""
        return len(self.datasets())

    def close(self) -> None:
        """Remove the workers that this object registered with a coordinator."""
        self._backend.close()

    def __repr__(self) -> str:
        return f"DatasetRegistry(workers={self.worker_count}, datasets={self.dataset_count})"


class ShardManager(DatasetRegistry):
    """An in-process registry that registers a worker on its first request."""

    def __init__(self) -> None:
        super().__init__()

    def register_dataset_params(
        self, id: str, total_samples: int, samples_per_shard: int, shuffle: bool, seed: int
    ) -> None:
        """Register a dataset."""
        self.register_dataset(id, total_samples, samples_per_shard, shuffle, seed)

    def get_shard_for_worker(self, dataset: str, worker: str, epoch: int) -> list[ShardInfo]:
        """The shards of a worker, in the order of an epoch; registers an unknown worker."""
        if dataset in self.datasets() and worker not in self.active_workers():
            self.register_worker(worker)
        return self.get_shards(dataset, worker, epoch)


class LocalRegistry:
    """A registry in this process: the core's rules with their own state. Thread-safe."""

    def __init__(self) -> None:
        self._state = Cluster()
        self._lock = threading.Lock()
        self._task = ""

    def register_worker(self, worker_id: str) -> None:
        """Register a worker in the group; the first one creates the group."""
        if not isinstance(worker_id, str) or not worker_id:
            raise InvalidArgument(f"worker_id is {worker_id!r:.80}", hint="use a non-empty string")
        with self._lock:
            worker = self._do(RegisterWorker(worker=worker_id, nonce=NONCE, syncs=False))
            assert isinstance(worker, Worker)
            before, self._task = self._task, worker.task
            for dataset in self._state.datasets:
                self._attach(dataset, self._state.tasks.get(before))

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker."""
        with self._lock:
            incarnation = self._living(worker_id).incarnation
            self._do(DeregisterWorker(worker=worker_id, incarnation=incarnation, outcome="stopped"))

    def register_dataset(self, dataset_id: str, spec: DatasetSpec) -> None:
        """Register a dataset and assign its shards to the registered workers."""
        with self._lock:
            self._do(RegisterDataset(dataset=dataset_id, spec=measured(dataset_id, spec)))
            if self.active_workers():
                self._attach(dataset_id, None)

    def get_shards(self, dataset_id: str, worker_id: str, epoch: int) -> list[ShardInfo]:
        """The shards of a worker, in the order of an epoch."""
        with self._lock:
            spec = self._state.dataset(dataset_id).spec
            feed = self._state.tasks[self._living(worker_id).task].feeds[dataset_id]
            shards = dataset_messages.owned_shards(dataset_id, spec, feed, worker_id, epoch)
            return [shard_info(shard) for shard in shards]

    def advance_epoch(self, dataset_id: str) -> int:
        """Open the next epoch."""
        with self._lock:
            self._state.dataset(dataset_id)
            if self._feed(dataset_id) is None:
                raise NotFound(
                    f"no worker is registered for {dataset_id!r}", hint="register a worker first"
                )
            epoch = self._do(AdvanceEpoch(task=self._task, dataset=dataset_id))
            assert isinstance(epoch, int)
            return epoch

    def current_epoch(self, dataset_id: str) -> int:
        """The current epoch of the group."""
        with self._lock:
            self._state.dataset(dataset_id)
            feed = self._feed(dataset_id)
            return feed.epoch if feed is not None else 0

    def active_workers(self) -> list[str]:
        """The registered workers, in the order of registration."""
        return [worker.id for worker in list(self._state.workers.values()) if worker.alive]

    def datasets(self) -> list[str]:
        """All registered datasets."""
        return list(self._state.datasets)

    def close(self) -> None:
        """Do nothing: the state ends with the object."""

    def _do(self, command: Command) -> object:
        outcome = decide(self._state, command, Now(time.time_ns(), time.monotonic_ns()))
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.answer

    def _attach(self, dataset_id: str, before: Task | None) -> None:
        """Attach a dataset to the group; a group that replaces an emptied one keeps its epoch."""
        if self._feed(dataset_id) is not None:
            return
        self._do(AttachDataset(task=self._task, dataset=dataset_id))
        earlier = before.feeds.get(dataset_id) if before is not None else None
        for _ in range(earlier.epoch if earlier is not None else 0):
            self._do(AdvanceEpoch(task=self._task, dataset=dataset_id))

    def _feed(self, dataset_id: str) -> Feed | None:
        task = self._state.tasks.get(self._task)
        return task.feeds.get(dataset_id) if task is not None else None

    def _living(self, worker_id: str) -> Worker:
        worker = self._state.workers.get(worker_id)
        if worker is None or not worker.alive:
            raise NotFound(f"worker {worker_id!r:.80} is not registered", hint="register it first")
        return worker


class RemoteRegistry:
    """A registry at a coordinator; each worker registered here has its own session."""

    def __init__(self, coordinator_url: str) -> None:
        self._url = coordinator_url
        self._asking = TrainingOrchestrator(coordinator_url)
        self._workers: dict[str, TrainingOrchestrator] = {}
        self._datasets: dict[str, None] = {}

    def register_worker(self, worker_id: str) -> None:
        """Register a worker and send its heartbeats."""
        if worker_id in self._workers:
            return
        worker = TrainingOrchestrator(self._url)
        try:
            worker.register_worker(worker_id)
        except BaseException:
            worker.close()
            raise
        self._workers[worker_id] = worker

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker that was registered here."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            raise NotFound(
                f"worker {worker_id!r:.80} was not registered here", hint="register it first"
            )
        worker.close()

    def register_dataset(self, dataset_id: str, spec: DatasetSpec) -> None:
        """Register a dataset with the coordinator."""
        self._asking.register_dataset(
            dataset_id,
            spec.total_samples,
            spec.shard_size,
            spec.shuffle,
            spec.seed,
            path=spec.path,
            format=spec.format,
            metadata=spec.metadata,
        )
        self._datasets[dataset_id] = None

    def get_shards(self, dataset_id: str, worker_id: str, epoch: int) -> list[ShardInfo]:
        """The shards of a worker, which may have been registered elsewhere."""
        return self._asking.get_shards(dataset_id, epoch, worker_id)

    def advance_epoch(self, dataset_id: str) -> int:
        """Open the epoch after the current one."""
        return self._speaker().advance_epoch(dataset_id, self.current_epoch(dataset_id))

    def current_epoch(self, dataset_id: str) -> int:
        """The coordinator's current epoch, read by an `advance_epoch` that changes nothing."""
        try:
            return self._speaker().advance_epoch(dataset_id, from_epoch=-1)
        except NotFound:
            if dataset_id not in self._datasets:
                raise
            return 0

    def active_workers(self) -> list[str]:
        """The names registered by this object."""
        return list(self._workers)

    def datasets(self) -> list[str]:
        """The names registered by this object."""
        return list(self._datasets)

    def close(self) -> None:
        """Remove all workers registered here."""
        for worker_id in self.active_workers():
            self.remove_worker(worker_id)
        self._asking.close()

    def _speaker(self) -> TrainingOrchestrator:
        """A member of the group, which is needed to access its epochs."""
        for worker in self._workers.values():
            return worker
        raise NotFound("no worker is registered here", hint="call register_worker() first")


def _require_whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_EPOCH:
        raise InvalidArgument(
            f"{name} is {value!r:.80}", hint=f"use a whole number of at least {least}"
        )
