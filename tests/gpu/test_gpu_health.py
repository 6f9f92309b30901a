"""Guards that the health of a real GPU is read, and follows what the GPU does; skipped without one.

Also a program, for machines without pytest: `python tests/gpu/test_gpu_health.py` prints what it
read, and what each reading costs.
"""

import threading
import time
import unittest

import msgspec

from strata.core.hosts.host_health import GpuHealth
from strata.sdk.record.gpu_health import GpuProbe
from strata.sdk.record.host_files import HostFiles

if not GpuProbe().read():
    raise unittest.SkipTest("no NVIDIA GPU and driver here")

REPORTED = (
    "utilization_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "power_watts",
    "power_limit_watts",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",
    "ecc_corrected",
    "ecc_uncorrected",
    "xid_errors",
    "pcie_replays",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
)
"""What a data centre GPU reports. NVLink is only there where GPUs are linked."""

COPIED_BYTES = 2**30
READINGS = 50


def test_every_figure_of_a_real_gpu_is_read() -> GpuHealth:
    probe = GpuProbe()
    probe.read()
    time.sleep(0.5)
    card = probe.read()[0]
    missing = [name for name in REPORTED if getattr(card, name) is None]
    assert missing == []
    assert not card.lost
    assert 10 < card.temperature_celsius < 110
    assert 5 < card.power_watts <= card.power_limit_watts * 1.1
    assert 100 <= card.sm_clock_mhz < 10_000
    assert 0 < card.memory_used_bytes < card.memory_total_bytes
    return card


def test_figures_follow_the_load_of_the_gpu() -> tuple[GpuHealth, GpuHealth]:
    try:
        import torch
    except ImportError as error:
        raise unittest.SkipTest("no torch here") from error
    probe = GpuProbe()
    idle = busy = probe.read()[0]
    square = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
    host = torch.ones(COPIED_BYTES, dtype=torch.uint8).pin_memory()
    done = threading.Event()

    def work() -> None:
        """Multiply and copy at the same time, without a pause in which a reading may fall."""
        copies = torch.cuda.Stream()
        while not done.is_set():
            with torch.cuda.stream(copies):
                host.to("cuda", non_blocking=True)
            for _ in range(20):
                square @ square
            torch.cuda.synchronize()

    worker = threading.Thread(target=work)
    worker.start()
    deadline_s = time.monotonic() + 30
    try:
        while not (
            busy.utilization_percent >= 90
            and busy.power_watts > idle.power_watts + 50
            and busy.pcie_rx_bytes_per_s > 1e9
        ):
            assert time.monotonic() < deadline_s, busy
            busy = probe.read()[0]
    finally:
        done.set()
        worker.join()
    return idle, busy


def costs() -> str:
    """The mean time of a reading."""
    probe, files = GpuProbe(), HostFiles()
    began_s = time.perf_counter()
    for _ in range(READINGS):
        gpus = probe.read()
    gpus_ms = (time.perf_counter() - began_s) / READINGS * 1000
    began_s = time.perf_counter()
    for _ in range(READINGS):
        files.read(gpus)
    files_ms = (time.perf_counter() - began_s) / READINGS * 1000
    return f"a reading of {len(gpus)} GPUs takes {gpus_ms:.2f} ms, of the host {files_ms:.2f} ms"


if __name__ == "__main__":
    print(msgspec.json.encode(test_every_figure_of_a_real_gpu_is_read()).decode())
    print(msgspec.json.encode(HostFiles().read([])).decode())
    print(costs())
    try:
        for state in test_figures_follow_the_load_of_the_gpu():
            print(msgspec.json.encode(state).decode())
    except unittest.SkipTest as reason:
        print("skipped:", reason)
    print("ok: the health of the GPU is read")
