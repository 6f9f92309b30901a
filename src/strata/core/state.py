"""The state of the cluster: what the fold over all facts yields.

It is one tree of mutable Structs, so that a snapshot is one encode and a restart one decode. Those
that there are thousands of are left out of garbage collection (`gc=False`): nothing in a tree
refers back, and decoding a large state takes two thirds of the time.
"""

import msgspec
from msgspec import Struct, field

from strata.core.agents import Agent
from strata.core.datasets import Dataset
from strata.core.tasks import Task
from strata.core.workers import Worker
from strata.errors import NotFound


class Rules(Struct, frozen=True):
    """The settings that decisions depend on; they are part of the facts."""

    max_workers: int = 10_000
    max_tasks: int = 10_000
    max_datasets: int = 10_000
    keep_count: int = 5


class Salvage(Struct, frozen=True):
    """One salvage of the log: the position of its fact, when it was made, what was lost."""

    position: int
    wall_ns: int
    base: int
    lost: list[tuple[int, int]]
    lost_batches: int = 0


class Cluster(Struct):
    """Everything that is known. `position` is how many facts have been folded in.

    `timeouts` are those of the coordinator that runs; a log of an earlier release has none.
    `unknown_from` is the position of a lost fact, when no later fact could be folded in: then this
    is the state before it (see `salvage`).
    """

    position: int = 0
    cluster: str = ""
    coordinator_incarnation: int = 0
    rules: Rules = Rules()
    last_incarnation: int = 0
    last_worker: int = 0
    last_task: int = 0
    living_workers: int = 0
    workers: dict[str, Worker] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    timeouts: dict[str, float] = field(default_factory=dict)
    unknown_from: int | None = None
    salvages: list[Salvage] = field(default_factory=list)

    def task(self, task: str) -> Task:
        """The task of that id."""
        found = self.tasks.get(task)
        if found is None:
            raise NotFound(f"there is no task {task!r}", hint="strata tasks lists them")
        return found

    def dataset(self, dataset: str) -> Dataset:
        """The dataset of that id."""
        found = self.datasets.get(dataset)
        if found is None:
            raise NotFound(
                f"dataset {dataset!r} is not registered",
                hint="register it first: strata dataset add, POST /api/datasets or the SDK",
            )
        return found


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Cluster] = msgspec.msgpack.Decoder(Cluster)


def encode(state: Cluster) -> bytes:
    """The state as bytes, to copy it or to compare two; snapshots are made by `state_versions`."""
    return _encoder.encode(state)


def decode(encoded: bytes) -> Cluster:
    """The state that `encode` was given."""
    return _decoder.decode(encoded)
