"""Guards optimizers that are launched before the host knows the gradients, on a real GPU; skipped
without one.

Also a program, for machines without pytest: `python tests/gpu/test_delivery.py`.
"""

import contextlib
import unittest
import warnings

try:
    import torch
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available():
    raise unittest.SkipTest("no CUDA device here")

from strata.torch.gradient_averaging import GradientDelivery, can_skip

CYCLES = 1_000_000_000  # about 0.5 s of work for the device
OWN = [16.0, 5.0, 7.0]


def launched(flag):
    """A parameter after an update that was launched while the device was busy, and its delivery."""
    parameter = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    head = torch.tensor(OWN, dtype=torch.float64, device="cuda")
    before = parameter.detach().clone()
    pinned = torch.zeros((), pin_memory=True)
    assert can_skip(optimizer)
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)  # in place of the collectives
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that it does not find every wait
        torch.cuda.set_sync_debug_mode("error")  # anything that would wait for the device raises
    try:
        delivery = GradientDelivery(head, head, 1, pinned)
        optimizer.found_inf = delivery.skip
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.cuda.current_stream().query(), "the host has waited for the device"
    pinned.fill_(flag)  # as the thread does that aborts the collectives
    delivery.wait()
    return torch.equal(parameter, before), delivery


def warm_up():
    """The first launch of each kernel loads it, which waits for the device."""
    with contextlib.suppress(AssertionError):
        launched(0.0)


def test_flag_that_is_set_while_the_device_is_busy_lets_it_skip_the_update():
    warm_up()
    unchanged, delivery = launched(1.0)
    assert (unchanged, delivery.skipped, delivery.aborted) == (True, True, True)


def test_update_is_applied_when_the_flag_was_not_set():
    warm_up()
    unchanged, delivery = launched(0.0)
    assert (unchanged, delivery.skipped, delivery.head) == (False, False, OWN)


if __name__ == "__main__":
    test_flag_that_is_set_while_the_device_is_busy_lets_it_skip_the_update()
    print("ok: a flag that is set while the device is busy lets it skip the update")
    test_update_is_applied_when_the_flag_was_not_set()
    print("ok: an update is applied when the flag was not set")
