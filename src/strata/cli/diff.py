"""Compare two moments of a run, two runs, or a task and its fork."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, RunName, is_moment, past_of, time_in
from strata.cli.support.tables import console, plain, print_empty, print_json
from strata.cli.support.timeline_output import stamp, verdict_text, without_verdict
from strata.timeline.answers import DiffAnswer, WhyAnswer

First = Annotated[
    str, typer.Argument(metavar="A", help="A moment, the folder of a run, or a task.")
]
Second = Annotated[
    str,
    typer.Argument(metavar="B", help="Another moment, the folder of another run, or another task."),
]


def diff(
    first: First,
    second: Second,
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two moments of a run, or where two runs first differ.

    A moment is 14:03:07, end-5m, start+2h, @120, step:40 or Unix milliseconds. A task and its
    fork, or two forks of one task, are compared from the fork on.
    """
    if are_runs(first, second) or are_tasks(first, second):
        past = past_of(first, run, None) if are_runs(first, second) else past_of(data, run, url)
        task = {} if are_runs(first, second) else {"task": first}
        answer = past.why("differs", params={"other": second} | task)
        if as_json:
            print_json([msgspec.json.encode(answer)])
        else:
            print_difference(console(), answer)
        return
    past = past_of(data, run, url)
    found = past.diff(time_in(past, first), time_in(past, second))
    if as_json:
        print_json([msgspec.json.encode(change) for change in found.changes])
    else:
        print_changes(console(), found)


def are_runs(first: str, second: str) -> bool:
    """Whether the arguments name two runs: both exist, or one is a path and not a moment."""
    exist = {text: Path(text).exists() for text in (first, second)}
    return all(exist.values()) or any(
        not is_moment(text) and ("/" in text or there) for text, there in exist.items()
    )


def are_tasks(first: str, second: str) -> bool:
    """Whether the arguments may name two tasks: neither is a moment."""
    return not is_moment(first) and not is_moment(second)


def print_difference(out: Console, answer: WhyAnswer) -> None:
    """Print the parameters that differ, and the first difference."""
    out.print(Text.assemble(verdict_text(answer.verdict), "  ", without_verdict(answer)))
    for finding in answer.findings:
        out.print(Text(f"  {plain(finding)}"))
    for link in answer.chain:
        out.print(Text.assemble((f"  {stamp(link.at_ms, dated=True)}  ", "dim"), plain(link.text)))


def print_changes(out: Console, found: DiffAnswer) -> None:
    """Print the changes by subject."""
    if not found.changes:
        print_empty("there are no changes", "strata timeline")
        return
    out.print(
        Text.assemble(
            (stamp(found.a_ms, dated=True), "bold"),
            ("  →  ", "dim"),
            (stamp(found.b_ms, dated=True), "bold"),
        )
    )
    subject = ""
    for change in found.changes:
        if change.subject != subject:
            subject = change.subject
            out.print(Text(f"\n{plain(subject)}", style="cyan"))
        field = change.path.partition(".")[2].partition(".")[2] or change.path
        before, after = (_value(value) for value in (change.before, change.after))
        out.print(
            Text.assemble(f"  {plain(field)}  ", (before, "red"), (" → ", "dim"), (after, "green")),
            soft_wrap=True,
        )
    if found.truncated:
        out.print(
            Text("\nthere are more changes; choose moments that are closer together", style="dim")
        )


def _value(value: object) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = plain(text)
    return text if len(text) <= 120 else f"{text[:119]}…"
