"""`python -m strata.launch.companion PID SCRIPT NAME`: the coordinator of a process that trains
alone.

`strata.join()` without a coordinator address starts it (`sdk/embedded_coordinator`). It creates a
folder for the run, prints one line of JSON with its address, the dashboard's address and the
folder, and serves until SIGTERM or until process PID has ended. With a NAME the folder is that of
the run with this name, and its newest task continues when the process joins.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from strata import __version__
from strata.agent.leftover_events import batches_left_by, remove_left_by
from strata.config import Settings, load_process
from strata.coordinator.server import Running, running
from strata.errors import StrataError
from strata.launch.local_cluster import end_killed, named_folder, run_folder
from strata.launch.run_notes import LOG
from strata.logsetup import configure
from strata.store.event_store import Batch
from strata.store.sqlite.lock_files import lock_holder

LOCAL = {
    "grpc_host": "127.0.0.1",
    "grpc_port": 0,
    "http_host": "127.0.0.1",
    "http_port": 0,
    "tls_cert": "",
    "tls_key": "",
    "tls_client_ca": "",
}
BEAT_S = 1.0
POLL_S = 0.2
LAST_EVENTS_S = 5.0
"""How long to wait, after the process was killed, for its loss and its last events."""

LOCK_S = 3 * LAST_EVENTS_S
"""How long to wait for the coordinator of a killed process that trained under the same name."""

SPOOL = "spool"
log = logging.getLogger(__name__)


def main() -> None:
    """Serve the process with the given pid."""
    parent, script, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    settings = load_process(LOCAL)
    data_dir = Path(settings.data_dir)
    folder = named_folder(data_dir, name) if name else run_folder(data_dir, script)
    wait_for_lock(folder)
    settings = msgspec.structs.replace(
        settings,
        data_dir=str(folder),
        spool_dir=settings.spool_dir or str(folder / SPOOL),
        heartbeat_interval_s=min(BEAT_S, settings.heartbeat_interval_s),
        continue_ended=bool(name),
    )
    with (folder / "run.log").open("a", encoding="utf-8") as log:
        configure(settings, "coordinator", log)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, parent))


def wait_for_lock(folder: Path) -> None:
    """Wait until the coordinator of a killed process has stored its last events in the folder.

    If another process trains under the same name, the store refuses to open after that.
    """
    deadline_s = time.monotonic() + LOCK_S
    while lock_holder(folder / LOG) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


async def serve(settings: Settings, parent: int) -> None:
    """Run the coordinator until SIGTERM, or until the process it serves has ended."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with running(settings, __version__) as coordinator:
        await end_killed(coordinator)
        announce(settings, coordinator)
        while not stopping.is_set():
            if os.getppid() != parent:
                await until_lost(coordinator)
                await deliver_spool(coordinator, Path(settings.spool_dir), parent)
                return
            try:
                async with asyncio.timeout(POLL_S):
                    await stopping.wait()
            except TimeoutError:
                continue


def announce(settings: Settings, coordinator: Running) -> None:
    """Print the addresses and the folder, and discard all later output."""
    where = {
        "address": f"{settings.grpc_host}:{coordinator.grpc_port}",
        "url": coordinator.http_url,
        "folder": settings.data_dir,
        "spool": settings.spool_dir,
    }
    print(json.dumps(where), flush=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


async def until_lost(coordinator: Running) -> None:
    """Wait until the loss of the worker is recorded."""
    state = coordinator.engine.kernel.state
    try:
        async with asyncio.timeout(LAST_EVENTS_S):
            while any(worker.alive for worker in state.workers.values()):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return


async def deliver_spool(coordinator: Running, folder: Path, pid: int) -> None:
    """Store the undelivered events of a killed process."""
    try:
        async with asyncio.timeout(LAST_EVENTS_S):
            for batch in batches_left_by(pid, folder):
                await store(coordinator, batch)
        remove_left_by(pid, folder)
    except (OSError, StrataError, TimeoutError) as error:
        log.warning("events of process %d in %s were not delivered: %s", pid, folder, error)


async def store(coordinator: Running, batch: Batch) -> None:
    """Store a batch of events, unless the process had delivered it."""
    intake = coordinator.sessions.intakes.of(batch.node, batch.incarnation)
    if not intake.take(batch):
        return
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(answer: object, refusal: StrataError | None) -> None:
        if refusal is None:
            stored.set_result(None)
        else:
            stored.set_exception(refusal)

    coordinator.engine.ingest(batch, settled)
    await stored


if __name__ == "__main__":
    main()
