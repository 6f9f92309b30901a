"""The measured health of a host and its GPUs.

The agent of a host measures it; on a host without an agent, one of its workers does
(`sdk/record/host_reporter`). A figure that the kernel or the driver does not report is None, never
0. A new figure is a field here and a measurement in `sdk/record/host_files` or
`sdk/record/gpu_health`; `tests/tidy/test_resources.py` names the formats that lack it (the gRPC
message, the REST response, the Prometheus series).
"""

from msgspec import Struct, field


class GpuHealth(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU. A `lost` one does not answer its driver any more, or the driver does not list it any
    more.

    `throttle_reasons` are separated by commas, empty if the clocks are not reduced. ECC errors and
    PCIe replays count since the driver was loaded, NVLink errors since the GPU was reset, and Xid
    errors since the reporter started. `last_xid` is the last Xid error; of several that one look
    finds, the last of `FATAL_XIDS` if there is one. PCIe throughput is a mean over 20 ms, NVLink
    throughput since the measurement before.
    """

    index: int
    uuid: str = ""
    name: str = ""
    lost: bool = False
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xid_errors: int | None = None
    last_xid: int | None = None
    pcie_replays: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_errors: int | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None


class HostFigures(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One host, without its GPUs.

    Pressure is the share of the last minute in which some process waited for the resource. OOM
    kills count since the host booted, and those of the reporter's cgroup since that was created;
    NIC errors and drops count since the interfaces exist. `disk_latency_ms` is the mean time of a
    request since the measurement before, on the disk where it was highest; None without requests.
    """

    load_1m: float | None = None
    cpu_count: int | None = None
    cpu_pressure_percent: float | None = None
    memory_pressure_percent: float | None = None
    io_pressure_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    oom_kills: int | None = None
    cgroup_oom_kills: int | None = None
    disk_latency_ms: float | None = None
    slowest_disk: str = ""
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    nic_errors: int | None = None
    nic_drops: int | None = None


class HostHealth(HostFigures, frozen=True, omit_defaults=True, kw_only=True):
    """One host and its GPUs."""

    gpus: list[GpuHealth] = field(default_factory=list)


HARD_THROTTLING = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"})
"""Reasons of reduced clocks that hint at a fault; idle and power limits come and go in every
step."""


def is_urgent(before: HostHealth, now: HostHealth) -> bool:
    """Whether a change is reported at once: OOM kills, a lost GPU, uncorrected ECC errors, Xid
    errors, and the start of throttling. Its end is not, so throttling that flaps is reported once
    for each regular report."""
    return _errors(before) != _errors(now) or not _throttling(now) <= _throttling(before)


def _errors(health: HostHealth) -> tuple[object, ...]:
    cards = ((card.index, card.lost, card.ecc_uncorrected, card.xid_errors) for card in health.gpus)
    return (health.oom_kills, health.cgroup_oom_kills, *cards)


def _throttling(health: HostHealth) -> set[int]:
    """The GPUs whose clocks are reduced for a reason that hints at a fault."""
    return {
        card.index
        for card in health.gpus
        if HARD_THROTTLING.intersection((card.throttle_reasons or "").split(","))
    }


def rising_errors(health: HostHealth) -> tuple[object, ...]:
    """Counters of corrected errors. They may rise all the time, so they are not urgent."""
    cards = ((card.index, card.ecc_corrected, card.nvlink_errors) for card in health.gpus)
    return (health.nic_errors, *cards)


FATAL_XIDS = {
    48: "uncorrectable memory error",
    64: "failed row remapping",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}
"""Xid errors after which NVIDIA advises to reset or replace the GPU, not only the program."""


class GpuError(Struct, frozen=True):
    """An error of a GPU; `xid` is its number if it is an Xid error."""

    text: str
    xid: int | None = None


def new_error(before: GpuHealth | None, now: GpuHealth) -> GpuError | None:
    """The error of a GPU that the measurement before did not show.

    Without a measurement before, only a lost GPU and Xid errors, which count since the reporter
    started, are known to be new.
    """
    known = before if before is not None else GpuHealth(index=now.index)
    if now.lost and not known.lost:
        return GpuError("it does not answer its driver any more")
    if before is not None and (now.ecc_uncorrected or 0) > (before.ecc_uncorrected or 0):
        return GpuError(f"{now.ecc_uncorrected} uncorrected ECC errors")
    if (now.xid_errors or 0) > (known.xid_errors or 0):
        return GpuError(f"Xid {now.last_xid}", now.last_xid)
    return None


class OomKills(Struct, frozen=True):
    """OOM kills between two measurements, on the host and in the cgroup; None if not known."""

    host: int | None
    cgroup: int | None

    @property
    def known(self) -> bool:
        """Whether both measurements have a counter."""
        return self.host is not None or self.cgroup is not None

    @property
    def counted(self) -> bool:
        """Whether there was one."""
        return bool(self.host or self.cgroup)

    @property
    def elsewhere(self) -> bool:
        """Whether none of them was in the cgroup."""
        return self.counted and self.cgroup == 0

    def text(self, host: str, reporter: str) -> str:
        """How many were counted, and where."""
        count = self.cgroup or self.host or 0
        were = "1 OOM kill was" if count == 1 else f"{count} OOM kills were"
        if self.cgroup:
            return f"{were} counted in the cgroup of {reporter}"
        outside = f", but none in the cgroup of {reporter}" if self.elsewhere else ""
        return f"{were} counted on {host}{outside}"


def new_oom_kills(before: HostFigures, now: HostFigures) -> OomKills:
    """The OOM kills that were counted between two measurements of a host."""
    return OomKills(
        host=_counted(before.oom_kills, now.oom_kills),
        cgroup=_counted(before.cgroup_oom_kills, now.cgroup_oom_kills),
    )


def _counted(before: int | None, now: int | None) -> int | None:
    """The increase of a counter; None if it is not known, or was restarted and fell."""
    return None if before is None or now is None or now < before else now - before
