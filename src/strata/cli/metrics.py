"""Show the metrics that a task logged, as a table or as charts."""

from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.stop import Task
from strata.cli.support.charts.terminal_chart import axis_line, chart, measured
from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, Past, RunName, past_of
from strata.cli.support.tables import console, count, plain, print_empty, print_json
from strata.timeline.curves.curve_answers import (
    Axis,
    CurveAnswer,
    CurvePoints,
    CurvesAnswer,
    PointsAnswer,
    Wanted,
)

HEIGHT = 10
CHARTS = 4
"""Charts that are drawn if no names are given."""

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Show only these; default: all.", show_default=False),
]
Plot = Annotated[bool, typer.Option("--plot", help="Draw charts; the first four without names.")]
Unit = Annotated[Axis, typer.Option("--x", help="Horizontal axis of the charts.")]


def metrics(
    task: Task,
    names: Names = None,
    plot: Plot = False,
    x: Unit = "step",
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the metrics that a task logged and what is derived from its steps.

    With --json --plot the points of the charts are printed.
    """
    past = past_of(data, run, url)
    answer = past.curves.curves(task)
    found = [each for each in answer.curves if not names or each.name in names]
    for name in names or []:
        if name not in [each.name for each in found]:
            past.curves.points(task, Wanted(names=[name]))  # raises, and lists the names
    out = console()
    if plot:
        shown = [each.name for each in found][: None if names else CHARTS]
        points = points_of(past, task, shown, x, out.width)
        if as_json:
            print_json([msgspec.json.encode(curve) for curve in points.curves])
        else:
            print_charts(out, points, found)
    elif as_json:
        print_json([msgspec.json.encode(curve) for curve in found])
    else:
        print_table(out, answer, found)


def points_of(past: Past, task: str, names: list[str], x: Axis, width: int) -> PointsAnswer:
    """The points of the charts: two for each character."""
    if not names:
        return PointsAnswer(task=task, x=x, from_=None, to=None, curves=[])
    return past.curves.points(task, Wanted(names=names, axis=x, points=min(2 * width, 1000)))


def print_table(out: Console, answer: CurvesAnswer, found: list[CurveAnswer]) -> None:
    """Print a line for each curve, and what is not recorded."""
    if not found:
        print_empty("no step and no metric is recorded", f"strata timeline --task {answer.task}")
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("metric", no_wrap=True, overflow="ellipsis")
    grid.add_column("", style="dim", no_wrap=True)
    for title in ("last", "min", "max", "points", "steps"):
        grid.add_column(title, justify="right", no_wrap=True)
    for each in found:
        grid.add_row(
            Text(plain(each.name)),
            "derived" if each.source == "derived" else "",
            measured(each.last, each.unit),
            measured(each.min, each.unit),
            measured(each.max, each.unit),
            count(each.points),
            f"{count(each.first_step)}–{count(each.last_step)}",
        )
    out.print(grid)
    for each in found:
        if each.not_finite:
            points = "point is" if each.not_finite == 1 else "points are"
            text = f"{plain(each.name)}: {count(each.not_finite)} {points} not finite"
            out.print(Text(f"✗ {text}", style="red"))
    if answer.undone_steps:
        out.print(Text(f"{count(answer.undone_steps)} undone steps are left out", style="dim"))
    for note in answer.notes:
        out.print(Text(plain(note), style="dim"), soft_wrap=True)


def print_charts(out: Console, points: PointsAnswer, found: list[CurveAnswer]) -> None:
    """Print a chart for each curve, one below the other."""
    if points.from_ is None or points.to is None:
        print_empty("no point of these metrics is recorded", f"strata metrics {points.task}")
        return
    left, right = (position(at, points) for at in (points.from_, points.to))
    known = {each.name: each for each in found}
    for curve in points.curves:
        of = known[curve.name]
        out.print(Text.assemble((plain(curve.name), "bold"), (f"  {described(curve, of)}", "dim")))
        for line in chart(curve, points.from_, points.to, out.width, HEIGHT, of.unit):
            out.print(line)
        for line in axis_line(left, right, points.x, out.width):
            out.print(line)


def described(curve: CurvePoints, of: CurveAnswer) -> str:
    """What the chart of a curve shows, and the last value of the curve."""
    parts = ["no finite value" if of.last is None else f"last {measured(of.last, of.unit)}"]
    if not curve.exact:
        parts.append("mean of several steps, with their range")
    if curve.not_finite:
        parts.append(f"{count(len(curve.not_finite))} not finite")
    return ", ".join(parts)


def position(at: float, points: PointsAnswer) -> str:
    """A position on the horizontal axis as text."""
    if points.x == "time":
        return f"{datetime.fromtimestamp(at / 1000):%H:%M:%S}"
    return count(round(at))
