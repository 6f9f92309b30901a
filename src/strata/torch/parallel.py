"""Data-parallel training that survives the loss of any member: in place of DistributedDataParallel.

    parallel = strata.torch.DataParallel(run, model)
    run.restore({"model": model, "optimizer": optimizer})
    for batch in run.batches("cifar", batch_size=64, epochs=10):
        optimizer.zero_grad()
        try:
            with parallel.averaging(len(batch["label"])):
                loss = loss_of(model(batch["image"]), batch["label"])
                loss.backward()
        except strata.GenerationChanged:
            continue                      # somebody was lost in this step: it is done again
        optimizer.step()
        run.mark_step(loss=loss.item())

Gradients are added up in buckets, each as soon as the backward pass has filled it, while the pass
goes on. The buckets follow from the module alone, and begin in the same order everywhere: a member
that came later has the same ones. (DistributedDataParallel builds its buckets anew after the first
backward pass, in the order in which gradients came; a newcomer's would not match.) The sums take
the gradients' place at the end of the block, all of them or none.

Until the first step is applied everyone takes the module over from rank 0, as with
DistributedDataParallel: scripts need not seed it alike. Later on, that is what recovery is for.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from strata.errors import InvalidArgument
from strata.sdk.exchange import Exchange
from strata.sdk.run import Run
from strata.torch.group import Group

BUCKET_BYTES = 25 << 20


class Bucket:
    """Some parameters whose gradients travel together."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.flat = torch.zeros(
            sum(each.numel() for each in parameters),
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        self.missing = len(parameters)
        self.work: Any = None

    def begin(self, group: Group, exchange: Exchange, weight: float) -> None:
        """Begins to add the gradients up; a parameter without one counts as zero."""
        for each, part in zip(self.parameters, self._parts(), strict=True):
            if each.grad is None:
                part.zero_()
            else:
                torch.mul(each.grad.reshape(-1), weight, out=part)
        self.work = group.begin_sum(self.flat, exchange)

    def put(self) -> None:
        """The sums are there: they become the gradients."""
        for each, part in zip(self.parameters, self._parts(), strict=True):
            summed = part.view_as(each)
            each.grad = summed.clone() if each.grad is None else each.grad.copy_(summed)

    def reset(self) -> None:
        """For the next backward pass."""
        self.missing, self.work = len(self.parameters), None

    def _parts(self) -> Sequence[torch.Tensor]:
        parts: Sequence[torch.Tensor] = self.flat.split([each.numel() for each in self.parameters])
        return parts


class DataParallel:
    """Averages the gradients of a module's backward passes over all members of the run."""

    def __init__(self, run: Run, module: torch.nn.Module, backend: str | None = None) -> None:
        self.run, self.module = run, module
        self._buckets = [Bucket(each) for each in bucketed(module)]
        if not self._buckets:
            raise InvalidArgument("no parameter of the module is trained")
        on_gpu = self._buckets[0].flat.is_cuda
        self.group = Group(run, backend or ("nccl" if on_gpu else "gloo"))
        self._exchange: Exchange | None = None
        self._weight = 1.0
        self._next = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._came, bucket))

    @contextmanager
    def averaging(self, weight: float = 1.0) -> Iterator[None]:
        """Around forward and backward; `weight` is the size of this worker's batch.

        Raises `GenerationChanged` when a member is lost meanwhile: let go of the step then.
        """
        total = torch.tensor([float(weight)], device=self._buckets[0].flat.device)
        self.run.together(partial(self._begin, total))
        self._weight = float(weight) / max(float(total), 1e-12)
        try:
            yield
            self.run.together(self._end)
        finally:
            self._exchange = None

    def _begin(self, total: torch.Tensor, exchange: Exchange) -> None:
        """How many samples the step has, over all members."""
        if self.run.steps == 0:
            self._adopt(exchange)
        for bucket in self._buckets:
            bucket.reset()
        self.group.finish(self.group.begin_sum(total, exchange), exchange)
        self._exchange, self._next = exchange, 0

    def _adopt(self, exchange: Exchange) -> None:
        """The module of rank 0; who is interrupted in it has parts of both, and adopts again."""
        for each in (*self.module.parameters(), *self.module.buffers()):
            held = each.detach()
            copied = held.contiguous()
            self.group.finish(self.group.begin_copy(copied, exchange), exchange)
            held.copy_(copied)

    def _came(self, bucket: Bucket, parameter: torch.Tensor) -> None:
        """The backward pass has a gradient: full buckets begin, in their order."""
        bucket.missing -= 1
        while self._exchange is not None and self._next < len(self._buckets):
            if self._buckets[self._next].missing > 0:
                break
            self._begin_next(self._exchange)

    def _begin_next(self, exchange: Exchange) -> None:
        self._buckets[self._next].begin(self.group, exchange, self._weight)
        self._next += 1

    def _end(self, exchange: Exchange) -> None:
        """Waits for every bucket, also those that parts of the module left unfilled."""
        while self._next < len(self._buckets):
            self._begin_next(exchange)
        for bucket in self._buckets:
            self.group.finish(bucket.work, exchange)
        for bucket in self._buckets:
            bucket.put()


def bucketed(module: torch.nn.Module) -> list[list[torch.nn.Parameter]]:
    """The trained parameters, the last first, since their gradients come first; alike in type."""
    buckets: list[list[torch.nn.Parameter]] = []
    size_bytes, kind = 0, None
    for each in reversed([p for p in module.parameters() if p.requires_grad]):
        own_bytes, own_kind = each.numel() * each.element_size(), (each.dtype, each.device)
        if not buckets or own_kind != kind or size_bytes + own_bytes > BUCKET_BYTES:
            buckets.append([])
            size_bytes, kind = 0, own_kind
        buckets[-1].append(each)
        size_bytes += own_bytes
    return buckets
