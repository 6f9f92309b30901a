"""Start the coordinator with its REST API and dashboard."""

import asyncio
import gc
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.text import Text

from strata import __version__
from strata.cli.support.safe_console import SafeConsole
from strata.config import Settings, load_process
from strata.coordinator.rest.security import is_loopback
from strata.coordinator.server import Running, running, with_token
from strata.errors import NotFound
from strata.logsetup import configure, printable

YOUNG_OBJECTS = 50_000
DAMAGE_SHOWN = 10

Salvage = Annotated[
    bool,
    typer.Option("--salvage", help="If the log is damaged, continue with its readable part."),
]


def up(
    grpc_host: Annotated[
        str | None, typer.Option(help="Address that workers and agents connect to (gRPC).")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(help="Port that workers and agents connect to (gRPC).")
    ] = None,
    http_host: Annotated[
        str | None, typer.Option(help="Address of the REST API and the dashboard.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port of the REST API and the dashboard.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder for the log, checkpoints and archived runs.")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token that clients must send.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="TLS certificate, a PEM file.")] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="Private key of the TLS certificate, a PEM file.")
    ] = None,
    heartbeat_interval_s: Annotated[
        float | None, typer.Option(help="Seconds between heartbeats of a worker.")
    ] = None,
    heartbeat_timeout_s: Annotated[
        float | None,
        typer.Option(help="Seconds without a heartbeat before a worker is declared lost."),
    ] = None,
    barrier_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds before an incomplete barrier fails.")
    ] = None,
    keep_count: Annotated[
        int | None, typer.Option(help="Number of newest checkpoints to keep per task.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option(help="Maximum number of registered workers.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    salvage: Salvage = False,
) -> None:
    """Start the coordinator and serve until SIGTERM or Ctrl-C.

    With a damaged log it does not start, unless --salvage is given: then the damaged file moves to
    `damaged` in the data folder, its readable part is used, and what is lost is printed and
    recorded.
    """
    given = locals()
    flags = {name: given[name] for name in given if name not in ("config", "salvage")}
    settings = with_token(load_process(flags, config))
    if settings.demo_mode:
        # Imported here: only needed for a demo.
        from strata.cli.demo import serve_demo

        return serve_demo(settings)
    configure(settings, "coordinator")
    if salvage:
        salvage_damage(Path(settings.data_dir))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_until_signal(settings))


def salvage_damage(folder: Path) -> None:
    """Replace a damaged log with its readable part; an undamaged log is not changed."""
    # Imported here: only needed for a salvage.
    from strata.cli.salvage import print_report
    from strata.coordinator.archive.damaged_log import damage_of, salvage_in_place

    console = SafeConsole(stderr=True, markup=False)
    try:
        damage = damage_of(folder)
    except NotFound:
        return  # a new log
    if not damage:
        console.print("the log is not damaged: nothing to salvage", style="dim")
        return
    for text in damage[:DAMAGE_SHOWN]:
        console.print(f"damage: {printable(text)}", soft_wrap=True)
    print_report(console, salvage_in_place(folder))


async def serve_until_signal(settings: Settings) -> None:
    """Run the coordinator until SIGTERM or Ctrl-C."""
    console = SafeConsole(stderr=True, markup=False)
    signalled = asyncio.create_task(until_signal())
    async with running(settings, __version__) as coordinator:
        # Imported here: a coordinator in a new folder needs no agent.
        from strata.launch.local_cluster import lose_embedded_agent

        await lose_embedded_agent(coordinator, Path(settings.data_dir))
        freeze_garbage_collection()
        announce(console, settings, coordinator)
        ended = asyncio.create_task(coordinator.engine.ended())
        await asyncio.wait([signalled, ended], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        console.print("stopping", style="dim")


async def until_signal() -> None:
    """Return at SIGTERM or Ctrl-C."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()


def freeze_garbage_collection() -> None:
    """Exclude existing objects from garbage collection, and collect the rest less often.

    The state of a thousand workers is a million objects without cycles. Scanning them takes longer
    than releasing a barrier, and would happen in the middle of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def announce(console: Console, settings: Settings, coordinator: Running) -> None:
    """Print the addresses of the coordinator."""
    page = coordinator.http_url
    if settings.token and not is_loopback(settings.http_host):
        page += f"/?token={settings.token}"
    console.print(Text.assemble(("strata", "bold"), " coordinator is up"))
    lines = {
        "workers": f"{settings.grpc_host}:{coordinator.grpc_port}",
        "dashboard": page,
        "data": str(Path(settings.data_dir).resolve()),
    }
    if settings.token:
        lines["token"] = settings.token
    for name, value in lines.items():
        console.print(f"  {name:<9}  {value}", soft_wrap=True)
    if settings.token and not settings.tls_cert:
        warning = "  other hosts can reach this address, and nothing is encrypted: "
        console.print(f"{warning}set --tls-cert and --tls-key", style="yellow", soft_wrap=True)
