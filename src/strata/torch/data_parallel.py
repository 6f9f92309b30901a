"""Data-parallel training that survives the loss of any worker: in place of DistributedDataParallel.

    strata.torch.data_parallel(run, model)
    run.restore(model=model, optimizer=optimizer)
    for batch in run.batches("cifar", batch_size=64, epochs=10):
        with run.step() as step:
            loss = loss_of(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss)

The module stays as it is; nothing is wrapped. When `backward` returns, every gradient is the mean
over all workers, weighted by their samples. So clipping, `GradScaler.unscale_` and the optimizer
see the same values on all workers. All micro-batches of an update belong into one block. Each
`backward` communicates, unless it is inside `with step.accumulate()`.

A parameter that no worker used keeps no gradient, so the optimizer leaves it alone. A parameter
that some workers used counts as zero on the others. Buffers become those of rank 0 at the end of
each backward pass (DistributedDataParallel: before each forward pass). A `SyncBatchNorm` normalizes
over all workers, on GPUs and on CPUs. In the first step all workers take over the parameters and
buffers of rank 0, so scripts need not seed them alike.

When a worker is lost, `GenerationChanged` comes out of `backward`, or out of `optimizer.step` with
nccl, where the host does not wait in `backward`. Prefer `fused=True` there: a fused optimizer is
launched before the host waits. Random generators and buffers are put back to the
beginning of the block, gradients are removed, and the block can run again.
"""

import threading
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from strata.errors import InvalidArgument, NotAllowedNow, StrataError
from strata.sdk.interrupts import GenerationChanged, StopRequested
from strata.sdk.peers.exchange import Exchange
from strata.sdk.run import Run
from strata.sdk.steps.step_block import Step
from strata.torch.gradient_averaging import Averaging, begin_copies, can_skip, take_copy
from strata.torch.gradient_buckets import GradientBucket, require_dense
from strata.torch.module_tensors import ModuleTensors
from strata.torch.process_group import Group, comes_from_lost_worker
from strata.torch.step_snapshot import BlockState
from strata.torch.sync_batch_norm import BatchStatistics

PASSES = 1 << 12

Model = TypeVar("Model", bound=torch.nn.Module)


def data_parallel(
    run: Run,
    model: Model,
    *,
    backend: str | None = None,
    broadcast_buffers: bool = True,
    overlap: bool = True,
) -> Model:
    """Average the gradients of a module over all workers, in every step of a run.

    Returns the module itself. `backend` is gloo or nccl; without one it is nccl for a module on a
    GPU. `broadcast_buffers=False` leaves each worker its own buffers. `overlap=False` sends the
    gradients at the end of a backward pass, for modules that use a parameter a varying number of
    times in reentrant checkpoints.
    """
    require_dense(model)
    run.add_step_hook(DataParallel(run, model, backend, broadcast_buffers, overlap))
    return model


class DataParallel:
    """Takes part in every step of a run with one module. Made by `data_parallel`.

    `_tasks` are the backward passes under way that have computed a gradient. There are several
    when a reentrant checkpoint runs a pass inside a pass; the outermost one sends the gradients.
    """

    def __init__(
        self,
        run: Run,
        module: torch.nn.Module,
        backend: str | None,
        broadcast_buffers: bool,
        overlap: bool,
    ) -> None:
        self.run = run
        self._contents = ModuleTensors(module)
        self._contents.refresh()
        on_gpu = any(each.is_cuda for each in self._contents.parameters)
        chosen = backend or ("nccl" if on_gpu else "gloo")
        self.group = Group(run, chosen)
        self.statistics = BatchStatistics(run, chosen)
        self.statistics.adopt(module)
        self.averaging = Averaging(run, self.group, self._contents, overlap)
        self._state = BlockState(self._contents)
        self._broadcast_buffers = broadcast_buffers
        self._lock = threading.RLock()  # one thread per device calls the hooks
        self._handles: list[Any] = []
        self._own: set[int] = set()
        self.always_communicate = False  # for measurements with one worker
        self._step: Step | None = None
        self._guarded: Any = None
        self._owned: WeakKeyDictionary[Any, tuple[int, bool]] = WeakKeyDictionary()
        self._reset()
        self.averaging.prepare()
        self._watch_gradients()
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def _reset(self) -> None:
        self._tasks: set[int] = set()
        self._passes = 0
        self._unsent = False
        self._at_once = False
        self._failure: StrataError | None = None
        self._end_guard()

    def begin(self, step: Step) -> None:
        """Copy what the block may change; in the first step, take over the module of rank 0."""
        if self._step is not None:  # the script left its last block by its own error
            self.averaging.discard()
        if self._contents.refresh():
            self.statistics.adopt(self._contents.module)
        if self.averaging.prepare():
            self._watch_gradients()
        self._reset()
        self.statistics.always_communicate = self.always_communicate
        self._alone = self.run.world_size == 1 and not self.always_communicate
        if step.number == 0 and not self._alone:
            self._adopt()
        self._state.capture()
        self._step = step

    def end(self, step: Step) -> None:
        """Raise unless the gradients were averaged and used."""
        self._require_complete()
        self._settle()
        if self._passes and not self._state.updated and self._gradients_left():
            raise NotAllowedNow(
                f"step {step.number} ended with gradients that no optimizer has used",
                hint="put all micro-batches of an update into one `with run.step()` block, and "
                "call optimizer.step() at its end",
            )
        self._state.note_buffers()
        self._step = None

    def abandon(self, step: Step) -> bool:
        """Undo the block; False if the parameters have already changed."""
        self._step = None
        self.averaging.discard()
        for each in self._contents.parameters:
            each.grad = None
        return self._state.restore()

    def lost_link(self, error: BaseException) -> bool:
        """Whether an error of the script comes from the loss of another worker."""
        return comes_from_lost_worker(self.run, error)

    def _watch_gradients(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._own = {id(each) for each in self._contents.parameters}
        self._owned.clear()
        self._handles = [
            each.register_post_accumulate_grad_hook(partial(self._arrived, bucket, index))
            for bucket in self.averaging.buckets
            for index, each in enumerate(bucket.parameters)
        ]

    def _adopt(self) -> None:
        """Take over the module of rank 0. An error is stored until it can be
        raised in the block.
        """
        try:
            self.run.together(self._take_over)
        except (GenerationChanged, StopRequested) as failure:
            self._failure = failure

    def _take_over(self, exchange: Exchange) -> None:
        tensors = [*self._contents.parameters, *self._contents.buffers]
        for flat, parts, work in begin_copies(self.group, tensors, exchange):
            self.group.finish(work, exchange)
            take_copy(flat, parts)
        self.group.settle(exchange)

    def _arrived(self, bucket: GradientBucket, index: int, parameter: torch.Tensor) -> None:
        """Called by PyTorch when the backward pass has accumulated a gradient."""
        step = self._step
        if step is None:
            parameter.grad = None
            raise NotAllowedNow(
                "backward() was called outside of a step",
                hint="put it into `with run.step()`, with the forward pass and the optimizer",
            )
        with self._lock:
            task = torch._C._current_graph_task_id()
            if task not in self._tasks:
                self.averaging.mark = step.number * PASSES + self._passes
                self._tasks.add(task)
                ended = partial(self._task_ended, task)
                torch.autograd.Variable._execution_engine.queue_callback(ended)
            if self._failure is not None:
                raise self._failure
            if self._alone or step.accumulating:
                return
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise InvalidArgument(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse",
                    hint="data_parallel averages dense gradients: use sparse=False",
                )
            self.averaging.arrived(bucket, index, step.samples)

    def _task_ended(self, task: int) -> None:
        """Called by PyTorch when a backward pass is complete, before `backward` returns."""
        with self._lock:
            self._tasks.discard(task)
            if self._tasks or self._step is None:
                return
            if self._step.accumulating and not self._alone:
                self._unsent = True
                return
            if not self._alone:
                self._average(self._step)
            self._passes += 1

    def _average(self, step: Step) -> None:
        self._contents.refresh()
        self._state.note_buffers()
        buffers = self._contents.buffers if self._broadcast_buffers else []
        self.averaging.finish(step.samples, buffers)
        self._state.forget_copies()
        self._unsent = False
        if self._at_once:
            self.averaging.settle()

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Called by PyTorch before an optimizer steps."""
        if not self._owns(optimizer):
            return
        if self._step is None:
            raise NotAllowedNow(
                "optimizer.step() was called outside of a step",
                hint="put it into `with run.step()`, after backward()",
            )
        self._require_complete()
        if any(each is not None for each in (*args[1:], kwargs.get("closure"))):
            self._at_once = self._state.optimized = True  # it calls backward between its updates
        elif not self._alone and not self._passes and self._has_gradients():
            raise NotAllowedNow(
                "optimizer.step() would apply gradients that were not averaged over the workers",
                hint="compute them by backward() in the same `with run.step()` block",
            )
        skip = None if self._alone else self.averaging.skip
        if skip is None or not can_skip(optimizer):
            self._settle()
            return
        optimizer.found_inf = skip
        self._guarded = optimizer

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._owns(optimizer):
            return
        if self._guarded is optimizer:
            self._end_guard()
            if not self.averaging.confirm():
                self._state.forget_update()
                self._settle()  # raises
        self._state.optimized = True

    def _end_guard(self) -> None:
        """Let the optimizer apply its gradients again without checking the device."""
        if self._guarded is not None:
            del self._guarded.found_inf
            self._guarded = None

    def _owns(self, optimizer: Any) -> bool:
        """Whether an optimizer has parameters of the module; cached after the first call."""
        groups = optimizer.param_groups
        count = sum(len(group["params"]) for group in groups)
        known = self._owned.get(optimizer)
        if known is None or known[0] != count:
            owns = any(id(each) in self._own for group in groups for each in group["params"])
            known = self._owned[optimizer] = (count, owns)
        return known[1]

    def _require_complete(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._tasks:
            raise NotAllowedNow(
                "the gradients are not complete: a backward pass is still running, or has failed",
                hint="call optimizer.step() after backward(), and let an error of backward() leave "
                "the `with run.step()` block",
            )
        if self._unsent:
            raise NotAllowedNow(
                "the gradients of the last backward pass were not averaged over the workers",
                hint="call the last backward() of a step outside of `with step.accumulate()`",
            )

    def _settle(self) -> None:
        if not self._alone:
            self.averaging.settle()

    def _has_gradients(self) -> bool:
        return any(each.grad is not None for each in self._contents.parameters)

    def _gradients_left(self) -> bool:
        """Whether gradients remain that could be applied; a GradScaler skips infinite ones."""
        left = [each.grad for each in self._contents.parameters if each.grad is not None]
        return any(bool(each.any()) for each in left) and all(
            bool(each.isfinite().all()) for each in left
        )
