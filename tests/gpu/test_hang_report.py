"""Guards that a worker that hangs on a real GPU is explained: by the collective of nccl that has
not completed, and by the stack of a thread that waits for a kernel; skipped without one.

Also a program, for machines without pytest: `python tests/gpu/test_hang_report.py`.
"""

import os
import tempfile
import threading
import unittest

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available() or not dist.is_nccl_available():
    raise unittest.SkipTest("no CUDA device, or no nccl here")

import msgspec

from strata.core.workers.stack_reports import StackReport, place_of
from strata.sdk.record.own_stacks import flight_recorder, own_report

CYCLES = 10_000_000_000  # about 5 s of work for the device


def test_collective_behind_a_kernel_is_read_from_the_flight_recorder() -> StackReport:
    """One rank is enough: its collective waits on the device for the kernel before it."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "200"
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        try:
            values = torch.ones(1000, device="cuda")
            for _ in range(3):
                dist.all_reduce(values)
            torch.cuda.synchronize()
            before = flight_recorder()
            torch.cuda._sleep(CYCLES)
            dist.all_reduce(values)
            report = own_report([], state="training", step=3)
            torch.cuda.synchronize()
        finally:
            dist.destroy_process_group()
    pending = report.exchange
    assert pending is not None, "the flight recorder has no active collective"
    assert (pending.pending, pending.kind) == (True, "all-reduce"), pending
    assert before is None or before.number < pending.number, before
    return report


def test_thread_that_waits_for_a_kernel_is_where_it_waits() -> StackReport:
    reports = []
    asked = threading.Timer(1.0, lambda: reports.append(own_report([], state="training")))
    torch.cuda._sleep(CYCLES)
    asked.start()
    wait_for_the_device()
    asked.join()
    [report] = reports
    functions = [frame.function for frame in main_thread(report).frames]
    assert wait_for_the_device.__name__ in functions, functions
    return report


def wait_for_the_device() -> None:
    """Stands in for a script's `loss.item()`."""
    torch.cuda.synchronize()


def main_thread(report):
    return next(thread for thread in report.processes[0].threads if thread.main)


if __name__ == "__main__":
    waiting = test_thread_that_waits_for_a_kernel_is_where_it_waits()
    print("waits for a kernel:", place_of(waiting))
    print(msgspec.json.encode(main_thread(waiting)).decode())
    hung = test_collective_behind_a_kernel_is_read_from_the_flight_recorder()
    print("pending collective:", msgspec.json.encode(hung.exchange).decode())
    print("ok: a hang on the GPU is explained")
