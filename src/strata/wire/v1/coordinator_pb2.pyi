from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_INITIALIZING: _ClassVar[WorkerState]
    WORKER_STATE_IDLE: _ClassVar[WorkerState]
    WORKER_STATE_LOADING_DATA: _ClassVar[WorkerState]
    WORKER_STATE_TRAINING: _ClassVar[WorkerState]
    WORKER_STATE_CHECKPOINTING: _ClassVar[WorkerState]
    WORKER_STATE_RECOVERING: _ClassVar[WorkerState]
    WORKER_STATE_ERROR: _ClassVar[WorkerState]

class CheckpointType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_TYPE_UNSPECIFIED: _ClassVar[CheckpointType]
    CHECKPOINT_TYPE_FULL: _ClassVar[CheckpointType]
    CHECKPOINT_TYPE_INCREMENTAL: _ClassVar[CheckpointType]
    CHECKPOINT_TYPE_OPTIMIZER_ONLY: _ClassVar[CheckpointType]
    CHECKPOINT_TYPE_MODEL_ONLY: _ClassVar[CheckpointType]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_INITIALIZING: WorkerState
WORKER_STATE_IDLE: WorkerState
WORKER_STATE_LOADING_DATA: WorkerState
WORKER_STATE_TRAINING: WorkerState
WORKER_STATE_CHECKPOINTING: WorkerState
WORKER_STATE_RECOVERING: WorkerState
WORKER_STATE_ERROR: WorkerState
CHECKPOINT_TYPE_UNSPECIFIED: CheckpointType
CHECKPOINT_TYPE_FULL: CheckpointType
CHECKPOINT_TYPE_INCREMENTAL: CheckpointType
CHECKPOINT_TYPE_OPTIMIZER_ONLY: CheckpointType
CHECKPOINT_TYPE_MODEL_ONLY: CheckpointType

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "hostname", "port", "gpu_count", "memory_bytes", "metadata", "task_id", "nonce", "world_size", "weight", "start", "syncs", "retention")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    hostname: str
    port: int
    gpu_count: int
    memory_bytes: int
    metadata: _containers.ScalarMap[str, str]
    task_id: str
    nonce: str
    world_size: int
    weight: int
    start: int
    syncs: bool
    retention: Retention
    def __init__(self, worker_id: _Optional[str] = ..., hostname: _Optional[str] = ..., port: _Optional[int] = ..., gpu_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., task_id: _Optional[str] = ..., nonce: _Optional[str] = ..., world_size: _Optional[int] = ..., weight: _Optional[int] = ..., start: _Optional[int] = ..., syncs: _Optional[bool] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("keep_count", "keep_every", "keep_best", "keep_best_count")
    KEEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEEP_EVERY_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    keep_count: int
    keep_every: int
    keep_best: str
    keep_best_count: int
    def __init__(self, keep_count: _Optional[int] = ..., keep_every: _Optional[int] = ..., keep_best: _Optional[str] = ..., keep_best_count: _Optional[int] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("assigned_id", "rank", "world_size", "heartbeat_interval_ms", "config", "incarnation", "task_id", "generation", "role")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ASSIGNED_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    assigned_id: str
    rank: int
    world_size: int
    heartbeat_interval_ms: int
    config: _containers.ScalarMap[str, str]
    incarnation: int
    task_id: str
    generation: int
    role: str
    def __init__(self, assigned_id: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ..., incarnation: _Optional[int] = ..., task_id: _Optional[str] = ..., generation: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class DeregisterWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "incarnation", "reason", "nonce")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    reason: str
    nonce: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ..., nonce: _Optional[str] = ...) -> None: ...

class DeregisterWorkerResponse(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class GpuMetrics(_message.Message):
    __slots__ = ("index", "name", "utilization_percent", "memory_used_bytes", "memory_total_bytes", "partitioned")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONED_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    utilization_percent: float
    memory_used_bytes: int
    memory_total_bytes: int
    partitioned: bool
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., utilization_percent: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., partitioned: _Optional[bool] = ...) -> None: ...

class ResourceMetrics(_message.Message):
    __slots__ = ("cpu_percent", "memory_used_bytes", "gpu_metrics", "disk_read_bytes", "disk_write_bytes", "network_rx_bytes", "network_tx_bytes", "disk_free_bytes", "disk_source")
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_METRICS_FIELD_NUMBER: _ClassVar[int]
    DISK_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_WRITE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_RX_BYTES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_TX_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    cpu_percent: float
    memory_used_bytes: int
    gpu_metrics: _containers.RepeatedCompositeFieldContainer[GpuMetrics]
    disk_read_bytes: int
    disk_write_bytes: int
    network_rx_bytes: int
    network_tx_bytes: int
    disk_free_bytes: int
    disk_source: str
    def __init__(self, cpu_percent: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., gpu_metrics: _Optional[_Iterable[_Union[GpuMetrics, _Mapping]]] = ..., disk_read_bytes: _Optional[int] = ..., disk_write_bytes: _Optional[int] = ..., network_rx_bytes: _Optional[int] = ..., network_tx_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_source: _Optional[str] = ...) -> None: ...

class HostHealth(_message.Message):
    __slots__ = ("load_1m", "cpu_count", "cpu_pressure_percent", "memory_pressure_percent", "io_pressure_percent", "memory_total_bytes", "memory_available_bytes", "oom_kills", "cgroup_oom_kills", "disk_latency_ms", "slowest_disk", "disk_total_bytes", "disk_free_bytes", "nic_errors", "nic_drops", "gpus")
    LOAD_1M_FIELD_NUMBER: _ClassVar[int]
    CPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    CPU_PRESSURE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    IO_PRESSURE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OOM_KILLS_FIELD_NUMBER: _ClassVar[int]
    CGROUP_OOM_KILLS_FIELD_NUMBER: _ClassVar[int]
    DISK_LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_DISK_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NIC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    NIC_DROPS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    load_1m: float
    cpu_count: int
    cpu_pressure_percent: float
    memory_pressure_percent: float
    io_pressure_percent: float
    memory_total_bytes: int
    memory_available_bytes: int
    oom_kills: int
    cgroup_oom_kills: int
    disk_latency_ms: float
    slowest_disk: str
    disk_total_bytes: int
    disk_free_bytes: int
    nic_errors: int
    nic_drops: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuHealth]
    def __init__(self, load_1m: _Optional[float] = ..., cpu_count: _Optional[int] = ..., cpu_pressure_percent: _Optional[float] = ..., memory_pressure_percent: _Optional[float] = ..., io_pressure_percent: _Optional[float] = ..., memory_total_bytes: _Optional[int] = ..., memory_available_bytes: _Optional[int] = ..., oom_kills: _Optional[int] = ..., cgroup_oom_kills: _Optional[int] = ..., disk_latency_ms: _Optional[float] = ..., slowest_disk: _Optional[str] = ..., disk_total_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., nic_errors: _Optional[int] = ..., nic_drops: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuHealth, _Mapping]]] = ...) -> None: ...

class GpuHealth(_message.Message):
    __slots__ = ("index", "name", "lost", "utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius", "memory_temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz", "memory_clock_mhz", "throttle_reasons", "ecc_corrected", "ecc_uncorrected", "xid_errors", "last_xid", "pcie_replays", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_errors", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "uuid")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_WATTS_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    ECC_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    XID_ERRORS_FIELD_NUMBER: _ClassVar[int]
    LAST_XID_FIELD_NUMBER: _ClassVar[int]
    PCIE_REPLAYS_FIELD_NUMBER: _ClassVar[int]
    PCIE_RX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PCIE_TX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NVLINK_ERRORS_FIELD_NUMBER: _ClassVar[int]
    NVLINK_RX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NVLINK_TX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    lost: bool
    utilization_percent: float
    memory_used_bytes: int
    memory_total_bytes: int
    temperature_celsius: float
    memory_temperature_celsius: float
    power_watts: float
    power_limit_watts: float
    sm_clock_mhz: int
    memory_clock_mhz: int
    throttle_reasons: str
    ecc_corrected: int
    ecc_uncorrected: int
    xid_errors: int
    last_xid: int
    pcie_replays: int
    pcie_rx_bytes_per_s: float
    pcie_tx_bytes_per_s: float
    nvlink_errors: int
    nvlink_rx_bytes_per_s: float
    nvlink_tx_bytes_per_s: float
    uuid: str
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., lost: _Optional[bool] = ..., utilization_percent: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., temperature_celsius: _Optional[float] = ..., memory_temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., power_limit_watts: _Optional[float] = ..., sm_clock_mhz: _Optional[int] = ..., memory_clock_mhz: _Optional[int] = ..., throttle_reasons: _Optional[str] = ..., ecc_corrected: _Optional[int] = ..., ecc_uncorrected: _Optional[int] = ..., xid_errors: _Optional[int] = ..., last_xid: _Optional[int] = ..., pcie_replays: _Optional[int] = ..., pcie_rx_bytes_per_s: _Optional[float] = ..., pcie_tx_bytes_per_s: _Optional[float] = ..., nvlink_errors: _Optional[int] = ..., nvlink_rx_bytes_per_s: _Optional[float] = ..., nvlink_tx_bytes_per_s: _Optional[float] = ..., uuid: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "timestamp_ms", "state", "current_step", "current_epoch", "current_task", "resources", "incarnation", "nonce")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_STEP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TASK_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    timestamp_ms: int
    state: WorkerState
    current_step: int
    current_epoch: int
    current_task: str
    resources: ResourceMetrics
    incarnation: int
    nonce: str
    def __init__(self, worker_id: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., current_step: _Optional[int] = ..., current_epoch: _Optional[int] = ..., current_task: _Optional[str] = ..., resources: _Optional[_Union[ResourceMetrics, _Mapping]] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("acknowledged", "server_timestamp_ms", "pending_commands")
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COMMANDS_FIELD_NUMBER: _ClassVar[int]
    acknowledged: bool
    server_timestamp_ms: int
    pending_commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, acknowledged: _Optional[bool] = ..., server_timestamp_ms: _Optional[int] = ..., pending_commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("kind", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    reason: str
    def __init__(self, kind: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RegisterDatasetRequest(_message.Message):
    __slots__ = ("dataset_id", "path", "format", "total_samples", "shard_size", "shuffle", "seed", "metadata", "name", "fingerprint")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    path: str
    format: str
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    metadata: _containers.ScalarMap[str, str]
    name: str
    fingerprint: str
    def __init__(self, dataset_id: _Optional[str] = ..., path: _Optional[str] = ..., format: _Optional[str] = ..., total_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., name: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class RegisterDatasetResponse(_message.Message):
    __slots__ = ("total_shards",)
    TOTAL_SHARDS_FIELD_NUMBER: _ClassVar[int]
    total_shards: int
    def __init__(self, total_shards: _Optional[int] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("dataset_id",)
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    def __init__(self, dataset_id: _Optional[str] = ...) -> None: ...

class GetDataShardRequest(_message.Message):
    __slots__ = ("worker_id", "dataset_id", "epoch", "index")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dataset_id: str
    epoch: int
    index: int
    def __init__(self, worker_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class GetDataShardsRequest(_message.Message):
    __slots__ = ("worker_id", "dataset_id", "epoch")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    dataset_id: str
    epoch: int
    def __init__(self, worker_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DataShard(_message.Message):
    __slots__ = ("dataset_id", "shard_id", "total_shards", "start_index", "end_index", "file_paths", "epoch")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SHARDS_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    FILE_PATHS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    shard_id: int
    total_shards: int
    start_index: int
    end_index: int
    file_paths: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    def __init__(self, dataset_id: _Optional[str] = ..., shard_id: _Optional[int] = ..., total_shards: _Optional[int] = ..., start_index: _Optional[int] = ..., end_index: _Optional[int] = ..., file_paths: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class GetDataShardsResponse(_message.Message):
    __slots__ = ("shards", "generation")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[DataShard]
    generation: int
    def __init__(self, shards: _Optional[_Iterable[_Union[DataShard, _Mapping]]] = ..., generation: _Optional[int] = ...) -> None: ...

class AdvanceEpochRequest(_message.Message):
    __slots__ = ("dataset_id", "worker_id", "from_epoch", "incarnation", "nonce")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    worker_id: str
    from_epoch: int
    incarnation: int
    nonce: str
    def __init__(self, dataset_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., from_epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class AdvanceEpochResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class NotifyCheckpointRequest(_message.Message):
    __slots__ = ("worker_id", "checkpoint_id", "step", "epoch", "storage_path", "size_bytes", "type", "metadata", "checksum", "incarnation", "nonce", "metrics")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    checkpoint_id: str
    step: int
    epoch: int
    storage_path: str
    size_bytes: int
    type: CheckpointType
    metadata: _containers.ScalarMap[str, str]
    checksum: str
    incarnation: int
    nonce: str
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, worker_id: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., storage_path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., type: _Optional[_Union[CheckpointType, str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., checksum: _Optional[str] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CheckpointAck(_message.Message):
    __slots__ = ("success", "global_step", "checkpoint_id", "status")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    global_step: int
    checkpoint_id: str
    status: str
    def __init__(self, success: _Optional[bool] = ..., global_step: _Optional[int] = ..., checkpoint_id: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("checkpoint_id", "step", "epoch", "storage_path", "size_bytes", "created_at_ms", "worker_id", "status", "reason")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    step: int
    epoch: int
    storage_path: str
    size_bytes: int
    created_at_ms: int
    worker_id: str
    status: str
    reason: str
    def __init__(self, checkpoint_id: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., storage_path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., worker_id: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetLatestCheckpointRequest(_message.Message):
    __slots__ = ("worker_id", "task_id")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    task_id: str
    def __init__(self, worker_id: _Optional[str] = ..., task_id: _Optional[str] = ...) -> None: ...

class RecoveryResponse(_message.Message):
    __slots__ = ("has_checkpoint", "latest_checkpoint", "resume_step", "resume_epoch", "shard_assignments")
    HAS_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LATEST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    RESUME_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    has_checkpoint: bool
    latest_checkpoint: Checkpoint
    resume_step: int
    resume_epoch: int
    shard_assignments: _containers.RepeatedCompositeFieldContainer[DataShard]
    def __init__(self, has_checkpoint: _Optional[bool] = ..., latest_checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., resume_step: _Optional[int] = ..., resume_epoch: _Optional[int] = ..., shard_assignments: _Optional[_Iterable[_Union[DataShard, _Mapping]]] = ...) -> None: ...

class WaitBarrierRequest(_message.Message):
    __slots__ = ("worker_id", "barrier_id", "step", "incarnation", "request", "nonce")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    barrier_id: str
    step: int
    incarnation: int
    request: int
    nonce: str
    def __init__(self, worker_id: _Optional[str] = ..., barrier_id: _Optional[str] = ..., step: _Optional[int] = ..., incarnation: _Optional[int] = ..., request: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class WaitBarrierResponse(_message.Message):
    __slots__ = ("released", "participants", "arrival_order", "missing", "reason", "round", "generation")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_ORDER_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    released: bool
    participants: int
    arrival_order: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    round: int
    generation: int
    def __init__(self, released: _Optional[bool] = ..., participants: _Optional[int] = ..., arrival_order: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., round: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("request", "hello", "beat", "events", "logs", "arrive", "enter", "attach", "begin_checkpoint", "ack_part", "fail_part", "leave", "preview", "request_save", "refuse_recovery", "broken_exchange", "acquire_lease", "return_lease", "agree", "leave_loop", "stop_run", "postpone_save", "report_storage", "end_training", "ask_for_media_room", "stacks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    ARRIVE_FIELD_NUMBER: _ClassVar[int]
    ENTER_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ACK_PART_FIELD_NUMBER: _ClassVar[int]
    FAIL_PART_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SAVE_FIELD_NUMBER: _ClassVar[int]
    REFUSE_RECOVERY_FIELD_NUMBER: _ClassVar[int]
    BROKEN_EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_LEASE_FIELD_NUMBER: _ClassVar[int]
    RETURN_LEASE_FIELD_NUMBER: _ClassVar[int]
    AGREE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_LOOP_FIELD_NUMBER: _ClassVar[int]
    STOP_RUN_FIELD_NUMBER: _ClassVar[int]
    POSTPONE_SAVE_FIELD_NUMBER: _ClassVar[int]
    REPORT_STORAGE_FIELD_NUMBER: _ClassVar[int]
    END_TRAINING_FIELD_NUMBER: _ClassVar[int]
    ASK_FOR_MEDIA_ROOM_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    request: int
    hello: Hello
    beat: Beat
    events: EventBatch
    logs: LogLines
    arrive: Arrive
    enter: Enter
    attach: AttachDataset
    begin_checkpoint: BeginCheckpoint
    ack_part: AckPart
    fail_part: FailPart
    leave: Leave
    preview: Preview
    request_save: RequestSave
    refuse_recovery: RefuseRecovery
    broken_exchange: ReportBrokenExchange
    acquire_lease: AcquireLease
    return_lease: ReturnLease
    agree: Agree
    leave_loop: LeaveLoop
    stop_run: StopRun
    postpone_save: PostponeSave
    report_storage: ReportStorage
    end_training: EndTraining
    ask_for_media_room: AskForMediaRoom
    stacks: Stacks
    def __init__(self, request: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., events: _Optional[_Union[EventBatch, _Mapping]] = ..., logs: _Optional[_Union[LogLines, _Mapping]] = ..., arrive: _Optional[_Union[Arrive, _Mapping]] = ..., enter: _Optional[_Union[Enter, _Mapping]] = ..., attach: _Optional[_Union[AttachDataset, _Mapping]] = ..., begin_checkpoint: _Optional[_Union[BeginCheckpoint, _Mapping]] = ..., ack_part: _Optional[_Union[AckPart, _Mapping]] = ..., fail_part: _Optional[_Union[FailPart, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., preview: _Optional[_Union[Preview, _Mapping]] = ..., request_save: _Optional[_Union[RequestSave, _Mapping]] = ..., refuse_recovery: _Optional[_Union[RefuseRecovery, _Mapping]] = ..., broken_exchange: _Optional[_Union[ReportBrokenExchange, _Mapping]] = ..., acquire_lease: _Optional[_Union[AcquireLease, _Mapping]] = ..., return_lease: _Optional[_Union[ReturnLease, _Mapping]] = ..., agree: _Optional[_Union[Agree, _Mapping]] = ..., leave_loop: _Optional[_Union[LeaveLoop, _Mapping]] = ..., stop_run: _Optional[_Union[StopRun, _Mapping]] = ..., postpone_save: _Optional[_Union[PostponeSave, _Mapping]] = ..., report_storage: _Optional[_Union[ReportStorage, _Mapping]] = ..., end_training: _Optional[_Union[EndTraining, _Mapping]] = ..., ask_for_media_room: _Optional[_Union[AskForMediaRoom, _Mapping]] = ..., stacks: _Optional[_Union[Stacks, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "incarnation", "nonce", "left")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    nonce: str
    left: _containers.RepeatedCompositeFieldContainer[LeftBarrier]
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[str] = ..., left: _Optional[_Iterable[_Union[LeftBarrier, _Mapping]]] = ...) -> None: ...

class LeftBarrier(_message.Message):
    __slots__ = ("barrier_id", "round", "generation", "participants", "step")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    round: int
    generation: int
    participants: int
    step: int
    def __init__(self, barrier_id: _Optional[str] = ..., round: _Optional[int] = ..., generation: _Optional[int] = ..., participants: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("state", "attempt", "generation", "step", "epoch", "waiting", "resources", "sent_mono_ns", "sent_wall_ns", "save_request", "saving", "loss", "busy_s", "host", "data_s")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    SENT_MONO_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_WALL_NS_FIELD_NUMBER: _ClassVar[int]
    SAVE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SAVING_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DATA_S_FIELD_NUMBER: _ClassVar[int]
    state: WorkerState
    attempt: int
    generation: int
    step: int
    epoch: int
    waiting: bool
    resources: ResourceMetrics
    sent_mono_ns: int
    sent_wall_ns: int
    save_request: int
    saving: Saving
    loss: float
    busy_s: float
    host: HostHealth
    data_s: float
    def __init__(self, state: _Optional[_Union[WorkerState, str]] = ..., attempt: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., waiting: _Optional[bool] = ..., resources: _Optional[_Union[ResourceMetrics, _Mapping]] = ..., sent_mono_ns: _Optional[int] = ..., sent_wall_ns: _Optional[int] = ..., save_request: _Optional[int] = ..., saving: _Optional[_Union[Saving, _Mapping]] = ..., loss: _Optional[float] = ..., busy_s: _Optional[float] = ..., host: _Optional[_Union[HostHealth, _Mapping]] = ..., data_s: _Optional[float] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("first_seq", "count", "wall_from_ns", "wall_to_ns", "kinds", "payload")
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WALL_FROM_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_TO_NS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    first_seq: int
    count: int
    wall_from_ns: int
    wall_to_ns: int
    kinds: _containers.RepeatedScalarFieldContainer[str]
    payload: bytes
    def __init__(self, first_seq: _Optional[int] = ..., count: _Optional[int] = ..., wall_from_ns: _Optional[int] = ..., wall_to_ns: _Optional[int] = ..., kinds: _Optional[_Iterable[str]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class LogLines(_message.Message):
    __slots__ = ("lines", "dropped", "first", "sender")
    LINES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    dropped: int
    first: int
    sender: str
    def __init__(self, lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., dropped: _Optional[int] = ..., first: _Optional[int] = ..., sender: _Optional[str] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("timestamp_ms", "level", "message", "stream")
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    timestamp_ms: int
    level: str
    message: str
    stream: str
    def __init__(self, timestamp_ms: _Optional[int] = ..., level: _Optional[str] = ..., message: _Optional[str] = ..., stream: _Optional[str] = ...) -> None: ...

class Arrive(_message.Message):
    __slots__ = ("barrier_id", "step", "arrival", "generation", "after")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    step: int
    arrival: int
    generation: int
    after: int
    def __init__(self, barrier_id: _Optional[str] = ..., step: _Optional[int] = ..., arrival: _Optional[int] = ..., generation: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class Enter(_message.Message):
    __slots__ = ("generation", "model_attempt", "model_generation", "step", "address", "meeting", "rebuilds", "trainer")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MODEL_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    REBUILDS_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    generation: int
    model_attempt: int
    model_generation: int
    step: int
    address: str
    meeting: str
    rebuilds: bool
    trainer: str
    def __init__(self, generation: _Optional[int] = ..., model_attempt: _Optional[int] = ..., model_generation: _Optional[int] = ..., step: _Optional[int] = ..., address: _Optional[str] = ..., meeting: _Optional[str] = ..., rebuilds: _Optional[bool] = ..., trainer: _Optional[str] = ...) -> None: ...

class ReportBrokenExchange(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AcquireLease(_message.Message):
    __slots__ = ("dataset_id", "after")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    after: int
    def __init__(self, dataset_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class ReturnLease(_message.Message):
    __slots__ = ("dataset_id", "lease_id", "consumed", "reason")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    lease_id: int
    consumed: bool
    reason: str
    def __init__(self, dataset_id: _Optional[str] = ..., lease_id: _Optional[int] = ..., consumed: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class RequestSave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class PostponeSave(_message.Message):
    __slots__ = ("generation", "step", "reason", "busy_s", "missed")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    reason: str
    busy_s: float
    missed: bool
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ..., busy_s: _Optional[float] = ..., missed: _Optional[bool] = ...) -> None: ...

class RefuseRecovery(_message.Message):
    __slots__ = ("generation", "reason", "damaged")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    damaged: bool
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ..., damaged: _Optional[bool] = ...) -> None: ...

class ReportStorage(_message.Message):
    __slots__ = ("generation", "reachable", "reason", "missing")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reachable: bool
    reason: str
    missing: bool
    def __init__(self, generation: _Optional[int] = ..., reachable: _Optional[bool] = ..., reason: _Optional[str] = ..., missing: _Optional[bool] = ...) -> None: ...

class Saving(_message.Message):
    __slots__ = ("checkpoint_id", "written_bytes", "total_bytes")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    written_bytes: int
    total_bytes: int
    def __init__(self, checkpoint_id: _Optional[str] = ..., written_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class AttachDataset(_message.Message):
    __slots__ = ("dataset_id", "unit", "global_batch", "epochs", "lanes", "batch_size", "mode", "window", "rebalance", "loop", "loop_epochs", "step", "steps", "drop_tail", "entering", "until")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    LOOP_FIELD_NUMBER: _ClassVar[int]
    LOOP_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DROP_TAIL_FIELD_NUMBER: _ClassVar[int]
    ENTERING_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    unit: str
    global_batch: int
    epochs: int
    lanes: int
    batch_size: int
    mode: str
    window: int
    rebalance: bool
    loop: str
    loop_epochs: int
    step: int
    steps: int
    drop_tail: bool
    entering: bool
    until: int
    def __init__(self, dataset_id: _Optional[str] = ..., unit: _Optional[str] = ..., global_batch: _Optional[int] = ..., epochs: _Optional[int] = ..., lanes: _Optional[int] = ..., batch_size: _Optional[int] = ..., mode: _Optional[str] = ..., window: _Optional[int] = ..., rebalance: _Optional[bool] = ..., loop: _Optional[str] = ..., loop_epochs: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., drop_tail: _Optional[bool] = ..., entering: _Optional[bool] = ..., until: _Optional[int] = ...) -> None: ...

class Agree(_message.Message):
    __slots__ = ("key", "step", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    step: int
    value: str
    def __init__(self, key: _Optional[str] = ..., step: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...

class Agreed(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class LeaveLoop(_message.Message):
    __slots__ = ("loop", "step", "worker_id")
    LOOP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    loop: str
    step: int
    worker_id: str
    def __init__(self, loop: _Optional[str] = ..., step: _Optional[int] = ..., worker_id: _Optional[str] = ...) -> None: ...

class EndTraining(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class AskForMediaRoom(_message.Message):
    __slots__ = ("total_bytes",)
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    def __init__(self, total_bytes: _Optional[int] = ...) -> None: ...

class MediaRoom(_message.Message):
    __slots__ = ("granted_bytes",)
    GRANTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    granted_bytes: int
    def __init__(self, granted_bytes: _Optional[int] = ...) -> None: ...

class StopRun(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Preview(_message.Message):
    __slots__ = ("dataset_id", "samples")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    samples: str
    def __init__(self, dataset_id: _Optional[str] = ..., samples: _Optional[str] = ...) -> None: ...

class BeginCheckpoint(_message.Message):
    __slots__ = ("generation", "step", "epoch", "path", "type", "metadata", "final")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    epoch: int
    path: str
    type: CheckpointType
    metadata: _containers.ScalarMap[str, str]
    final: bool
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., path: _Optional[str] = ..., type: _Optional[_Union[CheckpointType, str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., final: _Optional[bool] = ...) -> None: ...

class AckPart(_message.Message):
    __slots__ = ("checkpoint_id", "path", "size_bytes", "checksum", "kept_bytes", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    path: str
    size_bytes: int
    checksum: str
    kept_bytes: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, checkpoint_id: _Optional[str] = ..., path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[str] = ..., kept_bytes: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class FailPart(_message.Message):
    __slots__ = ("checkpoint_id", "reason")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    reason: str
    def __init__(self, checkpoint_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("outcome", "reason", "steps", "save_failure", "refused")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAVE_FAILURE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    reason: str
    steps: int
    save_failure: str
    refused: bool
    def __init__(self, outcome: _Optional[str] = ..., reason: _Optional[str] = ..., steps: _Optional[int] = ..., save_failure: _Optional[str] = ..., refused: _Optional[bool] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("request", "standing", "pulse", "stored", "barrier", "done", "refused", "checkpoint", "feed", "lease", "agreed", "media_room", "collect_stacks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    PULSE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    MEDIA_ROOM_FIELD_NUMBER: _ClassVar[int]
    COLLECT_STACKS_FIELD_NUMBER: _ClassVar[int]
    request: int
    standing: Standing
    pulse: Pulse
    stored: Stored
    barrier: BarrierOutcome
    done: Done
    refused: Refused
    checkpoint: CheckpointOpened
    feed: Feed
    lease: Lease
    agreed: Agreed
    media_room: MediaRoom
    collect_stacks: CollectStacks
    def __init__(self, request: _Optional[int] = ..., standing: _Optional[_Union[Standing, _Mapping]] = ..., pulse: _Optional[_Union[Pulse, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., barrier: _Optional[_Union[BarrierOutcome, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointOpened, _Mapping]] = ..., feed: _Optional[_Union[Feed, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., agreed: _Optional[_Union[Agreed, _Mapping]] = ..., media_room: _Optional[_Union[MediaRoom, _Mapping]] = ..., collect_stacks: _Optional[_Union[CollectStacks, _Mapping]] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("worker_id", "incarnation", "task_id", "task_state", "generation", "rank", "world_size", "phase", "attempt", "committed", "checkpoint_requests", "recovery", "lanes", "stored_seq", "save_at", "peer_token", "leader", "agreed", "loop_exit", "finished_step", "released", "planned_changes", "peer_certificate")
    class LanesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Lanes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Lanes, _Mapping]] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    STORED_SEQ_FIELD_NUMBER: _ClassVar[int]
    SAVE_AT_FIELD_NUMBER: _ClassVar[int]
    PEER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    LOOP_EXIT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_STEP_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    PLANNED_CHANGES_FIELD_NUMBER: _ClassVar[int]
    PEER_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    task_id: str
    task_state: str
    generation: int
    rank: int
    world_size: int
    phase: str
    attempt: int
    committed: int
    checkpoint_requests: int
    recovery: Recovery
    lanes: _containers.MessageMap[str, Lanes]
    stored_seq: int
    save_at: int
    peer_token: str
    leader: str
    agreed: int
    loop_exit: LeaveLoop
    finished_step: int
    released: bool
    planned_changes: int
    peer_certificate: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., task_id: _Optional[str] = ..., task_state: _Optional[str] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., phase: _Optional[str] = ..., attempt: _Optional[int] = ..., committed: _Optional[int] = ..., checkpoint_requests: _Optional[int] = ..., recovery: _Optional[_Union[Recovery, _Mapping]] = ..., lanes: _Optional[_Mapping[str, Lanes]] = ..., stored_seq: _Optional[int] = ..., save_at: _Optional[int] = ..., peer_token: _Optional[str] = ..., leader: _Optional[str] = ..., agreed: _Optional[int] = ..., loop_exit: _Optional[_Union[LeaveLoop, _Mapping]] = ..., finished_step: _Optional[int] = ..., released: _Optional[bool] = ..., planned_changes: _Optional[int] = ..., peer_certificate: _Optional[str] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("source", "step", "worker_id", "checkpoint_id", "model_generation", "peers", "fetching", "copies", "model_attempt")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_GENERATION_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    FETCHING_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    MODEL_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    source: str
    step: int
    worker_id: str
    checkpoint_id: str
    model_generation: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    fetching: int
    copies: int
    model_attempt: int
    def __init__(self, source: _Optional[str] = ..., step: _Optional[int] = ..., worker_id: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., model_generation: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., fetching: _Optional[int] = ..., copies: _Optional[int] = ..., model_attempt: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("worker_id", "address")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Lanes(_message.Message):
    __slots__ = ("lanes",)
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lanes: _Optional[_Iterable[int]] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("sent_mono_ns", "server_wall_ns", "server_mono_ns", "lines", "watched_s")
    SENT_MONO_NS_FIELD_NUMBER: _ClassVar[int]
    SERVER_WALL_NS_FIELD_NUMBER: _ClassVar[int]
    SERVER_MONO_NS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    sent_mono_ns: int
    server_wall_ns: int
    server_mono_ns: int
    lines: int
    watched_s: float
    def __init__(self, sent_mono_ns: _Optional[int] = ..., server_wall_ns: _Optional[int] = ..., server_mono_ns: _Optional[int] = ..., lines: _Optional[int] = ..., watched_s: _Optional[float] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("seq", "lines")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    lines: int
    def __init__(self, seq: _Optional[int] = ..., lines: _Optional[int] = ...) -> None: ...

class BarrierOutcome(_message.Message):
    __slots__ = ("barrier_id", "arrival", "outcome")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    arrival: int
    outcome: WaitBarrierResponse
    def __init__(self, barrier_id: _Optional[str] = ..., arrival: _Optional[int] = ..., outcome: _Optional[_Union[WaitBarrierResponse, _Mapping]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CollectStacks(_message.Message):
    __slots__ = ("task_id", "collection", "worker_ids", "limit_ms", "max_bytes")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    collection: int
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    limit_ms: int
    max_bytes: int
    def __init__(self, task_id: _Optional[str] = ..., collection: _Optional[int] = ..., worker_ids: _Optional[_Iterable[str]] = ..., limit_ms: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class Stacks(_message.Message):
    __slots__ = ("task_id", "collection", "worker_id", "report")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    collection: int
    worker_id: str
    report: bytes
    def __init__(self, task_id: _Optional[str] = ..., collection: _Optional[int] = ..., worker_id: _Optional[str] = ..., report: _Optional[bytes] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "shard", "ended")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    shard: DataShard
    ended: bool
    def __init__(self, lease_id: _Optional[int] = ..., shard: _Optional[_Union[DataShard, _Mapping]] = ..., ended: _Optional[bool] = ...) -> None: ...

class Feed(_message.Message):
    __slots__ = ("dataset", "unit", "count", "global_batch", "epochs", "mode", "window", "loop")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LOOP_FIELD_NUMBER: _ClassVar[int]
    dataset: RegisterDatasetRequest
    unit: str
    count: int
    global_batch: int
    epochs: int
    mode: str
    window: int
    loop: Loop
    def __init__(self, dataset: _Optional[_Union[RegisterDatasetRequest, _Mapping]] = ..., unit: _Optional[str] = ..., count: _Optional[int] = ..., global_batch: _Optional[int] = ..., epochs: _Optional[int] = ..., mode: _Optional[str] = ..., window: _Optional[int] = ..., loop: _Optional[_Union[Loop, _Mapping]] = ...) -> None: ...

class Loop(_message.Message):
    __slots__ = ("start", "first", "steps")
    START_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    start: int
    first: int
    steps: int
    def __init__(self, start: _Optional[int] = ..., first: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class CheckpointOpened(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "message", "hint")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    hint: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "beat", "exited", "output", "left", "health", "stacks", "self_test_failed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    SELF_TEST_FAILED_FIELD_NUMBER: _ClassVar[int]
    hello: AgentHello
    beat: AgentBeat
    exited: ProcessExited
    output: ProcessOutput
    left: LeftEvents
    health: HostHealth
    stacks: Stacks
    self_test_failed: SelfTestFailed
    def __init__(self, hello: _Optional[_Union[AgentHello, _Mapping]] = ..., beat: _Optional[_Union[AgentBeat, _Mapping]] = ..., exited: _Optional[_Union[ProcessExited, _Mapping]] = ..., output: _Optional[_Union[ProcessOutput, _Mapping]] = ..., left: _Optional[_Union[LeftEvents, _Mapping]] = ..., health: _Optional[_Union[HostHealth, _Mapping]] = ..., stacks: _Optional[_Union[Stacks, _Mapping]] = ..., self_test_failed: _Optional[_Union[SelfTestFailed, _Mapping]] = ...) -> None: ...

class SelfTestFailed(_message.Message):
    __slots__ = ("task_id", "reason", "gpu")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    reason: str
    gpu: str
    def __init__(self, task_id: _Optional[str] = ..., reason: _Optional[str] = ..., gpu: _Optional[str] = ...) -> None: ...

class AgentHello(_message.Message):
    __slots__ = ("agent_id", "hostname", "slots", "nonce", "slot_gpus")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SLOT_GPUS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    hostname: str
    slots: int
    nonce: str
    slot_gpus: _containers.RepeatedCompositeFieldContainer[SlotGpus]
    def __init__(self, agent_id: _Optional[str] = ..., hostname: _Optional[str] = ..., slots: _Optional[int] = ..., nonce: _Optional[str] = ..., slot_gpus: _Optional[_Iterable[_Union[SlotGpus, _Mapping]]] = ...) -> None: ...

class SlotGpus(_message.Message):
    __slots__ = ("gpus",)
    GPUS_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    def __init__(self, gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "uuid")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ...) -> None: ...

class AgentBeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessExited(_message.Message):
    __slots__ = ("task_id", "worker_id", "start", "code", "signal", "gpus")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker_id: str
    start: int
    code: int
    signal: int
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., start: _Optional[int] = ..., code: _Optional[int] = ..., signal: _Optional[int] = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class ProcessOutput(_message.Message):
    __slots__ = ("task_id", "worker_id", "logs")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker_id: str
    logs: LogLines
    def __init__(self, task_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., logs: _Optional[_Union[LogLines, _Mapping]] = ...) -> None: ...

class LeftEvents(_message.Message):
    __slots__ = ("worker_id", "incarnation", "events")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    events: EventBatch
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., events: _Optional[_Union[EventBatch, _Mapping]] = ...) -> None: ...

class AgentOrder(_message.Message):
    __slots__ = ("duties", "exit_stored", "refused", "output_taken", "left_settled", "collect_stacks")
    DUTIES_FIELD_NUMBER: _ClassVar[int]
    EXIT_STORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TAKEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_SETTLED_FIELD_NUMBER: _ClassVar[int]
    COLLECT_STACKS_FIELD_NUMBER: _ClassVar[int]
    duties: Duties
    exit_stored: ExitStored
    refused: Refused
    output_taken: OutputTaken
    left_settled: LeftSettled
    collect_stacks: CollectStacks
    def __init__(self, duties: _Optional[_Union[Duties, _Mapping]] = ..., exit_stored: _Optional[_Union[ExitStored, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., output_taken: _Optional[_Union[OutputTaken, _Mapping]] = ..., left_settled: _Optional[_Union[LeftSettled, _Mapping]] = ..., collect_stacks: _Optional[_Union[CollectStacks, _Mapping]] = ...) -> None: ...

class Duties(_message.Message):
    __slots__ = ("jobs", "heartbeat_interval_ms", "completed_task_ids", "excluded_gpus")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_GPUS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    heartbeat_interval_ms: int
    completed_task_ids: _containers.RepeatedScalarFieldContainer[str]
    excluded_gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., heartbeat_interval_ms: _Optional[int] = ..., completed_task_ids: _Optional[_Iterable[str]] = ..., excluded_gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("task_id", "entry", "args", "config", "environment", "working_dir", "grace_ms", "stopping", "world_size", "seats", "blocked", "self_test", "workdir", "worker_token")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIR_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    SELF_TEST_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    WORKER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    entry: str
    args: _containers.RepeatedScalarFieldContainer[str]
    config: str
    environment: _containers.ScalarMap[str, str]
    working_dir: str
    grace_ms: int
    stopping: bool
    world_size: int
    seats: _containers.RepeatedCompositeFieldContainer[Seat]
    blocked: str
    self_test: bool
    workdir: str
    worker_token: str
    def __init__(self, task_id: _Optional[str] = ..., entry: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., config: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., working_dir: _Optional[str] = ..., grace_ms: _Optional[int] = ..., stopping: _Optional[bool] = ..., world_size: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[Seat, _Mapping]]] = ..., blocked: _Optional[str] = ..., self_test: _Optional[bool] = ..., workdir: _Optional[str] = ..., worker_token: _Optional[str] = ...) -> None: ...

class ReadWorkdirRequest(_message.Message):
    __slots__ = ("workdir", "piece")
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    workdir: str
    piece: str
    def __init__(self, workdir: _Optional[str] = ..., piece: _Optional[str] = ...) -> None: ...

class ReadWorkdirResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class Seat(_message.Message):
    __slots__ = ("worker_id", "start")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    start: int
    def __init__(self, worker_id: _Optional[str] = ..., start: _Optional[int] = ...) -> None: ...

class ExitStored(_message.Message):
    __slots__ = ("task_id", "worker_id", "start")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    worker_id: str
    start: int
    def __init__(self, task_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., start: _Optional[int] = ...) -> None: ...

class OutputTaken(_message.Message):
    __slots__ = ("sender", "lines")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    sender: str
    lines: int
    def __init__(self, sender: _Optional[str] = ..., lines: _Optional[int] = ...) -> None: ...

class LeftSettled(_message.Message):
    __slots__ = ("worker_id", "incarnation", "first_seq", "refused")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    first_seq: int
    refused: Refused
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., first_seq: _Optional[int] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...
