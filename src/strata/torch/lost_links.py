"""Tell an error of the script from the loss of another worker.

PyTorch's collectives fail when a worker is lost: in `backward`, in `optimizer.step`, or at the
first `loss.item()` after that. The types of `torch.distributed` tell such an error. gloo, and
aborted collectives, raise a plain `RuntimeError`. Such an error comes from the loss if the
generation is over: the coordinator notices the end of a worker process at once.
"""

import time

import torch.distributed as dist

from strata.sdk.run import Run

NOTICE_S = 3.0
LOOK_S = 0.02


def comes_from_lost_worker(run: Run, error: BaseException) -> bool:
    """Whether an error comes from the loss of a worker; waits until the coordinator can know."""
    if not isinstance(error, RuntimeError):
        return False
    if isinstance(error, dist.DistError):
        return True
    if run.world_size == 1:
        return False
    deadline_s = time.monotonic() + NOTICE_S
    while not run.membership_changed and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
    return run.membership_changed
