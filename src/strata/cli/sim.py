"""Simulate a cluster with faults, and check the invariants."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from strata.cli.support.exit_codes import FAILED
from strata.cli.support.safe_console import SafeConsole
from strata.cli.support.task_options import MinWorkers, Spares
from strata.cli.support.terminal import print_error
from strata.core.record.event_codec import CODEC
from strata.errors import InvalidArgument
from strata.sim.coordinator_checks import Broken
from strata.sim.injected_faults import FAULTS
from strata.sim.sim_report import Report, command_of, report
from strata.sim.simulation import Scenario, Simulation, steps_for
from strata.sim.virtual_time import SECOND_NS
from strata.store.sqlite import SqliteStore
from strata.timeline.archive.segmented_log import LOG

Faults = Annotated[str, typer.Option(help="Faults to inject: all, none, or comma-separated names.")]
LossPolicy = Annotated[
    Literal["continue", "replace"],
    typer.Option(help="When a worker is lost: continue with fewer, or replace it."),
]


def sim(
    seed: Annotated[int, typer.Option(help="Random seed; the same seed repeats the same run.")] = 0,
    workers: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of simulated workers.")
    ] = 8,
    hours: Annotated[float, typer.Option(min=0.01, help="Virtual hours to simulate.")] = 1.0,
    faults: Faults = "all",
    fault_every: Annotated[
        float, typer.Option(min=1, help="Mean virtual seconds between faults.")
    ] = 300.0,
    policy: LossPolicy = "replace",
    min_workers: MinWorkers = 0,
    spares: Spares = 0,
    sharded: Annotated[bool, typer.Option(help="Simulate a sharded model.")] = False,
    story: Annotated[bool, typer.Option(help="Print the simulated events.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the log, with the workers' events.")
    ] = None,
) -> None:
    """Simulate a cluster with faults under a virtual clock, and check the invariants.

    The coordinator is the real one; one seed gives one run.
    """
    if out is not None and (out / LOG).exists():
        raise InvalidArgument(f"{out} already contains a log", hint="choose a new folder")
    scenario = Scenario(
        seed=seed,
        workers=workers,
        hours=hours,
        faults=parse_faults(faults),
        fault_every_s=fault_every,
        policy=policy,
        min_workers=min_workers,
        spares=spares,
        sharded=sharded,
        steps=steps_for(workers),
        events=out is not None,
    )
    simulation = Simulation(scenario)
    broken: Broken | None = None
    try:
        simulation.run()
    except Broken as error:
        broken = error
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with SqliteStore(out / LOG, CODEC) as store:
            simulation.coordinator.disk.copy_to(store)
    console = SafeConsole(soft_wrap=True)
    if story and not as_json:
        print_story(console, simulation)
    if broken is not None:
        print_broken(console, broken, scenario, as_json)
        raise typer.Exit(FAILED)
    figures = report(simulation)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(figures)).decode())
    else:
        print_report(console, figures, scenario)


def print_broken(console: Console, broken: Broken, scenario: Scenario, as_json: bool) -> None:
    """Print the broken promise, and the command that reproduces it."""
    repeat = f"reproduce with: {command_of(scenario)}"
    if as_json:
        print_error("broken_promise", str(broken), repeat, FAILED)
        return
    console.print(f"[bold red]✗ broken promise:[/] {broken}")
    console.print(f"  {repeat}")


def parse_faults(text: str) -> tuple[str, ...]:
    """Parse the names of faults."""
    if text in ("all", "none"):
        return tuple(FAULTS) if text == "all" else ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in FAULTS:
            raise InvalidArgument(f"unknown fault {name!r}", hint=f"use {', '.join(FAULTS)}")
    return names


def print_story(console: Console, simulation: Simulation) -> None:
    """Print the simulated events with virtual times."""
    for when_ns, what, detail in simulation.story:
        seconds = when_ns / SECOND_NS
        clock = f"{int(seconds // 3600):02d}:{int(seconds // 60) % 60:02d}:{seconds % 60:06.3f}"
        colour = "yellow" if what.startswith("fault") else "cyan"
        console.print(f"[dim]{clock}[/] [{colour}]{what:<18}[/] {detail}", markup=True)


def print_report(console: Console, figures: Report, scenario: Scenario) -> None:
    """Print the results of a run without a broken promise."""
    table = Table(title=f"seed {figures.seed}: every promise held", show_header=False, min_width=60)
    table.add_column(style="bold")
    table.add_column()
    load = figures.load
    commonest = dict(list(figures.facts.items())[:5])
    state_mb, snapshot_mb = load.state_bytes / 1e6, load.snapshot_bytes / 1e6
    rows = [
        ("virtual time", f"{figures.virtual_hours:.2f} h in {figures.cpu_s:.2f} s of CPU"),
        ("tasks completed", f"{figures.tasks_completed}, {figures.steps_committed} steps"),
        ("faults", counted(figures.faults)),
        ("workers lost", counted(figures.losses)),
        ("coordinator crashes", str(figures.coordinator_crashes)),
        ("facts", f"{sum(figures.facts.values())}: {counted(commonest)}, …"),
        ("", ""),
        (f"carried with {scenario.workers} workers", f"{load.facts_per_s:,.2f} facts/s"),
        ("", f"{load.log_bytes_per_s:,.0f} bytes/s of log"),
        ("", f"{load.messages_per_s:,.1f} messages/s"),
        ("", f"{state_mb:,.2f} MB of state, {snapshot_mb:,.2f} MB a snapshot"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    console.print(f"[dim]repeat with: {command_of(scenario)}[/]")


def counted(counts: dict[str, int]) -> str:
    """Counts by name, as text."""
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"
