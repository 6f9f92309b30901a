"""Offer this host to a coordinator: start its workers here and tell how they end."""

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from strata.agent.host import Leaving, hosting
from strata.config import Settings, load_process
from strata.errors import SettingError
from strata.launch.local import AGENTS
from strata.logsetup import configure
from strata.sdk.cards import visible_cards
from strata.wire.open_files import raise_limit

log = logging.getLogger(__name__)

OPEN_FILES = 65_536
"""Wanted for the agent, and for its workers and their data loaders, which inherit the limit."""

OWN_FILES = 64
FILES_PER_WORKER = 8
"""The pipes of a process, what watches it, and files that are open for a moment."""


def agent(
    coordinator: Annotated[
        str | None, typer.Option(help="gRPC address of the coordinator, such as HOST:50051.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Workers to run here at a time; else one per GPU or core."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of this agent, unique in the cluster; else the host name.")
    ] = "",
    token: Annotated[str | None, typer.Option(help="Bearer token of the coordinator.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder for the state of this agent and its workers.")
    ] = None,
    keep_workers: Annotated[
        bool, typer.Option(help="When the agent stops, leave its workers running for the next one.")
    ] = False,
) -> None:
    """Offer this host's slots to a coordinator until SIGTERM or Ctrl-C.

    At the end its workers are stopped gracefully. After a crash, start the agent again with the
    same name and folder: it takes over the workers that still run.
    """
    settings = load_process({"coordinator_addr": coordinator, "token": token, "data_dir": data_dir})
    if not settings.coordinator_addr:
        raise SettingError("no coordinator is named", hint="strata agent --coordinator HOST:50051")
    configure(settings, "agent")
    name = name or socket.gethostname()
    leaving: Leaving = "leave" if keep_workers else "end"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        slots = slots or len(visible_cards()) or os.cpu_count() or 1
        open_files_for(slots)
        runner.run(serve(settings, name, slots, leaving))


def open_files_for(slots: int) -> None:
    """Raise the limit of open files; say so if it stays too small for so many workers."""
    files = raise_limit(OPEN_FILES)
    workers = max(files - OWN_FILES, 0) // FILES_PER_WORKER
    if workers < slots:
        log.warning(
            "this agent may open %d files, which is enough for %d workers and not for %d slots: "
            "raise the hard limit to %d (ulimit -Hn, or LimitNOFILE= of the service)",
            *(files, workers, slots, OWN_FILES + slots * FILES_PER_WORKER),
        )


async def serve(settings: Settings, name: str, slots: int, leaving: Leaving) -> None:
    """Runs an agent until SIGTERM or Ctrl-C; a second one kills the workers."""
    stopping, folder = asyncio.Event(), Path(settings.data_dir) / AGENTS / name
    loop = asyncio.get_running_loop()
    async with hosting(settings, name, slots, folder) as host:
        host.leaving = leaving

        def told() -> None:
            if stopping.is_set():
                host.supervisor.kill_all()
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([waiting, host.linked], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if host.linked.done():
            host.linked.result()
