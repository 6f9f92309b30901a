"""A cluster in this process: a coordinator and one agent, in a thread of their own; or the
coordinator alone, where agents are placed elsewhere.

For `strata run`: nothing has to be started before, and nothing is left behind after. Each run has
a folder of its own under `runs`, so that several may go on at once. A run that was killed leaves
its workers behind; the next one in the same place finds and ends them.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvloop

from strata.agent.host import Host, Leaving, hosting
from strata.agent.orphans import end_orphans
from strata.config import Settings
from strata.coordinator.server import Running, running
from strata.errors import StrataError

log = logging.getLogger(__name__)

AGENT_NAME = "local"
AGENTS = "agents"
RUNS = "runs"


class Local:
    """A cluster that runs here. `leaving` says what becomes of the workers at the end."""

    def __init__(
        self, coordinator: Running, address: str, host: Host | None, stop: asyncio.Event
    ) -> None:
        self.address = address
        self.url = coordinator.http_url
        self.token = coordinator.token
        self._host = host
        self._stop = stop
        self._loop = asyncio.get_running_loop()

    def idle(self) -> bool:
        """Whether every worker has ended and everything about it was told."""
        return self._host is None or self._host.supervisor.quiet

    def pids(self) -> dict[str, int]:
        """The process of each worker that runs."""
        return {} if self._host is None else self._host.supervisor.pids()

    def stop(self, leaving: Leaving = "end") -> None:
        """Begins to end everything, or hurries it; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        if self._host is None:
            return
        self._host.leaving = leaving
        if leaving == "kill":
            self._loop.call_soon_threadsafe(self._host.supervisor.kill_all)


def run_folder(data_dir: Path, name: str) -> Path:
    """A new folder for a run; what killed runs left behind is ended first."""
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
    raise AssertionError("a thousand runs of one name do not begin in one second")


@contextmanager
def local(settings: Settings, slots: int, release: str) -> Iterator[Local]:
    """A cluster of that many slots until the block ends; with none it has no agent of its own."""
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
    """Waits until everything has ended; an interrupt ends the wait."""
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
        address = f"{settings.grpc_host}:{coordinator.grpc_port}"
        scheme = "https://" if settings.tls_cert else ""
        told = msgspec.structs.replace(settings, coordinator_addr=scheme + address)
        if not slots:
            ready.set_result(Local(coordinator, told.coordinator_addr, None, stop))
            await _either(stop.wait(), coordinator.engine.ended())
            return
        async with hosting(told, AGENT_NAME, slots, folder) as host:
            await host.link.attached.wait()
            ready.set_result(Local(coordinator, told.coordinator_addr, host, stop))
            await _either(stop.wait(), coordinator.engine.ended(), host.linked)
            if host.linked.done() and isinstance(host.linked.exception(), StrataError):
                log.error("the agent ended: %s", host.linked.exception())


async def _either(*events: Awaitable[object]) -> None:
    """Waits until one of them has happened."""
    waiting = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    waiting[0].cancel()
