"""The default group of `torch.distributed`, formed again in each generation of a run.

Frameworks with their own training loop (Hugging Face, Lightning) use the existing default group,
and the variables that torchrun would set: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT. Both are set up here before the framework starts.

When a worker is lost, collectives of the others fail, or never end. A thread watches the generation
and aborts the group as soon as the generation ends, so that the framework's loop ends with an
error.
"""

import atexit
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from strata.config import export
from strata.sdk.peers.exchange import Exchange
from strata.sdk.run import Run
from strata.torch.process_group import (
    GenerationWatch,
    abort_default_group,
    form_default_group,
    interruptible,
    open_store,
)

log = logging.getLogger(__name__)

BOTH_BACKENDS = "cpu:gloo,cuda:nccl"


class DefaultGroup:
    """The default group of the generation that a run has entered. For the training thread."""

    def __init__(self, run: Run) -> None:
        self.local_rank = 0
        self._run = run
        self._watch: GenerationWatch | None = None
        self._left: list[object] = []  # a group in which a thread may be stuck is not destroyed
        atexit.register(self.leave)

    @property
    def formed(self) -> bool:
        """Whether there is a group."""
        return dist.is_initialized()

    def form(self) -> None:
        """Form the group with all members; raises `GenerationChanged` if one is lost meanwhile."""
        self._run.together(self._form)

    def require_complete(self) -> None:
        """Raise if the device may have computed with collectives that were aborted.

        With nccl the host does not notice that, so it waits for the device here.
        """
        if self._run.world_size > 1 and torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        if self._watch is not None and self._watch.aborted:
            raise RuntimeError("the collectives of this step were aborted: a worker is lost")

    def leave(self) -> None:
        """Abort the group and abandon its pending collectives."""
        if self._watch is not None:
            self._watch.stop()
        self._left.append(abort_default_group())

    def _form(self, exchange: Exchange) -> None:
        self.leave()
        interruptible(exchange, partial(self._begin, exchange))
        self._watch = GenerationWatch(exchange, dist.group.WORLD)
        log.info("default group formed in generation %d", exchange.generation)

    def _begin(self, exchange: Exchange) -> None:
        run, store = self._run, open_store(self._run, exchange)
        machines = exchange.everyone(f"{exchange.host} {socket.gethostname()}")
        variables = _variables(run.rank, machines, store)
        export(variables)
        self.local_rank = int(variables["LOCAL_RANK"])
        backend = BOTH_BACKENDS if torch.cuda.is_available() else "gloo"
        form_default_group(run, exchange, backend, store)


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
