"""A process group of the workers of a run: formed again in each generation, and never stuck.

The workers meet as they do for `run.average`: rank 0 opens a store and sends the others its
address, so nothing has to be configured. Collectives use gloo on the CPU and nccl on GPUs.

If a worker is lost during a collective, the collective fails, because a connection breaks, or it
never ends, because the worker hangs. gloo cannot be interrupted then: the host waits for it in
slices of time, and abandons it when the generation ends. nccl's kernels occupy the device: a thread
aborts them when the generation ends. Forming a group waits for all workers inside PyTorch, so it
happens in a thread that can be abandoned.

The host waits for gloo, but not for nccl: the device waits, the host continues, and `settle` tells
later whether everything is complete. Nothing may be applied before that, unless the device itself
skips it (see `gradient_averaging`).

An error of a collective may be the script's own or the loss of another worker. After a loss
PyTorch's collectives fail in `backward`, in `optimizer.step`, or at the first `loss.item()` after
that. `torch.distributed` has types for such errors. gloo, and aborted collectives, raise a plain
`RuntimeError`; it comes from the loss if the generation has ended, because the coordinator notices
the end of a worker process at once.
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

import psutil
import torch
import torch.distributed as dist

from strata.config import let_runs_handle_nccl_errors, use_interface
from strata.errors import InvalidArgument
from strata.sdk.peers.exchange import Exchange, LinkBroken
from strata.sdk.peers.exchange_log import Transport
from strata.sdk.run import Run

log = logging.getLogger(__name__)

TIMEOUT = timedelta(hours=1)
SLICE = timedelta(milliseconds=50)
LOOK_S = 0.02

Formed = TypeVar("Formed")


class Group:
    """The process group of the generation that a run has entered. For the training thread.

    `backend` is gloo or nccl; by default nccl if there is a GPU. Workers that share a GPU use gloo,
    since nccl does not support that. `aborted` is set to 1.0 before collectives are aborted.
    """

    def __init__(self, run: Run, backend: str | None = None) -> None:
        self.run = run
        self.backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        if self.backend not in ("gloo", "nccl"):
            raise InvalidArgument(f"unknown backend {backend!r}", hint="use gloo or nccl")
        self._generation = -1
        self._store: dist.Store | None = None
        self._members: Any = None
        self._uses_nccl = False
        self._watch: GenerationWatch | None = None
        self.aborted = torch.zeros(())
        self._abandoned: list[object] = []  # destroying a group waits for its pending collectives
        atexit.register(self.leave)  # nccl warns about groups that are still open at exit

    @property
    def uses_nccl(self) -> bool:
        """Whether the group that was formed last communicates by nccl."""
        return self._uses_nccl

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over all workers.

        Raises `GenerationChanged` when a worker is lost meanwhile: abandon the step then.
        """
        self.run.together(partial(self._sum, tensor))

    def _sum(self, tensor: torch.Tensor, exchange: Exchange) -> None:
        self.finish(self.begin_sum(tensor, exchange), exchange)
        self.settle(exchange)

    def leave(self) -> None:
        """Abandon the group and its pending collectives."""
        if self._watch is not None:
            self._watch.stop()
        if self._members is not None:
            if self._uses_nccl:
                self.aborted.fill_(1.0)
                self._members.abort()
            self._abandoned.append((self._members, self._store))
        self._members = self._store = None
        self._generation = -1

    def begin_sum(self, tensor: torch.Tensor, exchange: Exchange) -> Any:
        """Start an all-reduce; returns the work to pass to `finish`."""
        members = self.formed(exchange)
        exchange.begin("all-reduce", tensor.nbytes, tensor.nbytes)
        return members.allreduce([tensor])

    def begin_copy(self, tensor: torch.Tensor, exchange: Exchange) -> Any:
        """Start to copy a contiguous tensor from rank 0 to all others."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        members, leads = self.formed(exchange), exchange.rank == 0
        sizes = (tensor.nbytes, 0) if leads else (0, tensor.nbytes)
        exchange.begin("broadcast", *sizes)
        return members.broadcast([tensor], options)

    def begin_gather(
        self, rows: list[torch.Tensor], vector: torch.Tensor, exchange: Exchange
    ) -> Any:
        """Start to collect a vector of each worker, in the order of ranks."""
        members = self.formed(exchange)
        exchange.begin("all-gather", vector.nbytes, sum(row.nbytes for row in rows))
        return members.allgather([rows], [vector])

    def finish(self, work: Any, exchange: Exchange) -> None:
        """Wait for a collective: on the host with gloo, on the current stream with nccl."""
        try:
            if self._uses_nccl:
                work.wait()
                return
            while not _waited(work):
                if exchange.over:
                    raise LinkBroken("the generation is over")
        except RuntimeError as error:
            self.leave()
            raise LinkBroken(str(error).splitlines()[0]) from error
        except LinkBroken:
            self.leave()
            raise

    def settle(self, exchange: Exchange) -> None:
        """Wait until the device has done everything so far.

        If the generation has ended, what the device has computed since may be wrong.
        """
        if not self._uses_nccl:
            return
        torch.cuda.current_stream().synchronize()
        if exchange.over:
            self.leave()
            raise LinkBroken("the generation is over")

    def formed(self, exchange: Exchange) -> Any:
        """The process group of the current generation; formed at the first call."""
        run = self.run
        if self._members is None or self._generation != exchange.generation:
            self.leave()
            form = partial(self._form, exchange, device_of_thread())
            self._store, self._members, self._uses_nccl = interruptible(exchange, form)
            self._generation = exchange.generation
            self.aborted = torch.zeros((), pin_memory=self._uses_nccl)
            if self._uses_nccl:
                self._watch = GenerationWatch(exchange, self._members, self.aborted)
            name: Transport = "nccl" if self._uses_nccl else "gloo"
            exchange.opened(name)
            log.info("%s group of %d formed, rank %d", name, run.world_size, run.rank)
        return self._members

    def _form(self, exchange: Exchange, device: Any) -> tuple[dist.Store, Any, bool]:
        run = self.run
        nccl = self.backend == "nccl"
        if nccl:
            torch.cuda.set_device(device)
            shared = shared_card(exchange)
            if shared:
                log.warning("%s share one GPU, which nccl refuses; gloo is used instead", shared)
                nccl = False
        store = open_store(run, exchange)
        own = dist.PrefixStore(str(exchange.generation), store)
        if not nccl:
            return store, gloo_group(own, run.rank, run.world_size, exchange.host), False
        let_runs_handle_nccl_errors()
        use_interface(interface_of(exchange.host))
        group = dist.ProcessGroupNCCL(own, run.rank, run.world_size)
        first = torch.zeros(1, device=device)  # nccl connects in its first collective
        group.allreduce([first]).wait(TIMEOUT)
        return store, group, True


def device_of_thread() -> Any:
    """The GPU that the calling thread uses; a new thread starts with the first one."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def _waited(work: Any) -> bool:
    """Wait for one slice of time; return whether the work is done. Raises its error."""
    try:
        work.wait(SLICE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it failed, or finished just after the slice
    return True


def interruptible(exchange: Exchange, form: Callable[[], Formed]) -> Formed:
    """Run a function that all workers call together; `LinkBroken` if the
    generation ends meanwhile.
    """
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


class GenerationWatch:
    """A thread that aborts a group's collectives when the generation ends.

    It sets `flag` to 1.0 before that, if there is one.
    """

    def __init__(self, exchange: Exchange, group: Any, flag: torch.Tensor | None = None) -> None:
        self._exchange, self._group, self._flag = exchange, group, flag
        self._done = threading.Event()
        self.aborted = False
        threading.Thread(target=self._watch, name="strata-group", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            if self._exchange.over:
                self.aborted = True
                if self._flag is not None:
                    self._flag.fill_(1.0)
                self._group.abort()
                return


def shared_card(exchange: Exchange) -> str:
    """The ranks that share a GPU, as text; empty if each has its own."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    cards = exchange.everyone(str(properties.uuid))
    sharing = [rank for rank, card in enumerate(cards) if cards.count(card) > 1]
    return f"ranks {', '.join(map(str, sharing))}" if sharing else ""


def interface_of(host: str) -> str:
    """The network interface that has an address, or ""."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == host for each in addresses):
            return name
    return ""


def open_store(run: Run, exchange: Exchange) -> dist.Store:
    """The store of a generation: rank 0 opens it and sends the others its address."""
    if run.rank == 0:
        store = dist.TCPStore(
            exchange.host, 0, is_master=True, timeout=TIMEOUT, wait_for_workers=False
        )
        exchange.share(f"{exchange.host} {store.port}")
        return store
    host, port = exchange.share().split()
    return dist.TCPStore(host, int(port), is_master=False, timeout=TIMEOUT, wait_for_workers=False)


def gloo_group(store: dist.Store, rank: int, world_size: int, host: str) -> Any:
    """A group over TCP on the interface of that address."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = TIMEOUT
    return dist.ProcessGroupGloo(store, rank, world_size, options)


def form_default_group(run: Run, exchange: Exchange, backend: str, store: dist.Store) -> None:
    """Form the default group of `torch.distributed` for a generation.

    It uses the interface of the workers' addresses, and errors of nccl are left to the run.
    """
    let_runs_handle_nccl_errors()
    use_interface(interface_of(exchange.host))
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(str(exchange.generation), store),
        rank=run.rank,
        world_size=run.world_size,
        timeout=TIMEOUT,
    )


def abort_default_group() -> object:
    """Abort the default group and its pending collectives; return the group, if there was one."""
    if not dist.is_initialized():
        return None
    group = dist.group.WORLD
    dist.distributed_c10d._abort_process_group()
    return group


NOTICE_S = 3.0


def comes_from_lost_worker(run: Run, error: BaseException) -> bool:
    """Whether an error comes from the loss of a worker; waits until the coordinator can know."""
    if not isinstance(error, RuntimeError):
        return False
    if isinstance(error, dist.DistError):
        return True
    if run.world_size == 1:
        return False
    deadline_s = time.monotonic() + NOTICE_S
    while not run.membership_changed and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
    return run.membership_changed
