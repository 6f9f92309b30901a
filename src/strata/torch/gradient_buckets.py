"""Buckets: the gradients of several parameters, summed over all workers in one all-reduce.

The buckets depend only on the module, and are sent in the same order by every worker, so a worker
that joins later has the same ones. (DistributedDataParallel rebuilds its buckets after the first
backward pass, in the order in which gradients arrived; those of a new worker would not match.)

After the sum the gradients are views of the bucket, so nothing is copied back.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from strata.errors import InvalidArgument

FIRST_BUCKET_BYTES = 1 << 20  # small, so that communication begins early
BUCKET_BYTES = 25 << 20


class GradientBucket:
    """Parameters of one type on one device, and a buffer for their gradients.

    After the gradients, `flat` has one number per parameter: how many workers have a gradient for
    it. `pending` counts the parameters whose gradient the backward pass has yet to compute.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self._size = sum(each.numel() for each in parameters)
        self._flat: torch.Tensor | None = None
        self._views: list[torch.Tensor] = []
        self._expected = [1] * len(parameters)
        self._missing: list[int] = []
        self.begin_pass()

    @property
    def device(self) -> torch.device:
        """The device of all its parameters."""
        return self.parameters[0].device

    @property
    def flat(self) -> torch.Tensor:
        """The buffer, created when it is first needed: a single worker needs none."""
        if self._flat is None:
            first, count = self.parameters[0], len(self.parameters)
            self._flat = torch.zeros(self._size + count, dtype=first.dtype, device=first.device)
            self._views = _views(self._flat, self.parameters)
        return self._flat

    @property
    def wire(self) -> torch.Tensor:
        """The buffer as real numbers, which every backend can sum."""
        return torch.view_as_real(self.flat) if self.flat.is_complex() else self.flat

    def begin_pass(self) -> None:
        """Expect every gradient again."""
        self._arrived = [0] * len(self.parameters)
        self.pending = len(self.parameters)
        self.sent = False

    def arrived(self, index: int) -> None:
        """Count a gradient that was accumulated, which may happen several times in one backward
        pass.
        """
        self._arrived[index] += 1
        if self._arrived[index] == self._expected[index]:
            self.pending -= 1

    def learn(self) -> None:
        """Remember how often each gradient was accumulated in the pass that ends."""
        self._expected = [
            max(known, seen) for known, seen in zip(self._expected, self._arrived, strict=True)
        ]

    def fill(self, factor: float) -> None:
        """Put this worker's part of the weighted sum into the buffer."""
        present = self.flat[self._size :].fill_(1)
        self._missing = []
        with torch.no_grad():
            for index, (each, view) in enumerate(zip(self.parameters, self._views, strict=True)):
                if each.grad is None:
                    self._missing.append(index)
                    present[index] = 0
                    view.zero_()
                elif factor:
                    torch.mul(each.grad, factor, out=view)
                else:
                    view.zero_()  # gradients of a worker without samples may be NaN
        self.sent = True

    def put(self, scale: torch.Tensor | float) -> None:
        """Make the sums the gradients; a parameter that no worker used keeps none."""
        if not isinstance(scale, float) or scale != 1.0:
            self.flat[: self._size].mul_(scale)
        unused = [i for i in self._missing if not bool(self.flat[self._size + i] != 0)]
        for index, (each, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            if index not in unused and each.grad is not view:
                each.grad = view


def buckets_of(parameters: Iterable[torch.nn.Parameter]) -> list[GradientBucket]:
    """The buckets of the trained parameters, the last parameters first: their gradients arrive
    first.
    """
    full: list[list[torch.nn.Parameter]] = []
    filling: dict[object, list[torch.nn.Parameter]] = {}
    limit = FIRST_BUCKET_BYTES
    for each in reversed([p for p in parameters if p.requires_grad]):
        kind = (each.dtype, each.device)
        bucket = filling.setdefault(kind, [])
        bucket.append(each)
        if sum(p.numel() * p.element_size() for p in bucket) >= limit:
            full.append(filling.pop(kind))
            limit = BUCKET_BYTES
    return [GradientBucket(each) for each in (*full, *filling.values())]


def described(buckets: Iterable[GradientBucket]) -> str:
    """A description of the buckets that is equal on every worker with the same ones."""
    return "; ".join(
        ", ".join(f"{tuple(p.shape)} {p.dtype}" for p in bucket.parameters) for bucket in buckets
    )


def require_dense(module: torch.nn.Module) -> None:
    """Raise for parameters that cannot be averaged here, with an alternative."""
    for name, each in module.named_parameters():
        if isinstance(each, torch.nn.parameter.UninitializedParameter):
            raise InvalidArgument(
                f"parameter {name} has no shape yet",
                hint="run the model once before data_parallel",
            )
        if hasattr(each, "device_mesh"):
            raise InvalidArgument(
                f"parameter {name} is sharded over a mesh",
                hint="use strata.torch.Mesh for FSDP2 and tensor parallelism",
            )


def _views(flat: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Parts of the buffer, with the strides of the parameters where those are dense."""
    views: list[Any] = []
    at = 0
    for each in parameters:
        strides = torch.empty_like(each, device="meta").stride()
        views.append(flat.as_strided(each.shape, strides, at))
        at += each.numel()
    return views
