"""`torch.distributed` among the members of a run: for FSDP2, tensor parallelism and DTensor.

    mesh = strata.torch.Mesh(run)

    def build():
        model = Net()
        fully_shard(model, mesh=mesh.formed())
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    run.rebuild(build)
    for batch in run.batches("tokens", global_batch=64, epochs=1):
        model, optimizer = run.state["model"], run.state["optimizer"]
        optimizer.zero_grad()
        try:
            with mesh.step(len(batch["x"])) as share:
                loss = loss_of(model, batch)
                (loss * share).backward()
        except strata.GenerationChanged:
            continue                      # somebody was lost in this step
        optimizer.step()
        run.mark_step(loss=loss.item())

A sharded model belongs to the members that hold its shards. So in each generation the default group
and the model are made anew, and all go on from the newest checkpoint, or from the beginning.

Here collectives are called by the model's own hooks, and waited for in native code. When a member
is lost they fail, or are aborted as soon as the generation is over.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from strata.sdk.exchange import Exchange, LinkBroken
from strata.sdk.run import Run
from strata.torch.group import LOOK_S, TIMEOUT, formed, meet

log = logging.getLogger(__name__)


class Mesh:
    """The default group of the generation that a run has entered. For the training thread."""

    def __init__(self, run: Run, backend: str | None = None) -> None:
        self.run = run
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.backend = backend or ("nccl" if self.device == "cuda" else "gloo")
        if self.device == "cuda":
            torch.cuda.init()  # otherwise PyTorch warns that it has to choose a card by itself
        self._generation = -1
        self._done = threading.Event()

    def formed(self) -> DeviceMesh:
        """A mesh of one dimension with every member of the present generation.

        Raises `GenerationChanged` when a member is lost meanwhile.
        """
        if self._generation != self.run.generation:
            self.run.together(self._form)
        # PyTorch takes meshes that look alike for one and the same: a name tells them apart.
        name = f"generation_{self._generation}"
        return init_device_mesh(self.device, (self.run.world_size,), mesh_dim_names=(name,))

    @contextmanager
    def step(self, weight: float = 1.0) -> Iterator[float]:
        """Around all of a step that communicates; `weight` is the size of this worker's batch.

        Gives the factor for this worker's mean loss that makes the mean over the members, which is
        what FSDP2 takes of gradients, the mean over the samples. Raises `GenerationChanged` when a
        member is lost meanwhile: let go of the step then.
        """
        try:
            total = torch.tensor(float(weight), device=self.device)
            dist.all_reduce(total)
            yield float(weight) * self.run.world_size / max(float(total), 1e-12)
        except RuntimeError as error:
            if not _broken(error):
                raise
            self.leave()
            self.run.together(partial(_raise, LinkBroken(str(error).splitlines()[0])))

    def leave(self) -> None:
        """Lets go of the group, whatever is stuck in it."""
        self._done.set()
        self._generation = -1
        if dist.is_initialized():
            dist.distributed_c10d._abort_process_group()

    def _form(self, exchange: Exchange) -> None:
        self.leave()
        formed(exchange, partial(self._begin, exchange))
        self._generation = exchange.generation
        self._done = threading.Event()
        watch = partial(_abort_when_over, exchange, dist.group.WORLD, self._done)
        threading.Thread(target=watch, name="strata-mesh", daemon=True).start()
        log.info("%s mesh formed in generation %d", self.backend, exchange.generation)

    def _begin(self, exchange: Exchange) -> None:
        run = self.run
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore(str(exchange.generation), meet(run, exchange)),
            rank=run.rank,
            world_size=run.world_size,
            timeout=TIMEOUT,
        )


def _abort_when_over(exchange: Exchange, group: Any, done: threading.Event) -> None:
    """Frees a thread that waits in native code for a member that is gone."""
    while not done.wait(LOOK_S):
        if exchange.over:
            group.abort()
            return


def _broken(error: RuntimeError) -> bool:
    """Whether it is the connections that failed, and not the model."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _raise(error: Exception, exchange: Exchange) -> None:
    raise error
