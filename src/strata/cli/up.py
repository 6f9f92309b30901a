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
from strata.coordinator.rest.http_server import PortInUse
from strata.coordinator.server import Running, running, with_token
from strata.errors import Conflict, NotFound, NotLeading, SettingError, Unavailable
from strata.files import filesystem_of
from strata.logsetup import configure, printable

YOUNG_OBJECTS = 50_000
DAMAGE_SHOWN = 10
AWAY_S = 1.0

Salvage = Annotated[
    bool,
    typer.Option("--salvage", help="If the log is damaged, continue with its readable part."),
]

Standby = Annotated[
    bool,
    typer.Option("--standby", help="Wait while another coordinator leads, then take over."),
]

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "9p", "afs"}
)


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
    tls_client_ca: Annotated[
        str | None,
        typer.Option(
            help="Authority that must have signed the certificate of each client, a PEM file."
        ),
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
    standby: Standby = False,
) -> None:
    """Start the coordinator and serve until SIGTERM or Ctrl-C.

    With a damaged log it does not start, unless --salvage is given: then the damaged file moves to
    `damaged` in the data folder, its readable part is used, and what is lost is printed and
    recorded.

    With --standby it waits while another coordinator of the same data folder leads, answers
    questions meanwhile, and takes over when that one ends. Coordinators that share a PostgreSQL
    database (setting `store`) always do so.
    """
    given = locals()
    flags = {name: given[name] for name in given if name not in ("config", "salvage", "standby")}
    settings = load_process(flags, config)
    require_one_token(settings, standby)
    require_shared(settings, standby)
    set_token, settings = settings.token, with_token(settings)
    if settings.demo_mode:
        # Imported here: only needed for a demo.
        from strata.cli.demo import serve_demo

        return serve_demo(settings)
    configure(settings, "coordinator")
    if salvage:
        salvage_damage(Path(settings.data_dir))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        standby = standby or bool(settings.store)
        runner.run(serve_until_signal(settings, standby, shows_token=not set_token))


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


async def serve_until_signal(settings: Settings, standby: bool, shows_token: bool) -> None:
    """Run the coordinator until SIGTERM or Ctrl-C, as a standby while another one leads."""
    console = SafeConsole(stderr=True, markup=False)
    signalled = asyncio.create_task(until_signal())
    followed = False
    while not signalled.done():
        try:
            await lead(settings, console, signalled, shows_token)
        except (NotLeading, Conflict, Unavailable) as error:
            leads_another = isinstance(error, NotLeading | Conflict)
            if not standby or isinstance(error, PortInUse) or not (followed or leads_another):
                raise
            console.print(f"not leading: {error}", style="dim", soft_wrap=True)
            if not leads_another:
                await asyncio.wait([signalled], timeout=AWAY_S)
            await follow_again(settings, console, signalled)
            followed = True
    console.print("stopping", style="dim")


async def lead(
    settings: Settings, console: Console, signalled: asyncio.Task[None], shows_token: bool
) -> None:
    """Lead until the signal; raises `NotLeading` when another coordinator leads or took over."""
    async with running(settings, __version__) as coordinator:
        # Imported here: a coordinator in a new folder needs no agent.
        from strata.launch.local_cluster import lose_embedded_agent

        await lose_embedded_agent(coordinator, Path(settings.data_dir))
        freeze_garbage_collection()
        announce(console, settings, coordinator, shows_token)
        ended = asyncio.create_task(coordinator.engine.ended())
        deposed = asyncio.create_task(coordinator.until_deposed())
        await asyncio.wait([signalled, ended, deposed], return_when=asyncio.FIRST_COMPLETED)
        if deposed.done():
            raise NotLeading("another coordinator may lead: the lease of this one has ended")
        deposed.cancel()


async def follow_again(settings: Settings, console: Console, signalled: asyncio.Task[None]) -> None:
    """Follow the leader; a database that is away for a while does not end a standby."""
    while not signalled.done():
        try:
            return await stand_by(settings, console, signalled)
        except Unavailable as error:
            console.print(f"not following: {error}", style="yellow", soft_wrap=True)
            await asyncio.wait([signalled], timeout=AWAY_S)


async def stand_by(settings: Settings, console: Console, signalled: asyncio.Task[None]) -> None:
    """Follow the leader until the store has none, or until the signal."""
    # Imported here: only a standby needs it.
    from strata.coordinator.standby_server import standing_by

    async with standing_by(settings, __version__) as following:
        console.print(Text.assemble(("strata", "bold"), f" standby of {following.leader}"))
        console.print(f"  dashboard  {following.http_url}", soft_wrap=True)
        vacant = asyncio.create_task(following.until_vacant())
        ended = asyncio.create_task(following.engine.ended())
        await asyncio.wait([signalled, vacant, ended], return_when=asyncio.FIRST_COMPLETED)
        for each in (vacant, ended):
            if each.done():
                each.result()  # raises the error that ended it
            each.cancel()


def require_one_token(settings: Settings, standby: bool) -> None:
    """Refuse a coordinator that others cannot replace, because each would make its own token."""
    if (standby or settings.store) and with_token(settings) != settings:
        raise SettingError(
            "coordinators that take over from each other need the same token, and none is set",
            hint="set STRATA_TOKEN to the same value for all of them",
        )


def require_shared(settings: Settings, standby: bool) -> None:
    """Refuse a standby where it could not read what the leader writes."""
    if not standby or settings.store:
        return
    kind = filesystem_of(Path(settings.data_dir))
    if kind in NETWORK_FILESYSTEMS or kind.startswith("fuse"):
        raise SettingError(
            f"{settings.data_dir} is on {kind}: SQLite's write-ahead log cannot be shared by "
            "machines, so a standby there could read wrong facts",
            hint="share a PostgreSQL database instead: STRATA_STORE=postgresql://...",
        )


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


def announce(console: Console, settings: Settings, coordinator: Running, shows_token: bool) -> None:
    """Print the addresses of the coordinator, and its token if it was made for this start.

    A token from the settings is known, and this output may be kept in a log.
    """
    page = coordinator.http_url
    if shows_token and settings.token:
        page += f"/?token={settings.token}"
    console.print(Text.assemble(("strata", "bold"), " coordinator is up"))
    lines = {
        "workers": f"{settings.grpc_host}:{coordinator.grpc_port}",
        "dashboard": page,
        "data": str(Path(settings.data_dir).resolve()),
    }
    if settings.token:
        lines["token"] = settings.token if shows_token else "as set, not shown here"
    for name, value in lines.items():
        console.print(f"  {name:<9}  {value}", soft_wrap=True)
    if settings.token and not settings.tls_cert:
        warning = "  other hosts can reach this address, and nothing is encrypted: "
        console.print(f"{warning}set --tls-cert and --tls-key", style="yellow", soft_wrap=True)
