"""The default group of `torch.distributed`, formed again in each generation of a run.

Frameworks that bring their own training loop (Hugging Face, Lightning) use the default group that
they find, and the variables that torchrun would set: RANK, LOCAL_RANK, WORLD_SIZE,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Both are made here before the framework starts.

When a worker is lost, collectives of the others fail, or never end. A thread watches the
generation and aborts the group as soon as it is over, so that the framework's loop is left with an
error.
"""

import atexit
import logging
import socket
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist

from strata.config import export
from strata.sdk.exchange import Exchange
from strata.sdk.run import Run
from strata.torch.group import LOOK_S, TIMEOUT, interruptible, meet

log = logging.getLogger(__name__)

BOTH_BACKENDS = "cpu:gloo,cuda:nccl"


class DefaultGroup:
    """The default group of the generation that a run has entered. For the training thread."""

    def __init__(self, run: Run) -> None:
        self.local_rank = 0
        self._run = run
        self._done = threading.Event()
        self._left: list[object] = []  # a group in which a thread may be stuck is not destroyed
        atexit.register(self.leave)

    @property
    def formed(self) -> bool:
        """Whether there is a group."""
        return dist.is_initialized()

    def form(self) -> None:
        """Form the group with all members; raises `GenerationChanged` if one is lost meanwhile."""
        self._run.together(self._form)

    def leave(self) -> None:
        """Abort the group and abandon its pending collectives."""
        self._done.set()
        if dist.is_initialized():
            self._left.append(dist.group.WORLD)
            dist.distributed_c10d._abort_process_group()

    def _form(self, exchange: Exchange) -> None:
        self.leave()
        interruptible(exchange, partial(self._begin, exchange))
        self._done = threading.Event()
        watch = partial(_abort_when_over, exchange, dist.group.WORLD, self._done)
        threading.Thread(target=watch, name="strata-group", daemon=True).start()
        log.info("default group formed in generation %d", exchange.generation)

    def _begin(self, exchange: Exchange) -> None:
        run, store = self._run, meet(self._run, exchange)
        machines = exchange.everyone(f"{exchange.host} {socket.gethostname()}")
        variables = _variables(run.rank, machines, store)
        export(variables, _interfaces(exchange.host))
        self.local_rank = int(variables["LOCAL_RANK"])
        dist.init_process_group(
            BOTH_BACKENDS if torch.cuda.is_available() else "gloo",
            store=dist.PrefixStore(str(exchange.generation), store),
            rank=run.rank,
            world_size=run.world_size,
            timeout=TIMEOUT,
        )


def connection_failed(error: BaseException) -> bool:
    """Whether the connections between workers failed, and not the script."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _variables(rank: int, machines: Sequence[str], store: Any) -> dict[str, str]:
    here = machines[rank]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(machines)),
        "LOCAL_RANK": str(machines[:rank].count(here)),
        "LOCAL_WORLD_SIZE": str(machines.count(here)),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
    }


def _interfaces(host: str) -> dict[str, str]:
    """The network interface on which the other workers reach this one, for gloo and nccl."""
    for name, addresses in psutil.net_if_addrs().items():
        if host in {each.address for each in addresses}:
            return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return {}


def _abort_when_over(exchange: Exchange, group: Any, done: threading.Event) -> None:
    """Free a thread that waits in native code for a member that is gone."""
    while not done.wait(LOOK_S):
        if exchange.over:
            group.abort()
            return
