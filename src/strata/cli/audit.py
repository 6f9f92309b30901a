"""Prove from the record that each sample was applied exactly once per epoch."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from strata.cli._api import reach
from strata.cli._audit import Audit, show, show_tables
from strata.cli._look import console, print_json
from strata.cli._options import AsJson, Url

TaskId = Annotated[
    str, typer.Argument(metavar="TASK", help="The task, as `strata tasks` lists it.")
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="A run's data folder, instead of a coordinator that runs."),
]


def audit(task: TaskId, data: Data = None, url: Url = None, as_json: AsJson = False) -> None:
    """Prove from the record that each sample was applied exactly once per epoch.

    0: kept, or not contradicted where records are missing. 1: a sample is missing or was twice.
    """
    if data is not None:
        encoded = read(data, task)
    else:
        encoded = reach(url).get(f"/api/tasks/{task}/audit").body
    found = msgspec.json.decode(encoded, type=Audit)
    if as_json:
        print_json([encoded])
    else:
        out = console()
        show(out, found)
        show_tables(out, found)
    sys.exit(1 if found.verdict == "broken" else 0)


def read(folder: Path, task: str) -> bytes:
    """The audit of a log in a folder."""
    from strata.timeline.audit import audit as audit_log
    from strata.timeline.opening import open_timeline

    return msgspec.json.encode(audit_log(open_timeline(folder).reader, task))
