"""The state of the cluster: what the fold over all facts yields.

It is one tree of mutable Structs, so that a snapshot is one encode and a restart one decode.
Structs that occur by the thousand are left out of garbage collection (`gc=False`): nothing in the
tree refers back, and a large state then decodes in two thirds of the time.
"""

from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct, field

from strata.core.hosts.host_health import HostHealth
from strata.core.rule_settings import SHUFFLE_SEED, Rules
from strata.core.task_state import Task
from strata.errors import NotFound

Reported: TypeAlias = Literal[
    "initializing", "idle", "loading_data", "training", "checkpointing", "recovering", "error"
]
WorkerState: TypeAlias = Literal[Reported, "lost", "left"]
Outcome: TypeAlias = Literal["done", "stopped", "failed"]
Excluder: TypeAlias = Literal["person", "failures", "fault", "self-test"]
AlertSeverity: TypeAlias = Literal["error", "warning", "info"]
AlertMoment: TypeAlias = Literal["raised", "resolved"]
Role: TypeAlias = Literal["read", "submit", "admin", "worker", "agent"]

REPORTED: tuple[Reported, ...] = get_args(Reported)
"""The states that a worker reports of itself."""

STREAM_SAMPLES = 2**16 * 3**3 * 5**3 * 7 * 11 * 13 * 17 * 19
"""The size of a stream, whose length is not known. Epochs must begin with a step, so the global
batch has to divide this number; it has many small factors, so that usual batches do."""


class Worker(Struct, gc=False):
    """A worker as the coordinator knows it. `rank` is -1 outside a generation; `ran` is the newest
    generation that this incarnation trained in, 0 for none. It took part in the task's steps from
    `first_step` to `last_step`; `last_step` and `failure` are set when it is lost.
    `media_bytes` is how much it may log (`core/tasks/media_room`)."""

    id: str
    incarnation: int
    task: str
    nonce: str
    hostname: str
    address: str
    port: int
    gpu_count: int
    memory_bytes: int
    weight: int
    registered_ns: int
    changed_ns: int
    state: WorkerState = "initializing"
    reason: str = ""
    outcome: Outcome | Literal[""] = ""
    rank: int = -1
    ran: int = 0
    first_step: int = 0
    last_step: int = 0
    failure: str = ""
    media_bytes: int = 0
    fenced: list[int] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether the worker has neither left nor been lost."""
        return self.state not in ("lost", "left")

    @property
    def done(self) -> bool:
        """Whether the worker left because its part is done; a preempted worker has not."""
        return self.state == "left" and self.outcome == "done"


class Gpu(Struct, frozen=True):
    """A GPU of a host; the index is -1 if the driver does not tell it."""

    index: int
    uuid: str = ""

    @property
    def key(self) -> str:
        """What it is known by."""
        return self.uuid or str(self.index)

    def is_same(self, other: "Gpu") -> bool:
        """Whether both are one GPU; the index counts if one of them has no UUID."""
        both = self.uuid and other.uuid
        return self.uuid == other.uuid if both else self.index == other.index


class Agent(Struct):
    """A host that offers slots; `gpus` are those of each slot, empty if it has none."""

    id: str
    incarnation: int
    hostname: str
    slots: int
    nonce: str
    registered_ns: int
    up: bool = True
    reason: str = ""
    gpus: list[list[Gpu]] = field(default_factory=list)


class HostFailure(Struct, frozen=True):
    """A failure that was attributed to a host, and to the GPUs that the worker had."""

    task: str
    script: str
    wall_ns: int
    gpus: list[str] = field(default_factory=list)


class ExcludedGpu(Struct, frozen=True):
    """A GPU that no worker gets."""

    gpu: Gpu
    reason: str
    by: Excluder
    wall_ns: int


class Host(Struct):
    """A host whose health is measured; `reporter` is the agent or worker that measured it last.

    `excluded` is the reason why no worker is placed there, empty if it is used; `excluded_by` is a
    person, failures or a fault. `excluded_gpus` are excluded alone. `failures` are the last ones
    that were attributed to the host.
    """

    id: str
    hostname: str = ""
    reporter: str = ""
    measured_ns: int = 0
    health: HostHealth | None = None
    excluded: str = ""
    excluded_by: str = ""
    excluded_ns: int = 0
    failures: list[HostFailure] = field(default_factory=list)
    excluded_gpus: dict[str, ExcludedGpu] = field(default_factory=dict)


class DatasetSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a dataset is. Two registrations are the same if their specs are equal."""

    total_samples: int
    shard_size: int
    shuffle: bool = True
    seed: int = SHUFFLE_SEED
    name: str = ""
    path: str = ""
    format: str = ""
    fingerprint: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def has_length(self) -> bool:
        """Whether the number of samples is known; that of a stream is not."""
        return self.total_samples != STREAM_SAMPLES

    @property
    def shard_count(self) -> int:
        """The number of shards; the last one may be short."""
        return -(-self.total_samples // self.shard_size)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """The samples of a shard: first, and one past the last."""
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.total_samples)


class Dataset(Struct):
    """A registered dataset."""

    id: str
    spec: DatasetSpec
    registered_ns: int


class Alert(Struct, gc=False):
    """A condition that a person should know of, `open` until it has ended (`core/alerts`).

    `position` is that of its `AlertRaised`. `count` is how often it was noticed, `last_ns` when
    last. `channels` are those that get a message when it is raised and when it is resolved;
    the newest message to `pending` is not sent yet, and `failed` did not take one. An alert that
    `expired` was closed because of its age, without evidence that its condition ended.
    """

    id: str
    rule: str
    severity: AlertSeverity
    subject: str
    text: str
    raised_ns: int
    position: int
    task: str = ""
    worker: str = ""
    evidence: dict[str, float | str] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)
    count: int = 1
    last_ns: int = 0
    resolved_ns: int = 0
    resolution: str = ""
    expired: bool = False
    channels: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether its condition still holds."""
        return not self.resolved_ns

    @property
    def moment(self) -> AlertMoment:
        """What its newest message is about."""
        return "raised" if self.open else "resolved"


class AccessToken(Struct, frozen=True, kw_only=True):
    """An access token that was made (`core/access/access_tokens`); `digest` is the SHA-256 of its
    secret. `expires_ns` is 0 if it does not expire, `task` is empty if it is bound to none."""

    name: str
    role: Role
    digest: str
    made_ns: int
    task: str = ""
    expires_ns: int = 0


class Salvage(Struct, frozen=True):
    """One salvage of the log: the position of its fact, when it was made, what was lost."""

    position: int
    wall_ns: int
    base: int
    lost: list[tuple[int, int]]
    lost_batches: int = 0


class Cluster(Struct):
    """The whole state. `position` is how many facts have been folded in.

    `timeouts` are those of the running coordinator. `unknown_from` is the position of a lost fact
    after which no fact could be folded in: then this is the state before it (see `salvage`).
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
    hosts: dict[str, Host] = field(default_factory=dict)
    timeouts: dict[str, float] = field(default_factory=dict)
    unknown_from: int | None = None
    salvages: list[Salvage] = field(default_factory=list)
    alerts: dict[str, Alert] = field(default_factory=dict)
    last_alert: int = 0
    tokens: dict[str, AccessToken] = field(default_factory=dict)
    """By digest."""

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
