"""Show a run over time: event counts, worker activity, key events."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from strata.cli.support.options import AsJson, Limit, OfTask, Url
from strata.cli.support.past_source import (
    Data,
    From,
    Past,
    RunName,
    To,
    past_of,
    time_in,
)
from strata.cli.support.tables import console, plain, print_empty, print_json, shortened
from strata.cli.support.timeline_output import lane_bar, legend, print_trust, sparkline, stamp
from strata.timeline.answers import SpanAnswer

TURNING = (
    "TaskStateChanged,WorkerLost,GenerationChanged,RecoveryChosen,RolledBack,BarrierFailed,"
    "CheckpointFailed,CoordinatorStarted,AgentLost"
)
NAME_WIDTH = 18
COARSE = (
    "too many events for exact lanes: only the states that the coordinator recorded are drawn, "
    "where waiting counts as train; choose a shorter span with --from and --to"
)

Kind = Annotated[
    str,
    typer.Option(help="Show events of these kinds, comma-separated, instead of the key events."),
]


def timeline(
    start: From = "",
    end: To = "",
    task: OfTask = "",
    kind: Kind = "",
    limit: Limit = 20,
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a run over time: event counts, worker activity and key events.

    A moment is 14:03:07, end-5m, start+2h, @120, step:40 or Unix milliseconds.
    """
    past = past_of(data, run, url)
    span = past.span()
    from_ms = time_in(past, start, task) if start else span.from_ms
    to_ms = time_in(past, end, task) if end else span.to_ms + 0.001
    if as_json:
        events, _ = past.events(from_ms, to_ms, kind=kind or TURNING, task=task, limit=limit)
        print_json([msgspec.json.encode(span), *(msgspec.json.encode(each) for each in events)])
        return
    out = console()
    print_head(out, span, from_ms, to_ms)
    print_density(out, past, from_ms, to_ms, task)
    print_lanes(out, past, from_ms, to_ms, task, limit)
    print_events(out, past, from_ms, to_ms, kind or TURNING, task, limit)


def print_head(out: Console, span: SpanAnswer, from_ms: float, to_ms: float) -> None:
    """Print the window and the number of recorded events."""
    recorded = f"{span.facts:,} facts, {span.worker_events:,} events of {span.nodes_total - 1:,}"
    first, last = stamp(from_ms, dated=True), stamp(to_ms, dated=True)
    out.print(Text.assemble((first, "bold"), ("  →  ", "dim"), (last, "bold")))
    out.print(Text(f"{recorded} workers", style="dim"))
    print_trust(out, span.trust)


def print_density(out: Console, past: Past, from_ms: float, to_ms: float, task: str) -> None:
    """Print event counts as a bar chart, and marks for losses, recoveries and checkpoints."""
    width = max(min(out.width - NAME_WIDTH - 2, 160), 20)
    found = past.density(from_ms, to_ms, width, task).buckets
    line = sparkline([bucket.facts + bucket.events for bucket in found])
    marks = Text()
    for bucket in found:
        if bucket.losses:
            marks.append("✗", style="red")
        elif bucket.recoveries:
            marks.append("↻", style="magenta")
        elif bucket.checkpoints:
            marks.append("◆", style="cyan")
        else:
            marks.append(" ")
    out.print()
    out.print(Text.assemble((f"{'events':<{NAME_WIDTH}}  ", "dim"), (line, "blue")))
    if marks.plain.strip():
        out.print(Text.assemble((" " * (NAME_WIDTH + 2), ""), marks))


def print_lanes(
    out: Console, past: Past, from_ms: float, to_ms: float, task: str, limit: int
) -> None:
    """Print a bar per worker."""
    width = max(min(out.width - NAME_WIDTH - 2, 160), 20)
    found = past.lanes(from_ms, to_ms, task, min(limit, 200))
    for lane in found.lanes:
        name = f"{shortened(lane.node, NAME_WIDTH):<{NAME_WIDTH}}  "
        out.print(Text.assemble((name, ""), lane_bar(lane, from_ms, to_ms, width)))
    if found.lanes:
        out.print(legend(found.lanes))
        if not found.fine:
            out.print(Text(COARSE, style="yellow"))
    if found.truncated:
        out.print(Text("  more workers: raise --limit", style="dim"))


def print_events(
    out: Console, past: Past, from_ms: float, to_ms: float, kind: str, task: str, limit: int
) -> None:
    """Print the key events, one line each."""
    events, more = past.events(from_ms, to_ms, kind=kind, task=task, limit=limit)
    out.print()
    if not events:
        print_empty("no such events in this window", "strata timeline")
    for event in events:
        text = Text.assemble(
            (f"{stamp(event.at_ms)}  ", "dim"),
            (f"{event.ref:<10} ", "cyan"),
            plain(event.summary),
        )
        if out.is_terminal:
            text.truncate(out.width, overflow="ellipsis")
        out.print(text, soft_wrap=True)
    if more:
        out.print(Text(f"more events follow: --from {events[-1].at_ms:.3f}", style="dim"))
