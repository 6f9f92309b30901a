"""Guards that `strata doctor` finds the real cards, and that nccl works; skipped without one."""

import unittest

try:
    import torch
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available():
    raise unittest.SkipTest("no CUDA device here")

from strata.cli.support.doctor.gpu_checks import gpu_checks


def test_driver_torch_and_nccl_are_measured_on_the_card():
    driver, cuda, nccl = gpu_checks()
    assert [driver.status, cuda.status, nccl.status] == ["ok"] * 3, (driver, cuda, nccl)
    assert torch.cuda.get_device_name(0) in driver.found
    assert "an all-reduce on GPU 0 is right" in nccl.found
