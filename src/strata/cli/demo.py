"""Serve the dashboard over a simulated cluster with faults."""

import asyncio
from typing import Annotated

import msgspec
import typer
import uvloop

from strata import __version__
from strata.cli.support.safe_console import SafeConsole
from strata.cli.up import until_signal
from strata.config import Settings, load_process
from strata.logsetup import configure


def demo(
    http_port: Annotated[
        int | None, typer.Option(help="Port of the REST API and the dashboard.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed repeats the same run.")] = 7,
    workers: Annotated[
        int, typer.Option(min=2, max=2_000, help="Number of simulated workers.")
    ] = 24,
) -> None:
    """Serve the dashboard over a simulated cluster until SIGTERM or Ctrl-C. Needs no GPU."""
    settings = load_process({"http_port": http_port})
    serve_demo(settings, seed, workers)


def serve_demo(settings: Settings, seed: int = 7, workers: int = 24) -> None:
    """Serve a demo on loopback until SIGTERM or Ctrl-C."""
    configure(settings, "demo")
    local = msgspec.structs.replace(settings, http_host="127.0.0.1", token="")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(local, seed, workers))


async def _serve(settings: Settings, seed: int, workers: int) -> None:
    console = SafeConsole(stderr=True)
    console.print(f"[bold]strata[/] demo: simulating a cluster of {workers} workers")

    # Imported here: a coordinator does not need the simulator.
    from strata.sim.demo_cluster import demonstrating

    def show(share: float) -> None:
        console.print(f"  {share:.0%} simulated", style="dim")

    async with demonstrating(settings, __version__, seed, workers, show) as url:
        console.print("[bold]strata[/] demo is up: a simulated cluster; all figures are simulated")
        console.print(f"  dashboard  {url}", soft_wrap=True)
        await until_signal()
        console.print("stopping", style="dim")
