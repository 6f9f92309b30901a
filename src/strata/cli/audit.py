"""Compare the samples that workers applied with the order."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer

from strata.cli import _samples
from strata.cli._api import reach
from strata.cli._audit import EXIT_CODES, Audit, show, show_tables
from strata.cli._look import console, print_json
from strata.cli._options import AsJson, Url
from strata.cli._past import Data, RunName, opened

TaskId = Annotated[
    str, typer.Argument(metavar="TASK", help="The task, as `strata tasks` lists it.")
]
Sample = Annotated[int | None, typer.Option(min=0, help="Which steps trained this sample?")]
Step = Annotated[int | None, typer.Option(min=0, help="Who trained which samples in this step?")]
Content = Annotated[bool, typer.Option("--content", help="Read the data again, here, and compare.")]
Of = Annotated[str, typer.Option("--dataset", help="Which dataset, if there are several.")]


def audit(
    task: TaskId,
    data: Data = "",
    run: RunName = "",
    sample: Sample = None,
    step: Step = None,
    content: Content = False,
    dataset: Of = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compare the samples that workers applied with the order.

    Exit code 0, proven: every worker's samples of every applied step are recorded, and they are
    those of the order. 1, broken: a sample is missing or was applied twice, or a record contradicts
    the order; with --content, a worker read other bytes than the data has. 3, unproven: a record is
    missing or damaged, or shards were leased, which count by the workers' word. Any
    other: the audit could not be made, see `strata --help`.
    """
    if sample is not None or step is not None or content:
        with _asked(data, run, url, task) as asked:
            code = _samples.tell(asked, sample, step, dataset, as_json=as_json)
        sys.exit(code)
    encoded = read(data, run, task) if data else _fetched(url, task)
    found = msgspec.json.decode(encoded, type=Audit)
    if as_json:
        print_json([encoded])
    else:
        out = console()
        show(out, found)
        show_tables(out, found)
    sys.exit(EXIT_CODES[found.verdict])


@contextmanager
def _asked(data: str, run: str, url: str | None, task: str) -> Iterator[_samples.Asked]:
    """Who answers: a log in a folder, an archived run, or the coordinator."""
    if not data:
        yield _samples.Coordinator(reach(url), task)
        return
    with opened(data, run) as timeline:
        yield _samples.Log(timeline.reader, task)


def _fetched(url: str | None, task: str) -> bytes:
    return reach(url).get(f"/api/tasks/{task}/audit").body


def read(data: str, run: str, task: str) -> bytes:
    """The audit of a log in a folder, or of an archived run."""
    from strata.timeline.audit import audit as audit_log

    with opened(data, run) as timeline:
        return msgspec.json.encode(audit_log(timeline.reader, task))
