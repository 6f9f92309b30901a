"""A process group that follows the run: formed anew in each generation, never stuck.

Members meet as they do for `run.average`: rank 0 opens a store and tells the others where, so
nothing has to be configured. Collectives are gloo's on the CPU and nccl's on GPUs.

A collective in which a member is lost either fails, since its connection breaks, or never ends,
since the member only stands still; gloo cannot be interrupted then. So nobody waits inside a
collective: each is asked whether it is done, and let go of when the generation is over. nccl's
kernels are aborted as well, since they would occupy the device. Forming a group waits for everyone,
too, inside PyTorch; so it is done by a thread that can be left alone.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from strata.sdk.exchange import Exchange, LinkBroken
from strata.sdk.run import Run

log = logging.getLogger(__name__)

TIMEOUT = timedelta(hours=1)
FIRST_WAIT_S, LONGEST_WAIT_S = 20e-6, 2e-3
LOOK_S = 0.02

Formed = TypeVar("Formed")


class Group:
    """The process group of the generation that a run has entered. For the training thread.

    `backend` is gloo or nccl; without one it is nccl where there is a GPU.
    """

    def __init__(self, run: Run, backend: str | None = None) -> None:
        self.run = run
        self.backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self._generation = -1
        self._store: dist.Store | None = None
        self._members: Any = None
        self._left: list[object] = []  # what may still be stuck must not be waited for
        atexit.register(self.leave)  # nccl complains of groups that nobody left

    def sum(self, tensor: torch.Tensor) -> None:
        """Adds a tensor up over all members, in place.

        Raises `GenerationChanged` when a member is lost meanwhile: let go of the step then.
        """
        self.run.together(lambda exchange: self._summed([tensor], exchange))

    def average_gradients(self, module: torch.nn.Module, weight: float = 1.0) -> None:
        """Replaces every gradient by its mean over all members, weighted by their samples.

        Raises `GenerationChanged` when a member is lost meanwhile: let go of the step then.
        """
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        total = gradients[0].new_ones(1)
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), total]) * weight
        self.sum(flat)
        flat /= flat[-1].clone()
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()

    def leave(self) -> None:
        """Lets go of the group; what is stuck in it goes on being stuck, unwaited for."""
        if self._members is not None:
            if self.backend == "nccl":
                self._members.abort()
            self._left.append((self._members, self._store))
        self._members = self._store = None
        self._generation = -1

    def begin_sum(self, tensor: torch.Tensor, exchange: Exchange) -> Any:
        """Begins to add a tensor up over all members; the work that does it."""
        return self._formed(exchange).allreduce([tensor])

    def begin_copy(self, tensor: torch.Tensor, exchange: Exchange) -> Any:
        """Begins to make a contiguous tensor everywhere what it is at rank 0."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._formed(exchange).broadcast([tensor], options)

    def finish(self, work: Any, exchange: Exchange) -> None:
        """Waits for work that was begun, as long as the generation lasts."""
        wait_s = FIRST_WAIT_S
        while not work.is_completed():
            if exchange.over:
                self.leave()
                raise LinkBroken("the generation is over")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        try:
            work.wait()
        except RuntimeError as error:
            self.leave()
            raise LinkBroken(str(error).splitlines()[0]) from error

    def _summed(self, tensors: list[torch.Tensor], exchange: Exchange) -> None:
        for work in [self.begin_sum(tensor, exchange) for tensor in tensors]:
            self.finish(work, exchange)

    def _formed(self, exchange: Exchange) -> Any:
        """The group of the present generation."""
        run = self.run
        if self._members is None or self._generation != exchange.generation:
            self.leave()
            self._store, self._members = formed(exchange, partial(self._form, exchange))
            self._generation = exchange.generation
            log.info("%s group of %d formed, rank %d", self.backend, run.world_size, run.rank)
        return self._members

    def _form(self, exchange: Exchange) -> tuple[dist.Store, Any]:
        run, store = self.run, meet(self.run, exchange)
        own = dist.PrefixStore(str(exchange.generation), store)
        if self.backend == "nccl":
            return store, dist.ProcessGroupNCCL(own, run.rank, run.world_size)
        return store, gloo(own, run.rank, run.world_size, exchange.host)


def formed(exchange: Exchange, form: Callable[[], Formed]) -> Formed:
    """What all members form together; `LinkBroken` when the generation ends meanwhile."""
    result: Future[Formed] = Future()

    def work() -> None:
        try:
            result.set_result(form())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, name="strata-forming", daemon=True).start()
    while not exchange.over:
        try:
            return result.result(LOOK_S)
        except TimeoutError:
            continue
        except RuntimeError as error:
            raise LinkBroken(str(error).splitlines()[0]) from error
    raise LinkBroken("the generation is over")


def meet(run: Run, exchange: Exchange) -> dist.Store:
    """The store of a generation: rank 0 opens it and tells the others where it is."""
    if run.rank == 0:
        store = dist.TCPStore(
            exchange.host, 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False
        )
        exchange.share(f"{exchange.host} {store.port}")
        return store
    host, port = exchange.share().split()
    return dist.TCPStore(host, int(port), is_master=False, timeout=TIMEOUT, wait_for_workers=False)


def gloo(store: dist.Store, rank: int, world_size: int, host: str) -> Any:
    """A group over TCP on the interface of that address."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(store, rank, world_size, options)
