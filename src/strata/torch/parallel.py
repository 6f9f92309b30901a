"""`DistributedDataParallel` that survives the loss of any member.

The wrapped module thinks that it is alone: its own group has one member, so it is never built again
when the membership changes. What is reduced goes through a hook that sums over the group of the
present generation, bucket by bucket, while the backward pass still runs.

    parallel = strata.torch.DataParallel(run, model)
    state = run.restore({"model": model, "optimizer": optimizer})
    for batch in run.batches("cifar", batch_size=64, epochs=10):
        try:
            with parallel.averaging(len(batch["label"])):
                loss = loss_of(parallel(batch["image"]), batch["label"])
                loss.backward()
        except strata.GenerationChanged:
            continue                      # somebody was lost in this step: it is done again
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss.item())
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from strata.errors import NotAllowedNow
from strata.sdk.exchange import Exchange, LinkBroken
from strata.sdk.run import Run
from strata.torch.group import Group, gloo


class DataParallel(torch.nn.Module):
    """Wraps a module; gradients of a backward pass inside `averaging` are the members' mean."""

    def __init__(
        self, run: Run, module: torch.nn.Module, backend: str | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.run, self.group = run, Group(run, backend)
        # Gradients are views of the buckets, so what is written there is in the gradients.
        options["gradient_as_bucket_view"] = True
        self.module = DistributedDataParallel(module, process_group=_alone(), **options)
        self.module.register_comm_hook(None, self._reduce)
        self._exchange: Exchange | None = None
        self._weight = 1.0
        self._begun: list[tuple[Any, torch.Tensor, torch.Tensor]] = []

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the module makes of the inputs."""
        return self.module(*inputs, **named)

    @contextmanager
    def averaging(self, weight: float = 1.0) -> Iterator[None]:
        """Around forward and backward; `weight` is the size of this worker's batch.

        Raises `GenerationChanged` when a member is lost meanwhile: let go of the step then.
        """
        run = self.run
        total = torch.tensor([float(weight)])
        run.together(lambda exchange: self._begin(exchange, total))
        self._weight = float(weight) / max(float(total), 1e-12)
        try:
            yield
            run.together(self._end)
        finally:
            self._exchange, self._begun = None, []

    def _begin(self, exchange: Exchange, total: torch.Tensor) -> None:
        """How many samples the step has, over all members."""
        self._exchange = exchange
        self.group.finish(self.group.begin_sum(total, exchange), exchange)

    def _end(self, exchange: Exchange) -> None:
        """Puts the sums where the gradients are, once all of them are there."""
        if exchange is not self._exchange:
            raise LinkBroken("the generation is over")
        for work, _, _ in self._begun:
            self.group.finish(work, exchange)
        for _, summed, buffer in self._begun:
            buffer.copy_(summed)

    def _reduce(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Called by the backward pass with a bucket of gradients: begins to add it up.

        The backward pass goes on with its own gradients; the sums take their place at the end of
        the block. What failed in here would come out of the backward pass as its own failure.
        """
        if self._exchange is None:
            raise NotAllowedNow(
                "a backward pass outside of `averaging`",
                hint="put forward and backward into `with parallel.averaging(batch_size):`",
            )
        buffer: torch.Tensor = bucket.buffer()
        summed = buffer * self._weight
        self._begun.append((self.group.begin_sum(summed, self._exchange), summed, buffer))
        later: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        later.set_result(buffer)
        return later


def _alone() -> dist.ProcessGroup:
    """A group of one, which never communicates."""
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    backend = gloo(dist.HashStore(), 0, 1, "127.0.0.1")
    kind = dist.ProcessGroup.BackendType.GLOO
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), kind, backend)
    return group
