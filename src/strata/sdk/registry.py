"""`DatasetRegistry` and `ShardManager`: who trains which shards.

Without a coordinator's URL the registry works in this process, by the same rules that the
coordinator uses (the pure core over a state of its own). With one it asks the coordinator; the
workers registered here then beat in the background until they are removed.

A shard has one owner, whatever the epoch; with `shuffle` the order of a worker's shards is another
one in each epoch, the same for everyone. When workers come or go, as few shards move as possible.
"""

import threading
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from strata.core.cluster import decide
from strata.core.datasets import AttachDataset, DatasetSpec, Feed, RegisterDataset
from strata.core.events import Command, Now
from strata.core.leases import AdvanceEpoch
from strata.core.state import Cluster
from strata.core.tasks import Task
from strata.core.workers import DeregisterWorker, RegisterWorker, Worker
from strata.data.dataset import OPTIONS
from strata.data.specs import measured
from strata.errors import InvalidArgument, NotFound
from strata.sdk.orchestrator import TrainingOrchestrator
from strata.sdk.shards import ShardInfo, shard_info
from strata.wire import datasets

MAX_EPOCH = 2**62
NONCE = "registry"


class Backend(Protocol):
    """Where the registry's facts live."""

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
    """Registers workers and datasets, and says whose shards are which."""

    def __init__(self, coordinator_url: str | None = None) -> None:
        self._backend: Backend = InProcess() if coordinator_url is None else Remote(coordinator_url)

    def register_worker(self, worker_id: str) -> None:
        """Takes a worker in; shards move to it. Repeating is harmless."""
        self._backend.register_worker(worker_id)

    def remove_worker(self, worker_id: str) -> None:
        """Takes a worker out; its shards move to the others."""
        self._backend.remove_worker(worker_id)

    def register_dataset(
        self,
        dataset_id: str,
        total_samples: int = 0,
        shard_size: int = 0,
        shuffle: bool = True,
        seed: int = 42,
        *,
        path: str = "",
        format: str = "",
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Makes a dataset known; repeating the same parameters is harmless.

        With a path, samples and shards are read from the data, where the registry's facts live;
        `options` are told to the format.
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
        """Opens the next epoch; its number."""
        return self._backend.advance_epoch(dataset_id)

    def current_epoch(self, dataset_id: str) -> int:
        """The present epoch, from 0."""
        return self._backend.current_epoch(dataset_id)

    def active_workers(self) -> list[str]:
        """The workers that are registered; with a coordinator, those registered here."""
        return self._backend.active_workers()

    def datasets(self) -> list[str]:
        """The datasets that are registered; with a coordinator, those registered here."""
        return self._backend.datasets()

    @property
    def worker_count(self) -> int:
        """How many workers are registered."""
        return len(self.active_workers())

    @property
    def dataset_count(self) -> int:
        """How many datasets are registered."""
        return len(self.datasets())

    def close(self) -> None:
        """Removes the workers that were registered here with a coordinator."""
        self._backend.close()

    def __repr__(self) -> str:
        return f"DatasetRegistry(workers={self.worker_count}, datasets={self.dataset_count})"


class ShardManager(DatasetRegistry):
    """The in-process registry under the names of its calculations; a worker that asks is known."""

    def __init__(self) -> None:
        super().__init__()

    def register_dataset_params(
        self, id: str, total_samples: int, samples_per_shard: int, shuffle: bool, seed: int
    ) -> None:
        """Makes a dataset known."""
        self.register_dataset(id, total_samples, samples_per_shard, shuffle, seed)

    def get_shard_for_worker(self, dataset: str, worker: str, epoch: int) -> list[ShardInfo]:
        """The shards that a worker owns, in the order of an epoch.

        A worker that asks for the first time is registered, and gets its share.
        """
        if dataset in self.datasets() and worker not in self.active_workers():
            self.register_worker(worker)
        return self.get_shards(dataset, worker, epoch)


class InProcess:
    """The rules of the core over a state of its own. Any thread may call."""

    def __init__(self) -> None:
        self._state = Cluster()
        self._lock = threading.Lock()
        self._task = ""

    def register_worker(self, worker_id: str) -> None:
        """Registers a worker in the one group; a first one opens it."""
        if not isinstance(worker_id, str) or not worker_id:
            raise InvalidArgument(f"worker_id is {worker_id!r:.80}", hint="give the worker a name")
        with self._lock:
            worker = self._do(RegisterWorker(worker=worker_id, nonce=NONCE, syncs=False))
            assert isinstance(worker, Worker)
            before, self._task = self._task, worker.task
            for dataset in self._state.datasets:
                self._attach(dataset, self._state.tasks.get(before))

    def remove_worker(self, worker_id: str) -> None:
        """Lets a worker leave."""
        with self._lock:
            incarnation = self._living(worker_id).incarnation
            self._do(DeregisterWorker(worker=worker_id, incarnation=incarnation, outcome="stopped"))

    def register_dataset(self, dataset_id: str, spec: DatasetSpec) -> None:
        """Registers a dataset and divides it among the workers that are there."""
        with self._lock:
            self._do(RegisterDataset(dataset=dataset_id, spec=measured(dataset_id, spec)))
            if self.active_workers():
                self._attach(dataset_id, None)

    def get_shards(self, dataset_id: str, worker_id: str, epoch: int) -> list[ShardInfo]:
        """The worker's holdings in the order of the epoch."""
        with self._lock:
            spec = self._state.dataset(dataset_id).spec
            feed = self._state.tasks[self._living(worker_id).task].feeds[dataset_id]
            shards = datasets.owned_shards(dataset_id, spec, feed, worker_id, epoch)
            return [shard_info(shard) for shard in shards]

    def advance_epoch(self, dataset_id: str) -> int:
        """Opens the next epoch."""
        with self._lock:
            self._state.dataset(dataset_id)
            if self._feed(dataset_id) is None:
                raise NotFound(
                    f"no worker trains on {dataset_id!r}", hint="register a worker first"
                )
            epoch = self._do(AdvanceEpoch(task=self._task, dataset=dataset_id))
            assert isinstance(epoch, int)
            return epoch

    def current_epoch(self, dataset_id: str) -> int:
        """The epoch of the group's feed."""
        with self._lock:
            self._state.dataset(dataset_id)
            feed = self._feed(dataset_id)
            return feed.epoch if feed is not None else 0

    def active_workers(self) -> list[str]:
        """The living, in the order in which they came."""
        return [worker.id for worker in list(self._state.workers.values()) if worker.alive]

    def datasets(self) -> list[str]:
        """Every dataset."""
        return list(self._state.datasets)

    def close(self) -> None:
        """Nothing outlives the object."""

    def _do(self, command: Command) -> object:
        outcome = decide(self._state, command, Now(time.time_ns(), time.monotonic_ns()))
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.answer

    def _attach(self, dataset_id: str, before: Task | None) -> None:
        """Attaches a dataset to the group; a group that follows an emptied one keeps its epoch."""
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


class Remote:
    """A coordinator; each worker registered here has a session of its own."""

    def __init__(self, coordinator_url: str) -> None:
        self._url = coordinator_url
        self._asking = TrainingOrchestrator(coordinator_url)
        self._workers: dict[str, TrainingOrchestrator] = {}
        self._datasets: dict[str, None] = {}

    def register_worker(self, worker_id: str) -> None:
        """Registers a worker and keeps it alive."""
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
        """Lets a worker that was registered here leave."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            raise NotFound(
                f"worker {worker_id!r:.80} was not registered here", hint="register it first"
            )
        worker.close()

    def register_dataset(self, dataset_id: str, spec: DatasetSpec) -> None:
        """Registers a dataset with the coordinator."""
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
        """What the coordinator says; the worker may have been registered elsewhere."""
        return self._asking.get_shards(dataset_id, epoch, worker_id)

    def advance_epoch(self, dataset_id: str) -> int:
        """Opens the epoch after the present one."""
        return self._speaker().advance_epoch(dataset_id, self.current_epoch(dataset_id))

    def current_epoch(self, dataset_id: str) -> int:
        """The epoch that the coordinator is at; an epoch before all others advances nothing."""
        try:
            return self._speaker().advance_epoch(dataset_id, from_epoch=-1)
        except NotFound:
            if dataset_id not in self._datasets:
                raise
            return 0

    def active_workers(self) -> list[str]:
        """Those registered here."""
        return list(self._workers)

    def datasets(self) -> list[str]:
        """Those registered here."""
        return list(self._datasets)

    def close(self) -> None:
        """Lets every worker registered here leave."""
        for worker_id in self.active_workers():
            self.remove_worker(worker_id)
        self._asking.close()

    def _speaker(self) -> TrainingOrchestrator:
        """Epochs belong to a group, so a member has to ask."""
        for worker in self._workers.values():
            return worker
        raise NotFound("no worker was registered here", hint="call register_worker() first")


def _require_whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_EPOCH:
        raise InvalidArgument(
            f"{name} is {value!r:.80}", hint=f"use a whole number of at least {least}"
        )
