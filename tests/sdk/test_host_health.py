"""The health of a host: read from planted kernel files and from the real ones, and reported when it
is due."""

import os
import subprocess
import sys
import threading
import time
from ctypes import c_void_p, pointer
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from strata.core.hosts.host_health import GpuHealth, HostHealth, is_urgent
from strata.sdk.record import host_reporter
from strata.sdk.record.gpu_health import GpuProbe, XidEvents
from strata.sdk.record.host_files import HostFiles
from strata.sdk.record.host_reporter import BackgroundReporter, HostReporter

PLANTED = {
    "proc/loadavg": "1.25 0.5 0.1 2/300 4711\n",
    "proc/stat": "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n",
    "proc/meminfo": "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    400 kB\n",
    "proc/pressure/cpu": "some avg10=9.00 avg60=2.50 avg300=1.00 total=5\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    "full avg10=7.00 avg60=7.00 avg300=7.00 total=9\n",
    "proc/vmstat": "nr_free_pages 5\noom_kill 3\n",
    "proc/self/cgroup": "0::/jobs/one\n",
    "sys/fs/cgroup/jobs/one/memory.events": "low 0\noom 2\noom_kill 1\n",
    "proc/diskstats": "8 0 sda 10 0 80 100 10 0 80 100 0 0 0\n"
    "8 1 sda1 10 0 80 9000 10 0 80 9000 0 0 0\n7 0 loop0 1 0 1 9000 1 0 1 9000 0 0 0\n",
    "sys/block/sda/size": "1\n",
    "sys/block/loop0/size": "1\n",
    "sys/class/net/lo/statistics/rx_errors": "90\n",
    "sys/class/net/eth0/statistics/rx_errors": "4\n",
    "sys/class/net/eth0/statistics/tx_errors": "1\n",
    "sys/class/net/eth0/statistics/rx_dropped": "0\n",
    "sys/class/net/eth0/statistics/tx_dropped": "0\n",
}


def plant(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_planted_files_are_read(tmp_path):
    plant(tmp_path, PLANTED)
    files = HostFiles(tmp_path, root=tmp_path)
    first = files.read([])
    assert (first.load_1m, first.cpu_count) == (1.25, 2)
    assert (first.cpu_pressure_percent, first.memory_pressure_percent) == (2.5, 0.0)
    assert first.io_pressure_percent is None, "the kernel has no such file"
    assert (first.memory_total_bytes, first.memory_available_bytes) == (1_024_000, 409_600)
    assert (first.oom_kills, first.cgroup_oom_kills) == (3, 1)
    assert (first.nic_errors, first.nic_drops) == (5, 0), "loopback does not count"
    assert first.disk_latency_ms is None, "there is no reading before"
    later = "8 0 sda 14 0 80 130 16 0 80 270 0 0 0\n"
    plant(tmp_path, {"proc/diskstats": later})
    second = files.read([])
    assert (second.disk_latency_ms, second.slowest_disk) == (20.0, "sda")
    assert files.read([]).disk_latency_ms is None, "no request was made since"


def test_oom_kills_of_a_cgroup_of_version_1_are_read(tmp_path):
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "9:cpu:/\n4:memory:/box\n0::/\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\noom_kill 7\n",
        },
    )
    assert HostFiles(tmp_path, root=tmp_path).read([]).cgroup_oom_kills == 7


def test_host_without_these_files_has_no_figures(tmp_path):
    assert HostFiles(tmp_path / "nowhere", root=tmp_path).read([]) == HostHealth()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these files")
def test_real_files_agree_with_psutil(tmp_path):
    health = HostFiles(tmp_path).read([])
    assert health.cpu_count == psutil.cpu_count()
    assert health.memory_total_bytes == psutil.virtual_memory().total
    assert health.disk_total_bytes == psutil.disk_usage(str(tmp_path)).total
    assert health.load_1m is not None
    assert health.oom_kills is not None
    counted = psutil.net_io_counters(pernic=True)
    others = [each for name, each in counted.items() if name != "lo"]
    assert health.nic_errors == (sum(each.errin + each.errout for each in others) or 0)
    if os.path.exists("/proc/pressure/cpu"):
        assert 0 <= health.cpu_pressure_percent <= 100


def measured(**gpu):
    return HostHealth(gpus=[GpuHealth(index=0, temperature_celsius=60.0, **gpu)])


@pytest.mark.parametrize(
    ("before", "after", "urgent"),
    [
        (HostHealth(oom_kills=1), HostHealth(oom_kills=2), True),
        (HostHealth(cgroup_oom_kills=1), HostHealth(cgroup_oom_kills=2), True),
        (HostHealth(nic_errors=0), HostHealth(nic_errors=1), False),
        (HostHealth(load_1m=1.0), HostHealth(load_1m=9.0), False),
        (measured(ecc_uncorrected=0), measured(ecc_uncorrected=1), True),
        (measured(xid_errors=0), measured(xid_errors=1, last_xid=79), True),
        (measured(), measured(lost=True), True),
        (measured(ecc_corrected=0), measured(ecc_corrected=1), False),
        (measured(nvlink_errors=0), measured(nvlink_errors=1), False),
        (measured(throttle_reasons=""), measured(throttle_reasons="hw_thermal"), True),
        (measured(throttle_reasons="hw_thermal"), measured(throttle_reasons=""), False),
        (measured(throttle_reasons=""), measured(throttle_reasons="idle,sw_power_cap"), False),
        (measured(power_watts=90.0), measured(power_watts=700.0), False),
    ],
)
def test_urgent_change_is_reported_at_once(before, after, urgent):
    assert is_urgent(before, after) == urgent


def test_reporter_reports_at_its_interval(tmp_path):
    reporter = HostReporter(interval_s=0.05, path=tmp_path)
    first = reporter.due()
    assert first is not None
    assert first.disk_total_bytes
    assert reporter.due() is None, "it is not due again yet"
    deadline_s = time.monotonic() + 30
    while reporter.due() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_one_process_reports_a_host_until_it_ends(tmp_path):
    program = (
        "import sys; from pathlib import Path; "
        "from strata.sdk.record.host_reporter import HostReporter; "
        "reporter = HostReporter(30.0, lock_folder=Path(sys.argv[1])); "
        "print(reporter.due() is not None, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"True\n"
        own = HostReporter(interval_s=0.01, lock_folder=tmp_path)
        assert own.due() is None, "the other process reports this host"
        other.stdin.close()
        other.wait(30)
    time.sleep(0.02)  # its next look is due
    assert own.due() is not None
    own.close()


class StuckReporter(HostReporter):
    """A reporter whose driver does not answer until it is told to."""

    def __init__(self):
        super().__init__(1.0)
        self.asked, self.answers = threading.Event(), threading.Event()

    def due(self):
        self.asked.set()
        self.answers.wait()
        return HostHealth(load_1m=1.5)


def test_driver_that_does_not_answer_delays_no_heartbeat():
    reporter = StuckReporter()
    background = BackgroundReporter(reporter, look_s=3600)
    reporter.asked.wait(60)
    assert background.take() is None, "a heartbeat that waits here would never end"
    reporter.answers.set()
    assert until(background.take) == HostHealth(load_1m=1.5)
    assert background.take() is None, "each measurement is reported once"
    background.close()


def test_worker_reports_every_gpu_of_the_host(monkeypatch, tmp_path):
    """Without a GPU there is no driver to ask, so the names that are asked for are compared."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(host_reporter, "present_count", lambda: 3)
    assert HostReporter(1.0, lock_folder=tmp_path)._gpu_names() == ["0", "1", "2"]
    assert HostReporter(1.0)._gpu_names() == ["1"], "an agent measures those of its workers"


def until(condition):
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_host_without_a_driver_has_no_gpus():
    probe = GpuProbe(["no-such-gpu"])
    assert probe.read() == []


def test_gpu_that_the_driver_does_not_list_any_more_is_lost(monkeypatch):
    """Without a GPU there is no driver that could lose it, so the calls that list GPUs are
    replaced; a process that starts later knows nothing of the GPU."""
    listed = {"GPU-a": pointer(c_void_p(1)), "GPU-b": pointer(c_void_p(2))}

    def by_uuid(uuid):
        if uuid not in listed:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return listed[uuid]

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(listed))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    names = {id(handle): uuid for uuid, handle in listed.items()} | {id(None): ""}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: names[id(handle)])
    probe = GpuProbe(["GPU-a", "GPU-b"])
    assert [gpu.lost for gpu in probe.read()] == [False, False]
    del listed["GPU-b"]
    assert [gpu.lost for gpu in probe.read()] == [False, True]
    assert [gpu.lost for gpu in GpuProbe(["GPU-a", "GPU-b"]).read()] == [False]


@pytest.mark.parametrize(("waiting", "last"), [([79, 154], 79), ([31, 79, 48], 48), ([31, 13], 13)])
def test_fatal_xid_is_not_hidden_by_a_later_one(monkeypatch, waiting, last):
    """Without a GPU there is no driver that reports an Xid, so its three calls are replaced."""
    gpu = pointer(c_void_p(1))
    events = [
        SimpleNamespace(device=gpu, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=xid)
        for xid in waiting
    ]

    def wait(events_set, timeout_ms):
        if not events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return events.pop(0)

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", object)
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", lambda *_: None)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", wait)
    xids = XidEvents([gpu])
    count = len(events)
    xids.take()
    assert xids.of(0) == (count, last)
    events.append(
        SimpleNamespace(device=gpu, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=31)
    )
    xids.take()
    assert xids.of(0) == (count + 1, 31), "the next look has its own last error"
