"""What the API answers with, and what it takes in.

Names and fields are the contract's; what is beyond it is added at the end of each. Times are Unix
milliseconds, sizes bytes, `uptime` seconds, `progress` percent. Lists inside an answer are cut
short; the field that ends in `_total` says how long they are.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from strata.coordinator.http.attention import Attention
from strata.coordinator.http.ports import Mode
from strata.coordinator.logs import LogEntry
from strata.coordinator.metrics import MetricsSnapshot
from strata.core.barriers import BarrierState
from strata.core.datasets import Unit
from strata.core.epoch_shards import Layout
from strata.core.tasks import ModelState, Phase, Policy, TaskState, TaskType
from strata.core.workers import WorkerState
from strata.timeline.answers import EventAnswer

WorkerStatus: TypeAlias = Literal["active", "idle", "checkpointing", "recovering", "failed"]
CheckpointStatus: TypeAlias = Literal["in_progress", "completed", "failed"]
ShardState: TypeAlias = Literal["todo", "leased", "consumed"]

# Integers that a JavaScript reader can hold.
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class ErrorDetail(Struct, frozen=True):
    """A stable code to compare, a sentence to read, and what to do next."""

    code: str
    message: str
    hint: str


class ErrorResponse(Struct, frozen=True):
    """How every refusal reads."""

    error: ErrorDetail


class Health(Struct, frozen=True):
    """That the coordinator answers."""

    status: Literal["ok"] = "ok"


class StatusResponse(Struct, frozen=True):
    """The coordinator itself; `position` is how many facts are recorded."""

    connected: bool
    address: str
    uptime: int
    version: str
    mode: Mode
    cluster: str
    incarnation: int
    position: int
    started_at: int


class GpuResponse(Struct, frozen=True):
    """One card."""

    index: int
    name: str
    utilization_percent: float
    memory_used_bytes: int
    memory_total_bytes: int


class ResourcesResponse(Struct, frozen=True):
    """What a worker's process and host use."""

    cpu_percent: float
    memory_used_bytes: int
    gpu_metrics: list[GpuResponse]
    disk_read_bytes: int
    disk_write_bytes: int
    disk_free_bytes: int
    network_rx_bytes: int | None
    network_tx_bytes: int | None


class WorkerResponse(Struct, frozen=True):
    """A worker; `rank` is -1 outside a generation, `resources` null until it told."""

    id: str
    ip: str
    port: int
    status: WorkerStatus
    gpu_count: int
    last_heartbeat: int
    assigned_shards: int
    current_epoch: int
    current_step: int
    current_task: str
    resources: ResourcesResponse | None
    hostname: str
    state: WorkerState
    reason: str
    rank: int
    incarnation: int
    registered_at: int
    loss: float | None = None


class DatasetResponse(Struct, frozen=True):
    """A registered dataset."""

    id: str
    name: str
    total_samples: int
    shard_size: int
    shard_count: int
    format: str
    shuffle: bool
    registered_at: int
    seed: int
    path: str


class DatasetDetail(DatasetResponse, frozen=True):
    """A registered dataset with all that it was registered with; it can be posted as it is."""

    fingerprint: str
    metadata: dict[str, str]


class ShardResponse(Struct, frozen=True):
    """A shard in an epoch of a task: samples `start_index` up to `end_index`, without it.

    With the layout `dataset` these are samples of the dataset; with `epoch` they are places of the
    epoch's order, laid out worker part after worker part (docs/DATA.md). A sample of the preview
    has a `place` in the same numbers. A dataset of unknown length has no ranges. `worker_id` is the
    worker that the shard is assigned to.
    """

    shard_id: int
    unit: Unit
    start_index: int | None
    end_index: int | None
    state: ShardState
    worker_id: str | None
    task_id: str | None
    epoch: int
    layout: Layout = "dataset"


class CheckpointResponse(Struct, frozen=True):
    """A checkpoint; `worker_id` is the worker that began it.

    `size` is what is durable. While ranks write, `size_written` is how much they have written and
    `size_total` how much they will have, of those that have begun. `tiers` are the places that hold
    it, the nearest first; while it is not completed there are none.
    """

    id: str
    step: int
    epoch: int
    size: int
    path: str
    created_at: int
    worker_id: str
    status: CheckpointStatus
    task_id: str
    reason: str
    parts: int
    parts_expected: int
    size_written: int
    size_total: int
    tiers: list[str]


class BarrierResponse(Struct, frozen=True):
    """The newest round of a barrier; `missing` names those it waits for, or waited for."""

    id: str
    name: str
    arrived: int
    total: int
    status: BarrierState
    created_at: int
    missing: list[str]
    missing_total: int
    task_id: str
    step: int
    ended_at: int | None


class TaskResponse(Struct, frozen=True):
    """A task; `progress` is null when nobody said how much there is to do.

    `datasets` are those that it trains on, also where its script chose them.
    """

    id: str
    name: str
    type: str
    status: TaskState
    worker_ids: list[str]
    dataset_id: str
    started_at: int | None
    completed_at: int | None
    progress: float | None
    logs: list[str]
    worker_ids_total: int
    worker_count: int
    spares: int
    datasets: list[str]
    submitted_at: int
    reason: str
    exit_code: int
    generation: int
    phase: Phase
    committed_steps: int
    saved_step: int | None


class TaskDetail(TaskResponse, frozen=True):
    """A task with what was asked for; of the environment only the names are shown.

    `loss` is the mean of what its workers last told; `waiting_for` says which slots it waits for,
    or how many workers the user has to start, and is empty where it waits for none.
    """

    entry: str
    args: list[str]
    env_names: list[str]
    config: dict[str, Any]
    policy: Policy
    min_workers: int
    model_state: ModelState
    keep_count: int
    max_restarts: int
    external: bool
    waiting_for: str
    loss: float | None


class AgentResponse(Struct, frozen=True):
    """A host that offers slots."""

    id: str
    hostname: str
    slots: int
    slots_used: int
    up: bool
    reason: str
    incarnation: int
    registered_at: int


class FactResponse(Struct, frozen=True):
    """One fact; it is named as a cause by its `id`."""

    position: int
    id: str
    kind: str
    time: int
    cause: list[str]
    op: str
    fields: dict[str, Any]


class Totals(Struct, frozen=True):
    """How many there are of each, whatever a list shows."""

    workers: int
    workers_by_status: dict[WorkerStatus, int]
    datasets: int
    checkpoints: int
    barriers: int
    tasks: int
    agents: int


class DashboardResponse(Struct, frozen=True):
    """Everything in one answer of bounded size: the first of each list, and the totals."""

    coordinator: StatusResponse
    workers: list[WorkerResponse]
    datasets: list[DatasetResponse]
    checkpoints: list[CheckpointResponse]
    barriers: list[BarrierResponse]
    metrics: MetricsSnapshot
    tasks: list[TaskResponse]
    logs: list[LogEntry]
    totals: Totals
    attention: list[Attention] = field(default_factory=list)
    happened: list[EventAnswer] = field(default_factory=list)


class RegisterDatasetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A dataset to register; repeating the same registration changes nothing.

    With a `path` and no `total_samples` the data is looked at, where the coordinator runs. What GET
    /api/datasets shows can be posted: `id` is another name of `dataset_id`, a `shard_count` is
    compared with what the sizes give, and `registered_at` is not used.
    """

    dataset_id: Annotated[str, Meta(max_length=200)] = ""
    id: Annotated[str, Meta(max_length=200)] = ""
    total_samples: Count = 0
    shard_size: Count = 0
    shuffle: bool = True
    seed: Seed = 42
    name: Annotated[str, Meta(max_length=200)] = ""
    path: Text = ""
    format: Annotated[str, Meta(max_length=200)] = ""
    fingerprint: Annotated[str, Meta(max_length=200)] = ""
    metadata: dict[str, str] = field(default_factory=dict)
    shard_count: Count | None = None
    registered_at: Count = 0


class CreateTaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A run to start. Without an `entry` it waits for workers that the user starts.

    `policy` says what follows from a lost worker: by default it is replaced if Strata started it,
    and the others continue without it if the user did. The task trains with `min_workers` or more
    meanwhile; 0 leaves that to the policy. Of its checkpoints `keep_count` are kept; 0 leaves that
    to the coordinator's setting. When none of them can be restored it fails, unless
    `allow_fresh_start` lets it train again from step 0.
    """

    name: Name
    type: TaskType = "training"
    dataset_id: Annotated[str, Meta(max_length=200)] = ""
    worker_count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    config: dict[str, Any] = field(default_factory=dict)
    entry: Text = ""
    args: Annotated[list[Text], Meta(max_length=1000)] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    policy: Policy | None = None
    min_workers: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    spares: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    model_state: ModelState = "replicated"
    keep_count: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    max_restarts: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    allow_fresh_start: bool = False


class RestartTaskRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of the task's environment: they are not kept once it has ended."""

    env: dict[str, str] = field(default_factory=dict)


class CreateTaskResponse(Struct, frozen=True):
    """The id under which the task runs."""

    task_id: str
    status: TaskState


class StopTaskResponse(Struct, frozen=True):
    """Whether the task stops or has stopped; one that ended by itself has not."""

    success: bool
    task_id: str
    status: TaskState


class CheckpointRequestResponse(Struct, frozen=True):
    """The number of the request; the workers save at their next step."""

    request: int
    task_id: str
