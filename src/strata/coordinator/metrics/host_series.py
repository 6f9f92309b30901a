"""The metrics of hosts and their GPUs on GET /metrics, as tables: name, help text, unit.

Hosts are shown while their agent is up or the worker that measured them is alive. Figures that were
not measured have no series.
"""

from collections.abc import Sequence

from msgspec import Struct

from strata.coordinator.metrics.exposition import Exposition, Kind, Number, labels
from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.state import Cluster, Host

PER_HOST: dict[str, tuple[Kind, str, str]] = {
    "load_1m": ("gauge", "load_1m", "Processes that ran or waited, mean over one minute."),
    "cpu_count": ("gauge", "cpus", "CPU cores."),
    "cpu_pressure_percent": ("gauge", "cpu_pressure_ratio", "Share of a minute short of CPU."),
    "memory_pressure_percent": (
        "gauge",
        "memory_pressure_ratio",
        "Share of a minute short of memory.",
    ),
    "io_pressure_percent": ("gauge", "io_pressure_ratio", "Share of a minute short of disk."),
    "memory_total_bytes": ("gauge", "memory_total_bytes", "Memory."),
    "memory_available_bytes": ("gauge", "memory_available_bytes", "Memory without swapping."),
    "oom_kills": ("counter", "oom_kills_total", "OOM kills since boot."),
    "cgroup_oom_kills": ("counter", "cgroup_oom_kills_total", "OOM kills in the cgroup."),
    "disk_latency_ms": ("gauge", "disk_latency_seconds", "Mean request time, slowest disk."),
    "disk_total_bytes": (
        "gauge",
        "disk_total_bytes",
        "Size of the disk with the reporter's folder.",
    ),
    "disk_free_bytes": (
        "gauge",
        "disk_free_bytes",
        "Free space of the disk with the reporter's folder.",
    ),
    "nic_errors": ("counter", "network_errors_total", "Errors of network interfaces."),
    "nic_drops": ("counter", "network_drops_total", "Packets that network interfaces dropped."),
}
"""Type, name and help text of the metric for each figure of a host."""

PER_GPU: dict[str, tuple[Kind, str, str]] = {
    "lost": ("gauge", "lost", "1 if the GPU does not answer its driver."),
    "utilization_percent": ("gauge", "utilization_ratio", "GPU utilization, 0 to 1."),
    "memory_used_bytes": ("gauge", "memory_used_bytes", "GPU memory in use."),
    "memory_total_bytes": ("gauge", "memory_total_bytes", "GPU memory."),
    "temperature_celsius": ("gauge", "temperature_celsius", "GPU temperature."),
    "memory_temperature_celsius": (
        "gauge",
        "memory_temperature_celsius",
        "GPU memory temperature.",
    ),
    "power_watts": ("gauge", "power_watts", "Power draw."),
    "power_limit_watts": ("gauge", "power_limit_watts", "Enforced power limit."),
    "sm_clock_mhz": ("gauge", "sm_clock_hertz", "Clock of the multiprocessors."),
    "memory_clock_mhz": ("gauge", "memory_clock_hertz", "Clock of the memory."),
    "ecc_corrected": ("counter", "ecc_corrected_total", "Corrected ECC errors."),
    "ecc_uncorrected": ("counter", "ecc_uncorrected_total", "Uncorrected ECC errors."),
    "xid_errors": ("counter", "xid_errors_total", "Xid errors since the reporter started."),
    "last_xid": ("gauge", "last_xid", "Number of the last Xid error."),
    "pcie_replays": ("counter", "pcie_replays_total", "PCIe replays."),
    "pcie_rx_bytes_per_s": ("gauge", "pcie_received_bytes_per_second", "PCIe bytes received."),
    "pcie_tx_bytes_per_s": ("gauge", "pcie_sent_bytes_per_second", "PCIe bytes sent."),
    "nvlink_errors": ("counter", "nvlink_errors_total", "NVLink errors."),
    "nvlink_rx_bytes_per_s": (
        "gauge",
        "nvlink_received_bytes_per_second",
        "NVLink bytes received.",
    ),
    "nvlink_tx_bytes_per_s": ("gauge", "nvlink_sent_bytes_per_second", "NVLink bytes sent."),
}
"""Type, name and help text of the metric for each figure of a GPU."""

THROTTLED = "1 for each reason why the clocks are reduced."


def add_hosts(page: Exposition, state: Cluster, limit: int) -> None:
    """Add the series of hosts, until `limit` hosts or GPUs have series."""
    measured = [host for host in state.hosts.values() if _is_current(state, host)]
    shown: list[tuple[str, HostHealth]] = []
    gpus: list[tuple[str, GpuHealth]] = []
    for host in measured[:limit]:
        assert host.health is not None, "only measured hosts have series"
        if gpus and len(gpus) + len(host.health.gpus) > limit:
            break
        tags = labels(host=host.id)
        shown.append((tags, host.health))
        gpus += [(f'{tags[:-1]},gpu="{gpu.index}"}}', gpu) for gpu in host.health.gpus]
    _add_figures(page, "strata_host_", PER_HOST, shown)
    _add_figures(page, "strata_host_gpu_", PER_GPU, gpus)
    page.add(
        "gauge",
        "strata_host_gpu_throttled",
        THROTTLED,
        [
            (f'{tags[:-1]},reason="{reason}"}}', 1)
            for tags, gpu in gpus
            for reason in (gpu.throttle_reasons or "").split(",")
            if reason
        ],
    )
    omitted = len(measured) - len(shown)
    page.one("gauge", "strata_host_series_omitted", "Hosts without series of their own.", omitted)


def _is_current(state: Cluster, host: Host) -> bool:
    agent, worker = state.agents.get(host.reporter), state.workers.get(host.reporter)
    reports = agent.up if agent is not None else worker is not None and worker.alive
    return reports and host.health is not None


def _add_figures(
    page: Exposition,
    prefix: str,
    table: dict[str, tuple[Kind, str, str]],
    rows: Sequence[tuple[str, Struct]],
) -> None:
    for field, (kind, name, text) in table.items():
        values = ((tags, getattr(row, field)) for tags, row in rows)
        samples = [(tags, None if v is None else in_base_unit(name, v)) for tags, v in values]
        page.add(kind, prefix + name, text, samples)


def in_base_unit(name: str, value: Number) -> Number:
    """A value in the unit that ends the metric's name: ratios, seconds and hertz."""
    if isinstance(value, bool):
        return int(value)
    if name.endswith("_ratio"):
        return value / 100
    if name.endswith("_seconds"):
        return value / 1000
    return value * 1_000_000 if name.endswith("_hertz") else value
