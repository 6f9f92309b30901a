"""Show what the workers' time was spent on, and what it cost."""

from typing import Annotated

import msgspec
import typer

from strata.cli.support import goodput_output
from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, Remote, RunName, past_of
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import console, print_json
from strata.cli.support.texts.known_ids import task_ids
from strata.config import load_process
from strata.errors import InvalidArgument, NotFound
from strata.timeline.goodput.goodput_answers import RunsGoodput
from strata.timeline.goodput.prices import Prices, parse_prices

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="[TASK]", help="Id of the task; default: the newest one.", autocompletion=task_ids
    ),
]
Price = Annotated[
    str,
    typer.Option(
        help="Price of the time: 2.49/gpu-hour, 3/worker-hour or 20/host-hour, or of one host: "
        "host-a=3/gpu-hour,2.49/gpu-hour; default: the setting `price`.",
        show_default=False,
    ),
]
Runs = Annotated[
    bool, typer.Option("--runs", help="Over all archived runs and the log: by run, week and host.")
]


def goodput(
    task: TaskId = "",
    price: Price = "",
    runs: Runs = False,
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show what the workers' time was spent on, what caused losses, and what they cost.

    Every second of every worker is in exactly one class. docs/GOODPUT.md defines the classes.
    """
    prices = parse_prices(price or (load_process({}).price if data else ""))
    if runs and (task or run):
        raise InvalidArgument("--runs counts all runs", hint="leave out the task and --run")
    out = console()
    if runs:
        across = _across(data, url, prices)
        if as_json:
            print_json([msgspec.json.encode(across)])
        else:
            goodput_output.show_runs(out, across)
        return
    past = past_of(data, run, url)
    try:
        found = past.goodput(task, prices)
    except NotFound:
        if task:
            past.curves.curves(task)  # raises if there is no such task
        raise
    if as_json:
        print_json([msgspec.json.encode(found)])
    else:
        goodput_output.show(out, found)


def _across(data: str, url: str | None, prices: Prices) -> RunsGoodput:
    if not data:
        return Remote(reach(url)).runs_goodput(prices)
    from strata.timeline.goodput.runs_goodput import RunsLedger

    return RunsLedger(load_process({}), data).goodput(None, prices)
