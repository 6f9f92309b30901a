"""Run an agent on this host: start workers for a coordinator and report their exits."""

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from msgspec import structs

from strata.agent.agent_host import AGENTS, Leaving, hosting
from strata.cli.support.options import CoordinatorAddress, Token, coordinator_settings
from strata.config import Settings
from strata.logsetup import configure
from strata.sdk.record.gpu_cards import visible_cards
from strata.wire.grpc.connection_budget import raise_limit

log = logging.getLogger(__name__)

OPEN_FILES = 65_536
"""Open-file limit for the agent; its workers and their data loaders inherit it."""

OWN_FILES = 64
FILES_PER_WORKER = 8
"""Pipes and pidfd of a worker process, and files open for a moment."""


def agent(
    coordinator: CoordinatorAddress = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Workers to run at a time; default: one per GPU, or per core."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of this agent, unique in the cluster; default: the host name.")
    ] = "",
    token: Token = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder for the state of this agent and its workers.")
    ] = None,
    keep_workers: Annotated[
        bool, typer.Option(help="Leave the workers running when the agent stops.")
    ] = False,
    self_test: Annotated[
        bool, typer.Option(help="Test this host before each task, at most 10 s.")
    ] = False,
) -> None:
    """Run workers for a coordinator on this host until SIGTERM or Ctrl-C.

    Then the workers are stopped gracefully. After a crash, start the agent again with the same
    name and folder: it takes over the workers that still run.
    """
    settings = coordinator_settings("agent", coordinator, token, data_dir)
    if self_test:
        settings = structs.replace(settings, self_test=True)
    configure(settings, "agent")
    name = name or socket.gethostname()
    leaving: Leaving = "leave" if keep_workers else "end"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        slots = slots or len(visible_cards()) or os.cpu_count() or 1
        open_files_for(slots)
        runner.run(serve(settings, name, slots, leaving))


def open_files_for(slots: int) -> None:
    """Raise the open-file limit; log a warning if it is too low for the slots."""
    files = raise_limit(OPEN_FILES)
    workers = max(files - OWN_FILES, 0) // FILES_PER_WORKER
    if workers < slots:
        log.warning(
            "the open-file limit is %d, enough for %d workers but not for %d slots: "
            "raise the hard limit to %d (ulimit -Hn, or LimitNOFILE= of the service)",
            *(files, workers, slots, OWN_FILES + slots * FILES_PER_WORKER),
        )


async def serve(settings: Settings, name: str, slots: int, leaving: Leaving) -> None:
    """Run an agent until SIGTERM or Ctrl-C; a second signal kills the workers."""
    stopping, folder = asyncio.Event(), Path(settings.data_dir) / AGENTS / name
    loop = asyncio.get_running_loop()
    async with hosting(settings, name, slots, folder) as host:
        host.leaving = leaving

        def on_signal() -> None:
            if stopping.is_set():
                host.supervisor.kill_all()
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([waiting, host.linked], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if host.linked.done():
            host.linked.result()
