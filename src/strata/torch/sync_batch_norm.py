"""`SyncBatchNorm` under `data_parallel`: every batch is normalized over all workers.

PyTorch's own forward pass needs the default group of `torch.distributed`, runs on GPUs alone, and
cannot be interrupted. So `data_parallel` gives the `SyncBatchNorm` modules of a model another
forward pass. It gathers the mean, the squared deviations and the number of values of each worker by
a group of the run. When a worker is lost, `GenerationChanged` comes out of the forward or backward
pass, and the block runs again.

The result is that of a `BatchNorm` in one process which has the samples of all workers, also when
the workers have different numbers of them: in the backward pass each worker counts by its samples,
as it does in the mean of the gradients. (PyTorch's own lets all workers count alike.)

The gathering has a process group of its own: in the one of the gradients the order of messages
would depend on when buckets become full.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.peers.exchange import Exchange
from strata.sdk.run import Run
from strata.torch.process_group import Group

Gather = Callable[[torch.Tensor], torch.Tensor]
"""The vectors of all workers, one row for each rank."""


class BatchStatistics:
    """Gathers the statistics of a model's batches in the steps of a run."""

    def __init__(self, run: Run, backend: str) -> None:
        self.run = run
        self.always_communicate = False
        self._group = Group(run, backend)

    def adopt(self, model: torch.nn.Module) -> None:
        """Make every `SyncBatchNorm` of a model gather its statistics here."""
        for name, each in model.named_modules():
            if not isinstance(each, torch.nn.SyncBatchNorm):
                continue
            if type(each) not in (torch.nn.SyncBatchNorm, SyncedBatchNorm):
                raise _refusal(f"{name} is a {type(each).__name__}, a subclass of SyncBatchNorm")
            if each.process_group is not None:
                raise _refusal(f"{name} is a SyncBatchNorm with a process_group of its own")
            each.__class__ = SyncedBatchNorm
            _statistics[each] = self

    @property
    def needed(self) -> bool:
        """Whether there is any `SyncBatchNorm`."""
        return self.run.world_size > 1 or self.always_communicate

    @property
    def samples(self) -> int:
        """The number of samples of this worker in the current step."""
        step = self.run.present_step
        if step is None:
            raise NotAllowedNow(
                "a SyncBatchNorm was called in training mode outside of a step",
                hint="put the forward pass into `with run.step()`, or call model.eval() before it",
            )
        return step.samples

    def gather(self, vector: torch.Tensor) -> torch.Tensor:
        """The vectors of all workers; raises `GenerationChanged` when a worker is lost."""

        def gathered(exchange: Exchange) -> torch.Tensor:
            rows = [torch.empty_like(vector) for _ in range(self.run.world_size)]
            self._group.finish(self._group.begin_gather(rows, vector, exchange), exchange)
            return torch.stack(rows)

        return self.run.together(gathered)


_statistics: WeakKeyDictionary[torch.nn.Module, BatchStatistics] = WeakKeyDictionary()


class SyncedBatchNorm(torch.nn.SyncBatchNorm):
    """A `SyncBatchNorm` of a model that `data_parallel` trains. A copy of it is a plain one."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize a batch, in training mode over all workers."""
        statistics = _statistics.get(self)
        if not self.training or statistics is None or not statistics.needed:
            return super().forward(input)
        self._check_input_dim(input)
        self._check_non_zero_input_channels(input)
        output, mean, variance, count = Normalize.apply(
            input, self.weight, self.bias, self.eps, statistics.samples, statistics.gather
        )
        if self.track_running_stats:
            self._update(mean, variance, count)
        return output

    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            factor: Any = self.momentum
            if factor is None:
                factor = 1.0 / self.num_batches_tracked.to(torch.float64)
            unbiased = variance * (count / (count - 1))
            for kept, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                kept.copy_(kept * (1 - factor) + new.to(kept.dtype) * factor)


class Normalize(torch.autograd.Function):
    """A batch, normalized by the statistics of all workers; also the statistics and the number of
    values.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        samples: int,
        gather: Gather,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normalize `input`. The sums over workers are in double precision."""
        mean, variance, count, weights = _combined(gather(_own_statistics(input, samples)))
        kind = torch.promote_types(input.dtype, torch.float32)
        mean_now, variance_now = mean.to(kind), variance.to(kind)
        ctx.save_for_backward(input, weight, mean_now, variance_now, count, weights)
        ctx.eps, ctx.samples, ctx.gather = eps, samples, gather
        ctx.mark_non_differentiable(mean, variance, count)
        if not input.numel():
            return input.clone(), mean, variance, count
        output = F.batch_norm(input, mean_now, variance_now, weight, bias, False, 0.0, eps)
        return output, mean, variance, count

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        """The gradients of this worker's own loss, to which the others' batches contribute."""
        input, weight, mean, variance, count, weights = ctx.saved_tensors
        inverse = torch.rsqrt(variance + ctx.eps)
        centered = (input - _by_channel(mean, input)) * _by_channel(inverse, input)
        dims = _dims(input)
        sums = torch.stack([gradient.sum(dims), (gradient * centered).sum(dims)]).to(mean.dtype)
        of_weight = None if weight is None else sums[1].to(weight.dtype)
        of_bias = None if weight is None else sums[0].to(weight.dtype)
        others = ctx.gather(sums.double().reshape(-1))
        if not input.numel():
            return torch.zeros_like(input), of_weight, of_bias, None, None, None
        share = (weights / ctx.samples / count).unsqueeze(1)
        first, second = (others * share).sum(0).view_as(sums).to(mean.dtype)
        scale = inverse if weight is None else inverse * weight.to(mean.dtype)
        kept = gradient - _by_channel(first, input) - centered * _by_channel(second, input)
        result = (kept * _by_channel(scale, input)).to(input.dtype)
        return result, of_weight, of_bias, None, None, None


def _own_statistics(input: torch.Tensor, samples: int) -> torch.Tensor:
    """Means, sums of squared deviations, number of values per channel, and samples."""
    channels = input.shape[1]
    count = input.numel() // channels
    ends = torch.tensor([count, samples], dtype=torch.float64, device=input.device)
    if not count:
        return torch.cat([ends.new_zeros(2 * channels), ends])
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, _dims(input), correction=0)
    return torch.cat([mean.double(), variance.double() * count, ends])


def _combined(
    rows: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, variance and number of the values of all workers; and the samples of each worker."""
    channels = (rows.shape[1] - 2) // 2
    means, deviations, counts, samples = rows.split([channels, channels, 1, 1], 1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    spread = (deviations + counts * (means - mean) ** 2).sum(0)
    return mean, spread / count, count, samples.reshape(-1)


def _dims(input: torch.Tensor) -> list[int]:
    return [each for each in range(input.dim()) if each != 1]


def _by_channel(vector: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *[1] * (input.dim() - 2))


def _refusal(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"data_parallel cannot synchronize {what}",
        hint="use torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) without a process_group",
    )
