"""Show the cluster at a moment: tasks, workers, and what each worker was doing."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, Moment, Past, RunName, past_of
from strata.cli.support.tables import console, plain, print_json, state
from strata.cli.support.timeline_output import print_trust, stamp
from strata.timeline.answers import MomentAnswer, SeekAnswer

When = Annotated[
    str,
    typer.Argument(
        metavar="[MOMENT]",
        help="14:03:07, end-5m, start+2h, @120, step:40 or Unix milliseconds; default: the end.",
    ),
]
WhoseStep = Annotated[
    str, typer.Option("--task", help="Task of a step, for step:40.", show_default=False)
]
Next = Annotated[
    str, typer.Option("--next", help="Go to the next moment at which this condition holds.")
]
Previous = Annotated[
    str, typer.Option("--previous", help="Go to the previous moment at which this condition holds.")
]


def at(
    moment: When = "",
    following: Next = "",
    previous: Previous = "",
    task: WhoseStep = "",
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the cluster at a moment: tasks, workers, and what each worker was doing.

    Conditions for --next and --previous: "kind=WorkerLost", "step>100", "worker NAME not training",
    "task NAME is running".
    """
    past = past_of(data, run, url)
    span = past.span()
    found = Moment(moment).within(span) if moment else None
    if following or previous:
        direction = "next" if following else "previous"
        place = seek(past, following or previous, found, direction, task)
        answer = past.at(place.at_ms)
        note = f"{place.text}  ({place.ref})"
    else:
        answer = look(past, found, task)
        note = ""
    if as_json:
        print_json([msgspec.json.encode(answer)])
        return
    out = console()
    print_moment(out, answer, note)
    print_trust(out, span.trust)


def seek(
    past: Past, predicate: str, moment: Moment | None, direction: str, task: str
) -> SeekAnswer:
    """The nearest moment at which a condition holds, from a moment or in the whole run."""
    if moment is None or moment.time_ms is not None:
        return past.seek(predicate, None if moment is None else moment.time_ms, direction)
    position = past.at(None, moment.position, moment.step, task).as_of.position
    return past.seek(predicate, None, direction, position)


def look(past: Past, moment: Moment | None, task: str) -> MomentAnswer:
    """The state at a moment, or at the end."""
    if moment is None:
        return past.at()
    return past.at(moment.time_ms, moment.position, moment.step, task)


def print_moment(out: Console, answer: MomentAnswer, note: str) -> None:
    """Print the moment, the tasks and the workers."""
    as_of = answer.as_of
    out.print(
        Text.assemble((stamp(as_of.time_ms, dated=True), "bold"), (f"   @{as_of.position}", "cyan"))
    )
    if note:
        out.print(Text(plain(note), style="yellow"), soft_wrap=True)
    if as_of.doubt:
        out.print(Text(f"the state is known only up to here: {plain(as_of.doubt)}", style="red"))
    out.print()
    print_tasks(out, answer)
    if answer.nodes:
        print_nodes(out, answer)
    if answer.nodes_total > len(answer.nodes):
        out.print(Text(f"{len(answer.nodes)} of {answer.nodes_total:,} workers", style="dim"))
    out.print()


def print_tasks(out: Console, answer: MomentAnswer) -> None:
    """Print one line per task."""
    for each in answer.tasks[-8:]:
        out.print(
            Text.assemble(
                state(each.status),
                f"  {plain(each.id)}  ",
                (f"step {each.committed_steps:,}  generation {each.generation}  ", ""),
                (f"{each.phase}  {plain(each.reason)}", "dim"),
            ),
            soft_wrap=True,
        )


def print_nodes(out: Console, answer: MomentAnswer) -> None:
    """Print one line per worker: rank, step and activity."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("worker", "rank", "step", "doing"):
        grid.add_column(title, justify="right" if title in ("rank", "step") else "left")
    for node in answer.nodes:
        alive = node.state not in ("lost", "left")
        grid.add_row(
            Text(plain(node.id), style="" if alive else "dim"),
            str(node.rank) if node.rank >= 0 else "–",
            f"{node.step:,}" if node.step >= 0 else "–",
            Text(plain(node.doing), style="" if alive else "red"),
        )
    out.print()
    out.print(grid)
