"""The rule on disks: nearly full, or full soon.

Workers report the free space of the file system that they write to; one measurement per host and
`MEASURE_S` is looked at, and the coordinator's data folder is one more host. A disk is nearly full
below `disk_free_bytes`. It will be full soon if it fills so fast that it is full within
`disk_full_within_s`. The rate is that of the lowest free space: the minimum over the first half of
the last `WINDOW` measurements against that over the second half. So files that come and go, such as
old checkpoints, are no filling. It is judged with at least `LEAST` measurements.

It ends when the free space is a quarter above the limit and the disk is not full within twice the
time.

Hosts with one file system raise one alert. A network file system is known by its source, such as
`server:/export`, which workers report. File systems without a source are compared by their free
space: while the alert of a host is open, another host that has reported exactly the same free space
raises none, until their free space differs by `SHARED_SHARE`. For the coordinator's data folder and
workers on its machine, it is enough that the difference is below that share. An open alert is
recorded again only when a disk that fills becomes nearly full.

A worker reports 0 both for a full disk and for one that it cannot measure; it is taken for a full
disk if the host has reported free space before.
"""

from collections import deque

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Alert

FILLING = "disk_filling"

MEASURE_S = 5
WINDOW = 180
LEAST = 60
MARGIN = 1.25
MAX_HOSTS = 20_000
GONE_S = 600
SHARED_SHARE = 0.05
COORDINATOR = "coordinator"


class DiskRules:
    """Follows the free space of every host."""

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._free: dict[str, deque[tuple[int, int]]] = {}
        self._nearly_full: set[str] = set()
        self._shared: dict[str, str] = {}
        self._sources: dict[str, str] = {}

    def adopt(self, alert: Alert) -> None:
        """Continue with an open alert after a restart."""
        if alert.rule == FILLING and alert.severity == "error":
            self._nearly_full.add(alert.subject.removeprefix("host:"))

    def measured(
        self,
        host: str,
        free_bytes: int,
        now_ns: int,
        *,
        same_machine: frozenset[str] = frozenset(),
        source: str = "",
    ) -> None:
        """Take a measurement of a host; `same_machine` are other names of its machine, `source` is
        its network file system."""
        if not self._limits.on(FILLING) or (not free_bytes and host not in self._free):
            return
        if host not in self._free and len(self._free) >= MAX_HOSTS:
            return
        series = self._free.setdefault(host, deque(maxlen=WINDOW))
        if not series or now_ns - series[-1][0] >= MEASURE_S * SECOND_NS:
            series.append((now_ns, free_bytes))
            self._sources[host] = source
            self._judge(host, series, now_ns, same_machine)

    def judge(self, now_ns: int) -> None:
        """Forget hosts that report no longer; that ends what was found about them."""
        gone = [
            host
            for host, series in self._free.items()
            if now_ns - series[-1][0] > GONE_S * SECOND_NS
        ]
        for host in gone:
            del self._free[host]
            self._nearly_full.discard(host)
            self._shared.pop(host, None)
            self._sources.pop(host, None)
            reason = f"the host has not reported for {GONE_S} s"
            self._conditions.end(FILLING, f"host:{host}", reason)

    def _judge(
        self,
        host: str,
        series: deque[tuple[int, int]],
        now_ns: int,
        same_machine: frozenset[str],
    ) -> None:
        subject = f"host:{host}"
        free = series[-1][1]
        least = self._limits.disk_free_bytes
        full_s = seconds_until_full(series)
        within_s = self._limits.disk_full_within_s
        soon = full_s is not None and full_s < within_s
        nearly_full = free < least
        if nearly_full or soon:
            if not self._conditions.holds(FILLING, subject):
                if self._raised_by_another(host, free, same_machine):
                    return
            elif not nearly_full or host in self._nearly_full:
                self._conditions.confirm(FILLING, subject, now_ns)
                return
            if nearly_full:
                self._nearly_full.add(host)
            self._conditions.hold(
                self._finding(host, free, full_s, nearly_full=nearly_full), now_ns
            )
        elif free >= least * MARGIN and (full_s is None or full_s >= 2 * within_s):
            reason = f"{_sized(free)} are free"
            self._nearly_full.discard(host)
            self._conditions.end(FILLING, subject, reason)

    def _raised_by_another(self, host: str, free: int, same_machine: frozenset[str]) -> bool:
        """Whether another host has an open alert about the same file system."""
        source = self._sources[host]
        for other, series in self._free.items():
            if other == host or not self._conditions.holds(FILLING, f"host:{other}"):
                continue
            if source or self._sources[other]:
                if source == self._sources[other]:
                    return True
                continue
            difference = abs(series[-1][1] - free)
            near = difference <= SHARED_SHARE * max(series[-1][1], free)
            if (difference == 0 and free) or (
                near and (other in same_machine or self._shared.get(host) == other)
            ):
                self._shared[host] = other
                return True
        return False

    def _finding(self, host: str, free: int, full_s: float | None, *, nearly_full: bool) -> Finding:
        evidence: dict[str, float | str] = {
            "free_bytes": free,
            "disk_free_bytes": self._limits.disk_free_bytes,
            "disk_full_within_s": self._limits.disk_full_within_s,
        }
        below = f", less than {_sized(self._limits.disk_free_bytes)}" if nearly_full else ""
        when = ""
        source = self._sources[host]
        disk = f"{source}, used by {host}," if source else f"the disk of {host}"
        if source:
            evidence["disk_source"] = source
        if full_s is not None:
            evidence["full_in_s"] = full_s
            when = f", and it is full in {full_s / 60:.0f} min at this rate"
        return Finding(
            rule=FILLING,
            subject=f"host:{host}",
            severity="error" if nearly_full else "warning",
            text=f"{disk} has {_sized(free)} free{below}{when}",
            evidence=evidence,
        )


def seconds_until_full(series: deque[tuple[int, int]]) -> float | None:
    """When a disk is full if it goes on filling as before; None if it does not fill."""
    if len(series) < LEAST:
        return None
    points = list(series)
    half = len(points) // 2
    before = min(free for _, free in points[:half])
    now = min(free for _, free in points[half:])
    spent_s = (points[-1][0] - points[0][0]) / SECOND_NS / 2
    if now >= before or spent_s <= 0:
        return None
    return now / ((before - now) / spent_s)


def _sized(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 100_000_000 else f"{count / 1e6:.1f} MB"
