"""`torch.distributed` among the workers of a run: for FSDP2, tensor parallelism and DTensor.

    mesh = strata.torch.Mesh(run)

    def build():
        model = Net()
        fully_shard(model, mesh=mesh.formed())
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    run.rebuild(build)
    for batch in run.batches("tokens", global_batch=64, epochs=1):
        model, optimizer = run.state["model"], run.state["optimizer"]
        with run.step() as step:
            loss = loss_of(model, batch)
            mesh.scale(loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss)

A sharded model belongs to the workers that hold its shards. So in each generation the default group
and the model are built again, and all workers continue from the newest checkpoint, or from the
beginning.

FSDP2 takes the mean of the gradients over the workers, each with the same weight. `mesh.scale`
multiplies the mean loss of this worker, so that the result is the mean over all samples, also when
the workers have different numbers of them. A step without it raises an error, unless there is one
worker.

Collectives are called by the model's own hooks, and waited for in native code. When a worker is
lost they fail, or are aborted as soon as the generation is over. What the device computes from
aborted collectives is wrong, so the end of a block waits for the device before the step counts.
"""

import logging
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.peers.exchange import Exchange, LinkBroken
from strata.sdk.run import Run
from strata.sdk.steps.step_block import Step
from strata.torch.process_group import (
    GenerationWatch,
    abort_default_group,
    comes_from_lost_worker,
    device_of_thread,
    form_default_group,
    interruptible,
    open_store,
    shared_card,
)

log = logging.getLogger(__name__)


class Mesh:
    """The default group of the generation that a run has entered. For the training thread.

    `backend` is gloo or nccl; without one it is nccl where there is a GPU.
    """

    def __init__(self, run: Run, backend: str | None = None) -> None:
        self.run = run
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.backend = backend or ("nccl" if self.device == "cuda" else "gloo")
        if self.device == "cuda":
            torch.cuda.init()  # otherwise PyTorch warns that it has to choose a device by itself
        self._generation = -1
        self._watch: GenerationWatch | None = None
        self._exchange: Exchange | None = None
        self._step: Step | None = None
        self._factor: torch.Tensor | float | None = None
        self._updated = False
        run.add_step_hook(self)
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def formed(self) -> DeviceMesh:
        """A mesh of one dimension with every worker of the present generation.

        Raises `GenerationChanged` when a worker is lost meanwhile.
        """
        if self._generation != self.run.generation:
            self.run.together(self._form)
        # PyTorch treats meshes that look alike as the same one: a name distinguishes them.
        name = f"generation_{self._generation}"
        return init_device_mesh(self.device, (self.run.world_size,), mesh_dim_names=(name,))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The mean loss of this worker, multiplied so that the gradients become a mean of samples.

        All workers call it in each step. The sum of the samples is computed once per step, on the
        device.
        """
        if self._step is None:
            raise NotAllowedNow(
                "mesh.scale() was called outside of a step", hint="put it into `with run.step()`"
            )
        if self._factor is None:
            self._factor = 1.0
            if self.run.world_size > 1:
                total = torch.tensor(float(self._step.samples), device=self.device)
                dist.all_reduce(total)
                self._factor = self._step.samples * self.run.world_size / total.clamp_min(1e-12)
        return loss * self._factor

    def begin(self, step: Step) -> None:
        """Begin a block. The model's own hooks communicate in it, so it is recorded as one
        exchange.
        """
        self._step, self._factor, self._updated = step, None, False
        if self._exchange is not None:
            self._exchange.begin(measured=False)

    def end(self, step: Step) -> None:
        """Wait until the device has done the step, with nccl; raise if it was aborted."""
        if self.backend == "nccl":
            torch.cuda.current_stream().synchronize()
        if self._aborted:
            self.run.together(partial(_raise, LinkBroken("the generation is over")))
        self.run.exchange_log.ended()
        self._step = None

    def abandon(self, step: Step) -> bool:
        """Leave the group; the model is built again in the next generation."""
        self._step = None
        self.leave()
        return not self._updated

    def lost_link(self, error: BaseException) -> bool:
        """Whether an error of the script comes from the loss of another worker."""
        aborted = self._aborted and isinstance(error, RuntimeError)
        return aborted or comes_from_lost_worker(self.run, error)

    def leave(self) -> None:
        """Abandon the group and its pending collectives."""
        if self._watch is not None:
            self._watch.stop()
        self._generation, self._exchange = -1, None
        abort_default_group()

    @property
    def _aborted(self) -> bool:
        return self._watch is not None and self._watch.aborted

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Called by PyTorch before an optimizer steps."""
        if self._step is not None and self._factor is None and self.run.world_size > 1:
            raise NotAllowedNow(
                "the loss of this step was not scaled, so workers with fewer samples would count "
                "as much as the others",
                hint="call mesh.scale(loss).backward()",
            )

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updated = True

    def _form(self, exchange: Exchange) -> None:
        self.leave()
        interruptible(exchange, partial(self._begin, exchange, device_of_thread()))
        self._generation = exchange.generation
        self._watch = GenerationWatch(exchange, dist.group.WORLD)
        self._exchange = exchange
        exchange.opened("nccl" if self.backend == "nccl" else "gloo")
        log.info("%s mesh formed in generation %d", self.backend, exchange.generation)

    def _begin(self, exchange: Exchange, device: Any) -> None:
        if self.backend == "nccl":
            torch.cuda.set_device(device)
            shared = shared_card(exchange)
            if shared:
                raise InvalidArgument(
                    f"{shared} share one GPU, which nccl refuses",
                    hint='start one worker per GPU, or use Mesh(run, backend="gloo")',
                )
        form_default_group(self.run, exchange, self.backend, open_store(self.run, exchange))


def _raise(error: Exception, exchange: Exchange) -> None:
    raise error
