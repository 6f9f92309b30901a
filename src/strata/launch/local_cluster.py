"""A local cluster in one thread of this process: a coordinator and an agent, or the former alone.

For `strata run`: nothing must be started before, and nothing remains after. Each run has its own
folder under `runs`, so several can run at once. A killed run leaves its workers behind; the next
run in the same data folder kills them and ends their task, which can then be continued.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from strata.agent.agent_host import AGENTS, AgentHost, Leaving, hosting, this_process
from strata.agent.worker_process import end_orphans
from strata.config import Settings
from strata.coordinator.server import Running, running
from strata.core.record.log_salvage import ContinueCopy
from strata.core.tasks.continuation import EndKilledTask
from strata.core.workers.host_agents import DeclareAgentLost
from strata.errors import StrataError
from strata.launch.run_copies import COPIED
from strata.launch.run_notes import RUNS
from strata.wire.client_certificates import client_certificates

log = logging.getLogger(__name__)

AGENT_NAME = "local"
EMBEDDED = "embedded"
"""File in the folder of an agent that is part of the process of its coordinator."""


class Local:
    """A running local cluster. `leaving` selects what happens to the workers at the end."""

    def __init__(
        self, coordinator: Running, address: str, host: AgentHost | None, stop: asyncio.Event
    ) -> None:
        self.address = address
        self.url = coordinator.http_url
        self.token = coordinator.token
        self._kernel = coordinator.engine.kernel
        self._sealing = coordinator.sealing
        self._host = host
        self._stop = stop
        self._loop = asyncio.get_running_loop()

    def idle(self) -> bool:
        """Whether every worker has ended and its exit and output are acknowledged."""
        return self._host is None or self._host.supervisor.quiet

    @property
    def name(self) -> str:
        """The name of the cluster, which is part of the paths of its checkpoints."""
        return self._kernel.state.cluster

    def saved(self) -> int:
        """The number of committed checkpoints."""
        return sum(task.saved for task in list(self._kernel.state.tasks.values()))

    def position(self) -> int:
        """The number of facts that are on disk."""
        return self._kernel.durable

    def delete_checkpoints_after(self, copied: Callable[[], int]) -> None:
        """Delete files of expired checkpoints only after this many facts were copied."""
        self._sealing.deletable = lambda position: copied() >= position

    def pids(self) -> dict[str, int]:
        """The pid of each running worker."""
        return {} if self._host is None else self._host.supervisor.pids()

    def stop(self, leaving: Leaving = "end") -> None:
        """Start to end the cluster, or hurry it; thread-safe."""
        self._loop.call_soon_threadsafe(self._stop.set)
        if self._host is None:
            return
        self._host.leaving = leaving
        if leaving == "kill":
            self._loop.call_soon_threadsafe(self._host.supervisor.kill_all)


def run_folder(data_dir: Path, name: str) -> Path:
    """Create a folder for a run; first kills the workers of killed runs."""
    runs = data_dir / RUNS
    for agent in runs.glob(f"*/{AGENTS}/*"):
        end_orphans(agent)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        folder = runs / (f"{stamp}-{name}" if number == 1 else f"{stamp}-{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("a thousand runs of one name do not start in one second")


def named_folder(data_dir: Path, name: str) -> Path:
    """The folder of the run with a name; created if it is new."""
    folder = data_dir / RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def local(settings: Settings, slots: int, release: str) -> Iterator[Local]:
    """Run a cluster with that many slots until the block ends; without an agent if 0."""
    ready: Future[Local] = Future()
    thread = threading.Thread(
        target=_main, args=(settings, slots, release, ready), name="strata-local"
    )
    thread.start()
    cluster = ready.result()
    try:
        yield cluster
    except BaseException:
        _end(cluster, thread, "kill")
        raise
    else:
        _end(cluster, thread, "end")


def _end(cluster: Local, thread: threading.Thread, leaving: Leaving) -> None:
    """Wait until everything has ended; an interrupt ends the wait."""
    cluster.stop(leaving)
    try:
        thread.join()
    except KeyboardInterrupt:
        cluster.stop("kill")
        thread.join()
        raise


def _main(settings: Settings, slots: int, release: str, ready: "Future[Local]") -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, slots, release, ready))
    except BaseException as error:
        if ready.done():
            log.exception("the embedded coordinator ended")
        else:
            ready.set_exception(error)


async def _serve(settings: Settings, slots: int, release: str, ready: "Future[Local]") -> None:
    stop = asyncio.Event()
    folder = Path(settings.data_dir) / AGENTS / AGENT_NAME
    async with running(settings, release) as coordinator:
        await skip_uncopied(coordinator, Path(settings.data_dir))
        await end_killed(coordinator)
        address = f"{settings.grpc_host}:{coordinator.grpc_port}"
        # Settings of a client may be for another coordinator; this one is on this machine.
        plain = "http://" if client_certificates(settings).used else ""
        scheme = "https://" if settings.tls_cert else plain
        reachable = msgspec.structs.replace(
            settings, coordinator_addr=scheme + address, owner=this_process()
        )
        if not slots:
            ready.set_result(Local(coordinator, reachable.coordinator_addr, None, stop))
            await _either(stop.wait(), coordinator.engine.ended())
            return
        async with hosting(reachable, AGENT_NAME, slots, folder) as host:
            (folder / EMBEDDED).touch()
            await host.link.attached.wait()
            ready.set_result(Local(coordinator, reachable.coordinator_addr, host, stop))
            await _either(stop.wait(), coordinator.engine.ended(), host.linked)
            if host.linked.done() and isinstance(host.linked.exception(), StrataError):
                log.error("the agent ended: %s", host.linked.exception())


async def skip_uncopied(coordinator: Running, folder: Path) -> None:
    """If the log is a copy that may lack facts, record that and skip the numbers of these facts."""
    if (folder / COPIED).exists():
        reason = "continued from a copy of the log, made on another machine"
        await coordinator.engine.submit(ContinueCopy(reason=reason))
        (folder / COPIED).unlink()


async def end_killed(coordinator: Running) -> None:
    """End the tasks of a killed run, none of whose processes is left."""
    for task in list(coordinator.engine.kernel.state.tasks.values()):
        if not task.ended:
            await coordinator.engine.submit(EndKilledTask(task=task.id))


async def lose_embedded_agent(coordinator: Running, folder: Path) -> None:
    """In the folder of a run: declare its agent lost, which ended with the process of the run."""
    own = folder / AGENTS / AGENT_NAME
    if not (own / EMBEDDED).exists():
        return
    end_orphans(own)
    agent = coordinator.engine.kernel.state.agents.get(AGENT_NAME)
    if agent is not None and agent.up:
        reason = "it was part of `strata run`, which has ended"
        command = DeclareAgentLost(agent=agent.id, incarnation=agent.incarnation, reason=reason)
        await coordinator.engine.submit(command)
    (own / EMBEDDED).unlink()  # an agent of this name may be started beside this coordinator


async def _either(*events: Awaitable[object]) -> None:
    """Wait for the first of several events."""
    waiting = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    waiting[0].cancel()
