"""The health of this host, read from the kernel's files below /proc and /sys.

Only Linux has these files, and a container may hide some of them: what cannot be read is None.
Disks are the block devices that the kernel lists as such, without partitions and without loop and
RAM devices; network interfaces are all but the loopback. A reading takes 0.5 ms.
"""

import shutil
from pathlib import Path

from msgspec import Struct

from strata.core.hosts.host_health import GpuHealth, HostHealth

ROOT = Path("/")


class DiskCounts(Struct, frozen=True):
    """Requests that a disk completed, and the time they took together."""

    requests: int
    busy_ms: int


class HostFiles:
    """Reads the health of a host; disk latency is that since the reading before."""

    def __init__(self, path: str | Path = ".", root: Path = ROOT) -> None:
        self._path = path
        self._root = root
        self._disks: dict[str, DiskCounts] | None = None

    def read(self, gpus: list[GpuHealth]) -> HostHealth:
        """The health of the host, with that of its GPUs."""
        load = self._text("proc/loadavg").split()
        memory = _named_numbers(self._text("proc/meminfo"))
        latency_ms, slowest = self._disk_latency()
        total_bytes, free_bytes = self._disk_space()
        return HostHealth(
            load_1m=float(load[0]) if load else None,
            cpu_count=self._text("proc/stat").count("\ncpu") or None,
            cpu_pressure_percent=self._pressure("cpu"),
            memory_pressure_percent=self._pressure("memory"),
            io_pressure_percent=self._pressure("io"),
            memory_total_bytes=_kib(memory.get("MemTotal:")),
            memory_available_bytes=_kib(memory.get("MemAvailable:")),
            oom_kills=_named_numbers(self._text("proc/vmstat")).get("oom_kill"),
            cgroup_oom_kills=self._cgroup_oom_kills(),
            disk_latency_ms=latency_ms,
            slowest_disk=slowest,
            disk_total_bytes=total_bytes,
            disk_free_bytes=free_bytes,
            nic_errors=self._interfaces("rx_errors", "tx_errors"),
            nic_drops=self._interfaces("rx_dropped", "tx_dropped"),
            gpus=gpus,
        )

    def _text(self, path: str) -> str:
        """The text of a file; empty if it cannot be read."""
        try:
            return (self._root / path).read_text("utf-8", "replace")
        except OSError:
            return ""

    def _pressure(self, resource: str) -> float | None:
        """Percent of the last minute in which some process waited for the resource."""
        for line in self._text(f"proc/pressure/{resource}").splitlines():
            kind, *fields = line.split()
            means = dict(field.split("=", 1) for field in fields)
            if kind == "some" and "avg60" in means:
                return float(means["avg60"])
        return None

    def _cgroup_oom_kills(self) -> int | None:
        """OOM kills in the cgroup of this process, of version 2 or 1."""
        for line in self._text("proc/self/cgroup").splitlines():
            _, controllers, group = line.split(":", 2)
            names = {"": ("sys/fs/cgroup", "memory.events")}
            names["memory"] = ("sys/fs/cgroup/memory", "memory.oom_control")
            if controllers not in names:
                continue
            mount, file = names[controllers]
            # In a container the group is mounted as the root of the hierarchy.
            for place in (f"{mount}{group}", mount):
                kills = _named_numbers(self._text(f"{place}/{file}")).get("oom_kill")
                if kills is not None:
                    return kills
        return None

    def _disk_latency(self) -> tuple[float | None, str]:
        """Mean time of a request on the slowest disk since the reading before, and its name."""
        before, self._disks = self._disks, self._disk_counts()
        found: tuple[float | None, str] = (None, "")
        for name, counts in self._disks.items():
            earlier = (before or {}).get(name)
            requests = counts.requests - earlier.requests if earlier is not None else 0
            if earlier is None or requests <= 0:
                continue
            latency_ms = max(counts.busy_ms - earlier.busy_ms, 0) / requests
            if found[0] is None or latency_ms > found[0]:
                found = (latency_ms, name)
        return found

    def _disk_counts(self) -> dict[str, DiskCounts]:
        found = {}
        for line in self._text("proc/diskstats").splitlines():
            fields = line.split()
            if len(fields) < 11 or not self._is_disk(fields[2]):
                continue
            found[fields[2]] = DiskCounts(
                requests=int(fields[3]) + int(fields[7]), busy_ms=int(fields[6]) + int(fields[10])
            )
        return found

    def _is_disk(self, name: str) -> bool:
        """Whether a block device is a whole disk; partitions are not in /sys/block."""
        return (
            not name.startswith(("loop", "ram", "zram"))
            and (self._root / "sys/block" / name.replace("/", "!")).exists()
        )

    def _disk_space(self) -> tuple[int | None, int | None]:
        try:
            usage = shutil.disk_usage(self._path)
        except OSError:
            return None, None
        return usage.total, usage.free

    def _interfaces(self, *counters: str) -> int | None:
        """The sum of counters over all interfaces; None if none can be read."""
        try:
            names = sorted((self._root / "sys/class/net").iterdir())
        except OSError:
            return None
        texts = [
            self._text(f"sys/class/net/{interface.name}/statistics/{counter}").strip()
            for interface in names
            if interface.name != "lo"
            for counter in counters
        ]
        counted = [int(text) for text in texts if text.isdigit()]
        return sum(counted) if counted else None


def _named_numbers(text: str) -> dict[str, int]:
    """The numbers in a file of lines such as `name 12`."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _kib(value: int | None) -> int | None:
    return None if value is None else value * 1024
