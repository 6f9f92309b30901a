"""Start the coordinator: gRPC for workers, REST and the page for people."""

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
from strata.cli._console import SafeConsole
from strata.config import Settings, load_process
from strata.coordinator.http.security import is_loopback
from strata.coordinator.server import Running, running, with_token
from strata.errors import NotFound
from strata.logsetup import configure, printable

YOUNG_OBJECTS = 50_000
DAMAGE_SHOWN = 10


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
        int | None, typer.Option(help="Newest checkpoints to keep of each task.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option(help="Most workers that may be registered at a time.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="If the log is damaged, go on with what is readable.")
    ] = False,
) -> None:
    """Start the coordinator and serve until SIGTERM or Ctrl-C.

    A damaged log is refused. With --salvage what is readable of it is taken over, the damaged file
    moves to `damaged` in the data folder, and what is lost is printed and recorded.
    """
    given = locals()
    flags = {name: given[name] for name in given if name not in ("config", "salvage")}
    settings = with_token(load_process(flags, config))
    if settings.demo_mode:
        # Imported for a demo only.
        from strata.cli.demo import serve_demo

        return serve_demo(settings)
    configure(settings, "coordinator")
    if salvage:
        salvage_damage(Path(settings.data_dir))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_until_told(settings))


def salvage_damage(folder: Path) -> None:
    """Replaces a damaged log by what is readable of it; a sound one stays as it is."""
    # Imported for a salvage only.
    from strata.cli.salvage import print_report
    from strata.coordinator.salvage import damage_of, salvage_in_place

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


async def serve_until_told(settings: Settings) -> None:
    """Runs the coordinator until SIGTERM or Ctrl-C."""
    console = SafeConsole(stderr=True, markup=False)
    told = asyncio.create_task(until_told())
    async with running(settings, __version__) as coordinator:
        spare_the_collector()
        announce(console, settings, coordinator)
        ended = asyncio.create_task(coordinator.engine.ended())
        await asyncio.wait([told, ended], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        console.print("stopping", style="dim")


async def until_told() -> None:
    """Returns at SIGTERM or Ctrl-C."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()


def spare_the_collector() -> None:
    """What is there now stays: it is not searched for garbage again, and the rest less often.

    The state of a thousand workers is a million objects without cycles. Looking through them takes
    longer than releasing a barrier does, and comes in the middle of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def announce(console: Console, settings: Settings, coordinator: Running) -> None:
    """Says where the coordinator is and how to reach it."""
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
        warning = "  others can reach this address, and nothing is encrypted: "
        console.print(f"{warning}set --tls-cert and --tls-key", style="yellow", soft_wrap=True)
