"""Guards `step.log` of numbers on a real GPU: a step does not wait for them; skipped without one.

Also a program, for machines without pytest: `python tests/gpu/test_step_log.py`.
"""

import sys
import tempfile
import unittest
import warnings
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available():
    raise unittest.SkipTest("no CUDA device here")

import strata
from strata.core.workers.worker_facts import StepFinished
from strata.sdk.record.late_numbers import LateFact, number_of
from strata.sdk.record.recorder import Recorder

STEPS = 20
WARM_UP_STEPS = 3  # they load kernels and pin memory, which waits for the device
CYCLES = 200_000_000  # about 0.1 s of work for the device


def forbid_waiting():
    """Make .item(), float() and copies from the device raise from now on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that it does not find every wait
        torch.cuda.set_sync_debug_mode("error")


def test_number_is_the_value_at_the_time_of_the_log():
    value = torch.tensor(1.5, device="cuda", requires_grad=True)
    with torch.no_grad():
        value.fill_(1.5)
    float(number_of(value))  # all of this loads kernels and pins memory, which waits for the device
    torch.cuda._sleep(CYCLES)
    number = number_of(value)
    with torch.no_grad():
        value.fill_(7.0)
    assert not number.ready()
    assert float(number) == 1.5
    assert number.ready()
    assert float(number_of(torch.tensor([2.5], device="cuda", dtype=torch.bfloat16))) == 2.5


def test_step_leaves_its_loss_to_the_device():
    """The stream is still busy when the block has ended, and no call in it waits for the device."""
    facts, emit = [], Recorder.emit
    Recorder.emit = lambda self, fact, *a, **k: (facts.append(fact), emit(self, fact, *a, **k))
    try:
        with tempfile.TemporaryDirectory() as folder, strata.join(spool_dir=folder) as run:
            for step in range(STEPS):
                torch.cuda._sleep(CYCLES)
                loss = torch.full((), float(step), device="cuda")
                forbid_waiting()
                try:
                    with run.step() as block:
                        block.log(loss=loss, half=loss / 2)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                if step >= WARM_UP_STEPS:
                    busy = not torch.cuda.current_stream().query()
                    assert busy, f"step {step} waited for the device"
    finally:
        Recorder.emit = emit
    found = [each.fact for each in facts if isinstance(each, LateFact)]
    finished = [each for each in found if isinstance(each, StepFinished)]
    assert [(each.step, each.loss, each.metrics) for each in finished] == [
        (step, float(step), {"half": step / 2}) for step in range(STEPS)
    ]


def main():
    test_number_is_the_value_at_the_time_of_the_log()
    print("ok: a number is the value at the time of the log")
    test_step_leaves_its_loss_to_the_device()
    print("ok: a step leaves its loss to the device")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
