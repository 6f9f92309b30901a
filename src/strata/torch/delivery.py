"""What the host learns later about a backward pass that a GPU has yet to complete.

Were the host to wait for the gradients before the optimizer, the GPU would have nothing to do while
the host prepares the optimizer's kernels. So an optimizer that can skip its update on the device is
launched at once, with a number on the device that says whether to skip. (These are the fused
optimizers: it is how a `GradScaler` lets them skip infinite gradients.) Only then does the host
wait, and meanwhile the GPU goes on with the update.

The update is skipped if the collectives were aborted, or if the workers' heads do not belong
together. A thread writes to the group's flag, in pinned memory, before it aborts the collectives.
The device copies the flag after them: when it copies a zero, they were complete.
"""

from typing import Any

import torch


class Delivery:
    """The head of a pass, and whether its gradients may be applied.

    `head` is the sum over all workers, `own` this worker's part. `skip` is on their device: 1.0
    when the gradients must not be applied.
    """

    def __init__(
        self, head: torch.Tensor, own: torch.Tensor, world_size: int, flag: torch.Tensor
    ) -> None:
        aborted = flag.to(head.device, non_blocking=True)
        different = (head[1:] != own[1:] * world_size).any()
        self.skip = torch.maximum(aborted, different.to(aborted.dtype))
        told = torch.cat([head, torch.stack([aborted, self.skip]).to(head.dtype)])
        self._told = told
        self._event: Any = None
        if head.is_cuda:
            self._told = torch.empty(told.shape, dtype=told.dtype, pin_memory=True)
            self._told.copy_(told, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> None:
        """Wait until the device has completed the pass."""
        if self._event is not None:
            self._event.synchronize()

    @property
    def head(self) -> list[float]:
        """The head, once it was waited for."""
        return self._told[:-2].tolist()

    @property
    def aborted(self) -> bool:
        """Whether the collectives were aborted, once it was waited for."""
        return bool(self._told[-2])

    @property
    def skipped(self) -> bool:
        """Whether an optimizer that was given `skip` has skipped its update."""
        return bool(self._told[-1])


def can_skip(optimizer: Any) -> bool:
    """Whether an optimizer skips its update when `found_inf`, on the device, is 1.0."""
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and all(group.get("fused") for group in optimizer.param_groups)
        and not hasattr(optimizer, "found_inf")  # a GradScaler uses it now
    )
