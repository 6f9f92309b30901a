"""Decides when the health of this host is due: at an interval, and after an urgent change.

One process of a host reports it: its agent, or on a host without an agent the worker that holds a
lock file; when that worker ends, another one takes the lock. A look is taken every `LOOK_S` and
costs 0.7 ms, and 1 ms per GPU (measured with an H200); each report waits 40 ms per GPU for the
PCIe throughput, without using the CPU. A worker looks in a thread of its own, because a driver that
is stuck would stop its heartbeats.

An agent measures the GPUs that it gives to its workers. A worker measures all GPUs of the host,
also those that only other workers may use.
"""

import fcntl
import logging
import os
import threading
import time
from pathlib import Path

from strata.core.hosts.host_health import HostHealth, is_urgent
from strata.sdk.record.gpu_cards import present_count, visible_cards
from strata.sdk.record.gpu_health import GpuProbe
from strata.sdk.record.host_files import HostFiles

log = logging.getLogger(__name__)

LOOK_S = 5.0
LOCK = "host-health.lock"
END_S = 1.0
"""A thread that measures when its worker ends is waited for so long."""


class HostReporter:
    """Measures a host; with a `lock_folder`, only while no other process does."""

    def __init__(
        self, interval_s: float, path: str | Path = ".", lock_folder: Path | None = None
    ) -> None:
        self._interval_s = interval_s
        self._path = path
        self._lock_folder = lock_folder
        self._lock: int | None = None
        self._files: HostFiles | None = None
        self._gpus: GpuProbe | None = None
        self._reported: HostHealth | None = None
        self._next_look_s = self._next_report_s = 0.0

    def due(self) -> HostHealth | None:
        """The health of the host if it has to be reported now."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + min(LOOK_S, self._interval_s)
        if not self._reports():
            return None
        if self._files is None or self._gpus is None:
            self._files, self._gpus = HostFiles(self._path), GpuProbe(self._gpu_names())
        is_due = now_s >= self._next_report_s
        health = self._files.read(self._gpus.read(pcie_throughput=is_due))
        before = self._reported
        if not is_due and before is not None and not is_urgent(before, health):
            return None
        self._next_report_s, self._reported = now_s + self._interval_s, health
        return health

    def _gpu_names(self) -> list[str]:
        if self._lock_folder is None:
            return visible_cards()
        return [str(index) for index in range(present_count())]

    def close(self) -> None:
        """Let another process report the host."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _reports(self) -> bool:
        """Whether this process is the one that reports the host."""
        if self._lock_folder is None or self._lock is not None:
            return True
        lock = os.open(self._lock_folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return False
        self._lock = lock
        return True


class BackgroundReporter:
    """Runs a reporter in a thread; `take` never waits for a measurement."""

    def __init__(self, reporter: HostReporter, look_s: float = LOOK_S) -> None:
        self._reporter = reporter
        self._look_s = look_s
        self._health: HostHealth | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strata-host", daemon=True)
        self._thread.start()

    def take(self) -> HostHealth | None:
        """The health of the host if it was measured since the last call and has to be reported."""
        health, self._health = self._health, None
        return health

    def close(self) -> None:
        """Stop measuring, and let another process report the host."""
        self._ending.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                health = self._reporter.due()
                if health is not None:
                    self._health = health
                self._ending.wait(self._look_s)
        except Exception:
            log.exception("the health of this host is not recorded any more")
        finally:
            self._reporter.close()
