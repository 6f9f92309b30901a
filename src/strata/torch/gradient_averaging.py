"""Averages a module's gradients over all workers, with one all-reduce per bucket.

Every backward pass replaces each gradient by its weighted mean over the workers. The weight of a
worker is its number of samples in this step, divided by the sum over all workers. The weights add
up to 1, so a gradient that is the same on all workers stays as it is: a pass may begin with
gradients that an earlier pass has averaged, and only adds what is new.

The sum of the samples is sent in a small separate message, the *head*, ahead of the buckets. The
gradients are divided by the sum of the last pass before they are sent, and corrected afterwards. So
no pass has to wait for the head, and with equal batches no correction is necessary.

The head also says which pass of which step this worker is in, and which parameters it trains.
Workers that call `backward` a different number of times in one step would mix the gradients of
different steps; that is an error.

A pass returns before the GPU has completed it. If the host waited for the gradients before the
optimizer, the GPU would be idle while the host prepares the optimizer's kernels. So an optimizer
that can skip its update on the device is launched at once, with a number on the device that says
whether to skip. (These are the fused optimizers: a `GradScaler` uses the same way to let them skip
infinite gradients.) Only then does the host wait, while the GPU continues with the update. The
update is skipped if the collectives were aborted, or if the workers' heads do not match. A thread
writes to the group's flag, in pinned memory, before it aborts the collectives. The device copies
the flag after them: if it copies a zero, they were complete.
"""

import logging
from functools import partial
from hashlib import sha256
from typing import Any

import torch

from strata.errors import InvalidArgument
from strata.sdk.peers.exchange import Exchange, LinkBroken
from strata.sdk.run import Run
from strata.torch.gradient_buckets import GradientBucket, buckets_of, described
from strata.torch.module_tensors import ModuleTensors
from strata.torch.process_group import Group


class GradientDelivery:
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
        result = torch.cat([head, torch.stack([aborted, self.skip]).to(head.dtype)])
        self._result = result
        self._event: Any = None
        if head.is_cuda:
            self._result = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            self._result.copy_(result, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> None:
        """Wait until the device has completed the pass."""
        if self._event is not None:
            self._event.synchronize()

    @property
    def head(self) -> list[float]:
        """The head, after `wait`."""
        return self._result[:-2].tolist()

    @property
    def aborted(self) -> bool:
        """Whether the collectives were aborted, after `wait`."""
        return bool(self._result[-2])

    @property
    def skipped(self) -> bool:
        """Whether an optimizer that was given `skip` has skipped its update."""
        return bool(self._result[-1])


def can_skip(optimizer: Any) -> bool:
    """Whether an optimizer skips its update when `found_inf`, on the device, is 1.0."""
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and all(group.get("fused") for group in optimizer.param_groups)
        and not hasattr(optimizer, "found_inf")  # a GradScaler uses it now
    )


log = logging.getLogger(__name__)

MARKS = 1 << 40  # sums of marks stay exact in double precision


class Averaging:
    """Averages the gradients of one module. `buckets` are sent in their order.

    `overlap` sends a bucket as soon as the backward pass has filled it, while the pass goes on.
    """

    def __init__(self, run: Run, group: Group, contents: ModuleTensors, overlap: bool) -> None:
        self.run, self.group, self._contents = run, group, contents
        self._overlap = overlap
        self.buckets: list[GradientBucket] = []
        self._layout: object = None
        self._digest = ""
        self._learned = False
        self._generation = -1
        self._total = self._next_total = 1.0
        self.mark = 0
        self.late = False  # with gloo, behave as with nccl; for tests
        self._delivery: GradientDelivery | None = None
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._exchange: Exchange | None = None
        self._head: torch.Tensor = torch.zeros(3, dtype=torch.float64)
        self._own_head = self._head
        self._head_work: Any = None
        self._works: list[Any] = []
        for bucket in self.buckets:
            bucket.begin_pass()

    def prepare(self) -> bool:
        """Begin a step, and follow changes of the module; return whether the buckets changed."""
        self._total = self._next_total
        layout = (self._contents.parameters, self._contents.kinds())
        if layout == self._layout and self.buckets:
            return False
        self.buckets = buckets_of(self._contents.parameters)
        if not self.buckets:
            raise InvalidArgument(
                "no parameter of the module requires a gradient",
                hint="remove data_parallel, or unfreeze parameters before it",
            )
        self._layout, self._learned = layout, False
        self._digest = sha256(described(self.buckets).encode()).hexdigest()
        self._begin_empty()
        return True

    def discard(self) -> None:
        """Abandon a pass; pending collectives keep the old buffers."""
        self.buckets, self._layout, self._generation = [], None, -1
        self._delivery = None
        self._begin_empty()

    def arrived(self, bucket: GradientBucket, index: int, weight: float) -> None:
        """Called when a gradient was accumulated: send complete buckets, in their order."""
        bucket.arrived(index)
        if bucket.sent:
            shape = tuple(bucket.parameters[index].shape)
            raise InvalidArgument(
                f"a parameter of shape {shape} received a gradient more often than before in one "
                "backward pass, after the gradient was sent",
                hint="use data_parallel(..., overlap=False) or checkpoint(use_reentrant=False)",
            )
        if self._overlap and self._learned:
            while len(self._works) < len(self.buckets):
                if self.buckets[len(self._works)].pending:
                    break
                self._send_next(weight)

    def finish(self, weight: float, source: list[torch.Tensor]) -> None:
        """End a pass: every gradient becomes the mean, and `source` the values of rank 0."""
        while len(self._works) < len(self.buckets):
            self._send_next(weight)
        self.run.together(partial(self._finish, source))

    @property
    def skip(self) -> torch.Tensor | None:
        """On the device: 1.0 if the last pass must not be applied; None if it is known to be good.

        An optimizer that gets it may be launched before `confirm`.
        """
        return None if self._delivery is None else self._delivery.skip

    def settle(self) -> None:
        """Make sure that the last pass is complete on the device, before anything is applied."""
        if self._delivery is not None:
            self.run.together(self._settle)

    def confirm(self) -> bool:
        """Wait for the last pass, after an optimizer was launched with `skip`.

        False means that the optimizer has skipped its update, and `settle` will raise the reason.
        """
        delivery = self._delivery
        if delivery is None:
            return True
        with self.run.timing("communication"):
            delivery.wait()
        self.run.exchange_log.ended()
        if delivery.skipped:
            return False
        self._delivery = None
        self._check(delivery.head)
        return True

    def _send_next(self, weight: float) -> None:
        if self._exchange is None:
            self.run.together(partial(self._open, weight))
        assert self._exchange is not None
        bucket = self.buckets[len(self._works)]
        bucket.fill(weight / self._total)
        self._works.append(self.group.begin_sum(bucket.wire, self._exchange))

    def _open(self, weight: float, exchange: Exchange) -> None:
        """Send the head. In a new generation wait for its sum, to divide by it."""
        self.group.formed(exchange)
        device = self.buckets[0].device if self.group.uses_nccl else torch.device("cpu")
        if exchange.generation != self._generation:
            self._require_same_layout(exchange)
            first = torch.tensor([weight], dtype=torch.float64, device=device)
            self.group.finish(self.group.begin_sum(first, exchange), exchange)
            self.group.settle(exchange)
            self._total = self._next_total = max(float(first), 1e-12)
            self._generation = exchange.generation
        head = [weight, self.mark % MARKS, int(self._digest[:8], 16)]
        self._own_head = torch.tensor(head, dtype=torch.float64).to(device, non_blocking=True)
        self._head = self._own_head.clone()
        self._head_work = self.group.begin_sum(self._head, exchange)
        self._exchange = exchange

    def _require_same_layout(self, exchange: Exchange) -> None:
        for rank, theirs in enumerate(exchange.everyone(self._digest)):
            if theirs != self._digest:
                raise _other_parameters(f"rank {rank}", self.run)

    def _finish(self, source: list[torch.Tensor], exchange: Exchange) -> None:
        group = self.group
        copies = begin_copies(group, source, exchange)
        group.finish(self._head_work, exchange)
        for work in self._works:
            group.finish(work, exchange)
        for _, _, work in copies:
            group.finish(work, exchange)
        late = group.uses_nccl or self.late
        scale = self._total / self._head[0] if late else self._check(self._head.tolist())
        for bucket in self.buckets:
            bucket.put(scale)
            bucket.learn()
        for flat, parts, _ in copies:
            take_copy(flat, parts)
        if late:
            world_size = self.run.world_size
            self._delivery = GradientDelivery(self._head, self._own_head, world_size, group.aborted)
        self._learned = True
        self._begin_empty()

    def _settle(self, exchange: Exchange) -> None:
        delivery = self._delivery
        assert delivery is not None
        delivery.wait()
        self._delivery = None
        if exchange.over or delivery.aborted:
            self.group.leave()
            raise LinkBroken("the generation is over")
        self._check(delivery.head)
        if delivery.skipped:
            raise AssertionError("an update was skipped without a reason")

    def _check(self, head: list[float]) -> float:
        """The correction for the sum of the samples, after checking the head."""
        total, marks, digests = head
        if digests != int(self._digest[:8], 16) * self.run.world_size:
            raise _other_parameters("another worker", self.run)
        if marks != self.mark % MARKS * self.run.world_size:
            raise InvalidArgument(
                "the workers are in different backward passes, so their gradients do not belong "
                "together",
                hint="call backward() equally often on every worker in a step, or put all but the "
                "last call into `with step.accumulate()`",
            )
        self._next_total = max(total, 1e-12)
        if self.run.present_step is not None:
            self.run.present_step.averaged = round(total)
        return self._total / self._next_total


def _other_parameters(who: str, run: Run) -> InvalidArgument:
    return InvalidArgument(
        f"{who} trains different parameters than this worker (rank {run.rank})",
        hint="build the same model, with the same parameters frozen, on all workers",
    )


def begin_copies(
    group: Group, tensors: list[torch.Tensor], exchange: Exchange
) -> list[tuple[torch.Tensor, list[torch.Tensor], Any]]:
    """Start to copy tensors from rank 0, all of a device in one message of bytes.

    The widest types come first, so that each begins at a multiple of its size.
    """
    devices: dict[object, list[torch.Tensor]] = {}
    for each in sorted(tensors, key=torch.Tensor.element_size, reverse=True):
        devices.setdefault(each.device, []).append(each.detach())
    copies = []
    for parts in devices.values():
        flat = torch.cat([each.reshape(-1).view(torch.uint8) for each in parts])
        copies.append((flat, parts, group.begin_copy(flat, exchange)))
    return copies


def take_copy(flat: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Copy the values of rank 0 into the tensors."""
    sizes = [each.numel() * each.element_size() for each in parts]
    with torch.no_grad():
        for each, value in zip(parts, flat.split(sizes), strict=True):
            each.copy_(value.view(each.dtype).view(each.shape))
