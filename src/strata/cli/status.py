"""Show the state of the cluster."""

from collections import Counter
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import Answer, Api, reach
from strata.cli.support.tables import (
    STATES,
    ago,
    console,
    count,
    duration,
    join_command,
    plain,
    print_empty,
    print_json,
    size,
    state,
)
from strata.coordinator.rest.response_models import (
    Attention,
    BarrierResponse,
    CheckpointResponse,
    MetricsSnapshot,
    StatusResponse,
    TaskResponse,
    Totals,
)


class Overview(Struct, frozen=True):
    """What is shown of everything; lists hold their first items."""

    coordinator: StatusResponse
    totals: Totals
    metrics: MetricsSnapshot
    tasks: list[TaskResponse]
    barriers: list[BarrierResponse]
    checkpoints: list[CheckpointResponse]
    attention: list[Attention] = []


class Document(Struct, frozen=True):
    """What a script gets: the parts whose size does not depend on the cluster, as they came."""

    coordinator: Raw
    totals: Raw
    metrics: Raw
    attention: Raw = Raw(b"[]")


def status(url: Url = None, as_json: AsJson = False) -> None:
    """Show the state of the cluster: coordinator, workers, tasks, checkpoints, metrics."""
    api = reach(url)
    answer = api.get("/api/dashboard")
    if as_json:
        print_json([msgspec.json.encode(api.decode(answer.body, Document))])
    else:
        print_overview(console(), api, answer)


def print_overview(out: Console, api: Api, answer: Answer) -> None:
    """Print the overview."""
    shown = api.decode(answer.body, Overview)
    here = shown.coordinator
    out.print(
        Text.assemble(
            ("● ", "green"),
            (f"strata {plain(here.version or '')}", "bold"),
            f" is up for {duration(here.uptime or 0)} at {api.url}",
            (" (demo data)" if here.mode == "demo" else "", "yellow"),
        ),
        soft_wrap=True,
    )
    out.print(
        Text(
            f"  workers connect to {plain(here.address or '')}, "
            f"{count(here.position)} facts recorded, "
            f"coordinator start {count(here.incarnation)}, cluster {plain(here.cluster)}",
            style="dim",
        ),
        soft_wrap=True,
    )
    out.print()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in rows(shown, answer.now_ms):
        grid.add_row(name, value)
    out.print(grid)
    if shown.attention:
        out.print()
    for item in shown.attention:
        glyph, style = ("✗", "red") if item.severity == "error" else ("!", "yellow")
        out.print(Text.assemble((f"{glyph} ", style), plain(item.text)), soft_wrap=True)
        out.print(Text(f"  {plain(item.hint)}", style="dim"), soft_wrap=True)
    if not shown.totals.workers:
        out.print()
        print_empty("no worker is connected", join_command(api))


def rows(shown: Overview, now_ms: int) -> Iterator[tuple[str, Text]]:
    """The rows of the overview: name and value."""
    totals, figures = shown.totals, shown.metrics
    yield "workers", by_state(totals.workers, dict(totals.workers_by_status.items()))
    yield "tasks", by_state(totals.tasks, Counter(task.status for task in shown.tasks))
    yield "barriers", by_state(totals.barriers, Counter(each.status for each in shown.barriers))
    yield "checkpoints", Text(newest(totals.checkpoints, shown.checkpoints, now_ms))
    yield "datasets", Text(count(totals.datasets))
    yield "", Text()
    yield "requests", Text(f"{figures.coordinator_rps or 0:,.1f} /s")
    yield "barrier latency", measured(figures.barrier_latency_p99, "ms (p99)")
    yield "shard assignment", measured(figures.shard_assignment_time, "ms")
    yield "checkpoint speed", measured(figures.checkpoint_throughput, "MB/s")


def by_state(total: int, counts: dict[str, int]) -> Text:
    """The number of items by state; only the total if the list was cut."""
    if total == 0 or sum(counts.values()) != total:
        return Text(count(total))
    order = [name for name in STATES if counts.get(name)] + sorted(counts.keys() - STATES.keys())
    return Text("  ").join(state(name, counts[name]) for name in order)


def newest(total: int, checkpoints: list[CheckpointResponse], now_ms: int) -> str:
    """The number of checkpoints, and the newest completed one."""
    complete = next((each for each in checkpoints if each.status == "completed"), None)
    if complete is None:
        return count(total)
    when = ago(complete.created_at, now_ms)
    return f"{count(total)}, newest at step {count(complete.step)}, {size(complete.size)}, {when}"


def measured(figure: float | None, unit: str) -> Text:
    """A value with its unit, or a dash."""
    return Text("–", style="dim") if figure is None else Text(f"{figure:,.2f} {unit}")
