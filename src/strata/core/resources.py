"""What a worker's process and host use: measured by the worker, carried on its beats."""

from msgspec import Struct, field


class GpuMetrics(Struct, frozen=True, omit_defaults=True):
    """One card."""

    index: int
    name: str = ""
    utilization_percent: float = 0.0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0


class ResourceMetrics(Struct, frozen=True, omit_defaults=True):
    """CPU and memory are the process's own; disk and network count from the process's start.

    Network is None where the process's own traffic cannot be told from its host's.
    """

    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    gpu_metrics: list[GpuMetrics] = field(default_factory=list)
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0
    disk_free_bytes: int = 0
    network_rx_bytes: int | None = None
    network_tx_bytes: int | None = None


class Saving(Struct, frozen=True):
    """How far a worker's part of a checkpoint is."""

    checkpoint: str
    written_bytes: int
    total_bytes: int
