"""Check that every sample was applied exactly once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer

from strata.cli.support import sample_output
from strata.cli.support.audit_output import EXIT_CODES, show, show_tables
from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, RunName, opened
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import console, print_json
from strata.cli.support.texts.known_ids import task_ids
from strata.timeline.audit.audit_results import Audit

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Id of the task, as listed by `strata tasks`.",
        autocompletion=task_ids,
    ),
]
Sample = Annotated[int | None, typer.Option(min=0, help="Show which steps trained this sample.")]
Step = Annotated[
    int | None, typer.Option(min=0, help="Show which worker trained which samples in this step.")
]
Content = Annotated[
    bool,
    typer.Option(
        "--content", help="Read the data on this host and compare it with the recorded checksums."
    ),
]
Of = Annotated[str, typer.Option("--dataset", help="The dataset, if the task has several.")]


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
    """Check that every sample was applied exactly once, by comparing the workers' records.

    Exit code 0, proven: every worker recorded its samples of every applied step, and they match the
    order. 1, broken: a sample is missing or was applied twice, or a record contradicts the order;
    with --content, a worker read different bytes. 3, unproven: a record is missing or damaged, or
    shards were leased, which leave no records. Other codes: the audit failed, see `strata --help`.
    """
    if sample is not None or step is not None or content:
        with _asked(data, run, url, task) as asked:
            code = sample_output.tell(asked, sample, step, dataset, as_json=as_json)
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
def _asked(data: str, run: str, url: str | None, task: str) -> Iterator[sample_output.Asked]:
    """The source of answers: a run in a folder or object storage, or the coordinator."""
    if not data:
        yield sample_output.Coordinator(reach(url), task)
        return
    with opened(data, run) as timeline:
        yield sample_output.Log(timeline.reader, task)


def _fetched(url: str | None, task: str) -> bytes:
    return reach(url).get(f"/api/tasks/{task}/audit").body


def read(data: str, run: str, task: str) -> bytes:
    """The audit of a run in a folder or object storage, as JSON."""
    from strata.timeline.audit.sample_audit import audit as audit_log

    with opened(data, run) as timeline:
        return msgspec.json.encode(audit_log(timeline.reader, task))
