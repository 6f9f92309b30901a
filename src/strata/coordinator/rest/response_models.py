"""JSON structures of the REST API's answers, used by the endpoints and by the command line.

Fields of the contract come first in each structure, later additions follow. Times are Unix
milliseconds, sizes bytes, `uptime` seconds, `progress` percent. Lists inside an answer are cut
short; the field that ends in `_total` has their full length.

The states of the core are spelled out here: importing them would add 85 ms to the 80 ms that a
command needs to start. mypy and a test compare them with the core's.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct

WorkerStatus: TypeAlias = Literal["active", "idle", "checkpointing", "recovering", "failed"]
CheckpointStatus: TypeAlias = Literal["in_progress", "completed", "failed"]
ShardState: TypeAlias = Literal["todo", "leased", "consumed"]
Mode: TypeAlias = Literal["live", "demo", "standby"]
Severity: TypeAlias = Literal["error", "warning"]

WorkerState: TypeAlias = Literal[
    "initializing",
    "idle",
    "loading_data",
    "training",
    "checkpointing",
    "recovering",
    "error",
    "lost",
    "left",
]
TaskState: TypeAlias = Literal[
    "queued", "starting", "running", "recovering", "stopping", "completed", "failed", "stopped"
]
Phase: TypeAlias = Literal["forming", "syncing", "running"]
Policy: TypeAlias = Literal["continue", "replace", "stop"]
ModelState: TypeAlias = Literal["replicated", "sharded"]
BarrierState: TypeAlias = Literal["waiting", "released", "failed"]
CheckpointType: TypeAlias = Literal["full", "incremental", "optimizer_only", "model_only"]
Unit: TypeAlias = Literal["lane", "shard", "lease"]
Layout: TypeAlias = Literal["dataset", "epoch"]


class ErrorDetail(Struct, frozen=True):
    """A stable code for programs, a message, and a hint that says what to do next."""

    code: str
    message: str
    hint: str


class ErrorResponse(Struct, frozen=True):
    """Structure of every error."""

    error: ErrorDetail


class Health(Struct, frozen=True):
    """Answer of the health check. A coordinator with the mode `standby` does not lead."""

    status: Literal["ok"] = "ok"
    mode: Mode = "live"


class StatusResponse(Struct, frozen=True):
    """The coordinator; `position` is the number of recorded facts.

    In a view of the past `connected`, `address` and `mode` are null, because they are not recorded;
    `uptime`, `version` and `started_at` are those of the coordinator at that moment, and null if
    its start is not in the log.
    """

    connected: bool | None
    address: str | None
    uptime: int | None
    version: str | None
    mode: Mode | None
    cluster: str
    incarnation: int
    position: int
    started_at: int | None


class GpuResponse(Struct, frozen=True):
    """One GPU; `utilization_percent` is null for a partitioned one, which does not report it."""

    index: int
    name: str
    utilization_percent: float | None
    memory_used_bytes: int
    memory_total_bytes: int
    partitioned: bool


class ResourcesResponse(Struct, frozen=True):
    """Resources used by a worker's process and host."""

    cpu_percent: float
    memory_used_bytes: int
    gpu_metrics: list[GpuResponse]
    disk_read_bytes: int
    disk_write_bytes: int
    disk_free_bytes: int
    disk_source: str
    network_rx_bytes: int | None
    network_tx_bytes: int | None


class WorkerResponse(Struct, frozen=True):
    """A worker; `rank` is -1 outside a generation, `resources` null before the first report."""

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
    """A dataset with all its registered fields; it can be posted as it is."""

    fingerprint: str
    metadata: dict[str, str]


class ShardResponse(Struct, frozen=True):
    """A shard in an epoch of a task: samples `start_index` to `end_index`, exclusive.

    With the layout `dataset` these are indices in the dataset; with `epoch` they are places in the
    epoch's order, one worker's part after the other (docs/DATA.md). `place` of a preview sample has
    the same meaning. A dataset of unknown length has no ranges. `worker_id` is the worker that the
    shard is assigned to.
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


class Sample(Struct, frozen=True):
    """A sample that a worker processes. A feature is a value, or `{"kind", …}` for larger data: an
    array, bytes, or an image as a PNG thumbnail.

    `place` is between the `start_index` and the `end_index` of the shard `shard_id`. `position`
    counts through all epochs.
    """

    id: str
    features: dict[str, object]
    label: object = None
    shard_id: int = 0
    worker_id: str = ""
    step: int = 0
    position: int = -1
    epoch: int = 0
    place: int | None = None


class CheckpointResponse(Struct, frozen=True):
    """A checkpoint; `worker_id` is the worker that started it.

    `size` is its durable size; `size_new` of that was written by this save, the rest is unchanged
    since an earlier checkpoint. While ranks write, `size_written` is the number of new bytes in the
    storage, and `size_total` the expected number, 0 until all ranks have started. A part is
    complete when its rank has acknowledged it, so until then `size_written` is less than
    `size_total`. `tiers` are the storages of a completed checkpoint, the nearest first.

    `kept_because` has the rules that keep a completed checkpoint. `metrics` are the values that the
    script had logged last, in lists the first of `metrics_total`; the metric of `keep_best`, by
    which the task keeps its best checkpoints, is the first one and is missing if it was not logged
    or not a finite number.
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
    size_new: int
    kept_because: list[str]
    keep_best: str
    metrics: dict[str, float]
    metrics_total: int


class PartResponse(Struct, frozen=True):
    """The part of one rank; `size_kept` bytes are unchanged since an earlier checkpoint."""

    rank: int
    worker_id: str
    size: int
    path: str
    checksum: str
    size_kept: int


class CheckpointDetail(CheckpointResponse, frozen=True):
    """A checkpoint with its parts by rank; missing parts are not written yet."""

    type: CheckpointType
    generation: int
    metadata: dict[str, str]
    written: list[PartResponse]


class BarrierResponse(Struct, frozen=True):
    """The newest round of a barrier; `missing` are the workers that have not arrived."""

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
    """A task; `progress` is null if the total is unknown.

    `continuations` is how often it was continued after its end. A fork has a `parent`, with which
    it shares the steps up to `forked_at`.

    `datasets` are all datasets that it trains on, including those that its script chose.
    `queue_position` is its place in the queue, from 1, and null if it is not queued. An `elastic`
    task has between `min_workers` and `worker_count` workers.
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
    continuations: int
    parent: str
    forked_at: int
    priority: int
    queue_position: int | None
    elastic: bool
    min_workers: int


class TaskWorkdirResponse(Struct, frozen=True):
    """The folder that a task runs in: its digest, the number of its files and their bytes. GET
    /api/workdirs/{digest} lists the files, and so does the fact `WorkdirRecorded`."""

    digest: str
    files: int
    size_bytes: int


class TaskDetail(TaskResponse, frozen=True):
    """A task with its submitted parameters; only the names of environment variables are shown.

    The fields that begin with `keep` say which checkpoints are kept, as the script chose if it did.
    `loss` is the mean of the last losses of its workers; `waiting_for` says which slots or other
    tasks it waits for, or how many workers the user has to start, and is empty if it does not wait.
    `workdir` is null if the task runs in its submitter's folder, by its path.
    """

    entry: str
    args: list[str]
    env_names: list[str]
    config: dict[str, Any]
    policy: Policy
    model_state: ModelState
    keep_count: int
    keep_every: int
    keep_best: str
    keep_best_count: int
    max_restarts: int
    external: bool
    after: list[str]
    preemptible: bool
    epochs: int
    max_steps: int
    self_test: bool
    waiting_for: str
    loss: float | None
    workdir: TaskWorkdirResponse | None = None


class AgentResponse(Struct, frozen=True):
    """An agent, which offers slots on its host."""

    id: str
    hostname: str
    slots: int
    slots_used: int
    up: bool
    reason: str
    incarnation: int
    registered_at: int
    last_heartbeat: int


class FactResponse(Struct, frozen=True):
    """One fact; `cause` has the ids of the facts that caused it."""

    position: int
    id: str
    kind: str
    time: int
    cause: list[str]
    op: str
    fields: dict[str, Any]


class Attention(Struct, frozen=True):
    """A problem that needs attention; `subject` is `worker:ID`, `task:ID`, `checkpoint:ID` etc.

    `alert` is the open alert that it is, if it is one.
    """

    severity: Severity
    subject: str
    text: str
    hint: str
    alert: str = ""


class MetricsSnapshot(Struct, frozen=True):
    """GET /api/metrics. Throughput in MB/s, times in ms; null before the first measurement.

    `coordinator_rps` counts gRPC requests and stream messages, not HTTP requests. In a view of the
    past it and `shard_assignment_time` are null, because they are not recorded.
    """

    checkpoint_throughput: float | None
    coordinator_rps: float | None
    active_workers: int
    total_workers: int
    barrier_latency_p99: float | None
    shard_assignment_time: float | None


class Totals(Struct, frozen=True):
    """Full counts of each list; of alerts only the open ones count."""

    workers: int
    workers_by_status: dict[WorkerStatus, int]
    datasets: int
    checkpoints: int
    barriers: int
    tasks: int
    agents: int
    alerts: int
