"""Collect and print the stacks of a task's workers: where is each of them?"""

import time
from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from strata.cli.stop import Task
from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, Past, RunName, past_of
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import console, plain, print_json
from strata.cli.support.timeline_output import stamp
from strata.coordinator.rest.action_responses import CollectStacksResponse
from strata.core.workers.stack_reports import StackFrame, ThreadStack
from strata.errors import DeadlineExceeded, InvalidArgument, NotFound
from strata.timeline.stack_answers import StacksAnswer, WorkerStacks

LOOK_S = 0.1
LONGEST_S = 70.0
FRAMES = 12
ORIGINS = {"user": "bold", "library": "", "native": "dim"}

Last = Annotated[
    bool, typer.Option("--last", help="Print the newest recorded stacks; collect none.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Print all threads and frames, not only the main ones.")
]


def stacks(
    task: Task,
    last: Last = False,
    full: Full = False,
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Collect the stacks of a task's workers and print where each of them is.

    With --last, prints those that were collected last: before a hang was declared, or on request.
    """
    if (data or run) and not last:
        raise InvalidArgument(
            "the stacks of a recorded run cannot be collected", hint="add --last to print them"
        )
    past = past_of(data, run, url)
    found = past.stacks(task) if last else collect(past, url, task)
    if found is None:
        past.curves.curves(task)  # raises if there is no such task
        raise NotFound(
            f"no stacks of {task} are recorded",
            hint=f"collect them while the task runs: strata stacks {task}",
        )
    if as_json:
        print_json([msgspec.json.encode(found)])
    else:
        show(console(), found, full)


def collect(past: Past, url: str | None, task: str) -> StacksAnswer:
    """Request a collection, and wait until it is over."""
    api = reach(url)
    asked = api.decode(api.post(f"/api/tasks/{task}/stacks"), CollectStacksResponse)
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        found = past.stacks(task)
        if found is not None and found.ended and found.collection >= asked.collection:
            return found
        time.sleep(LOOK_S)
    raise DeadlineExceeded(
        f"the stacks of {task} were not collected within {LONGEST_S:g} s",
        hint="look at the coordinator's log; print what is recorded with --last",
    )


def show(out: Console, found: StacksAnswer, full: bool) -> None:
    """Print a collection: each rank with its place and its frames."""
    head = f"{plain(found.task_id)}: stacks of {stamp(found.at_ms, dated=True)}"
    out.print(Text.assemble((head, "bold"), f"  {plain(found.reason)}"), soft_wrap=True)
    for worker in found.workers:
        out.print()
        show_worker(out, worker, full)
    if found.left_out:
        out.print(f"{found.left_out} more workers were not asked")


def show_worker(out: Console, worker: WorkerStacks, full: bool) -> None:
    """Print one worker."""
    rank = f"rank {worker.rank}" if worker.rank >= 0 else "no rank"
    parts: list[str | tuple[str, str]] = [(f"{rank} ", "bold cyan"), (plain(worker.worker_id), "")]
    parts.append((f"  {plain(worker.place) or 'not recorded'}", "bold"))
    exchange = worker.exchange
    if exchange is not None and exchange.pending:
        parts.append((f"  waits in {plain(exchange.kind)} {exchange.number:,}", "yellow"))
    for each in worker.waits_for:
        parts.append((f"  waits for {plain(each)}", "yellow"))
    out.print(Text.assemble(*parts, (f"  ({worker.source})", "dim")), soft_wrap=True)
    for note in worker.notes:
        out.print(Text(f"  {plain(note)}", style="dim"), soft_wrap=True)
    for process in worker.processes:
        state = f", {plain(process.state)}" if process.state else ""
        title = f"  process {process.pid} {plain(process.program)}{state}"
        out.print(Text(title, style="dim"), soft_wrap=True)
        for thread in chosen(process.threads, full):
            show_thread(out, thread, full)


def chosen(threads: Iterable[ThreadStack], full: bool) -> list[ThreadStack]:
    """The main thread and those that run the user's script, unless all are wanted."""
    return [
        each
        for each in threads
        if full or each.main or any(frame.origin == "user" for frame in each.frames)
    ]


def show_thread(out: Console, thread: ThreadStack, full: bool) -> None:
    """Print the frames of a thread, innermost first."""
    name = "main thread" if thread.main else f"thread {plain(thread.name) or 'unnamed'}"
    out.print(Text(f"    {name}", style="cyan"), soft_wrap=True)
    frames = thread.frames if full else thread.frames[:FRAMES]
    for frame in frames:
        out.print(Text(f"      {line_of(frame)}", style=ORIGINS[frame.origin]), soft_wrap=True)
    hidden = thread.cut + len(thread.frames) - len(frames)
    if hidden:
        out.print(Text(f"      and {hidden} more calls", style="dim"))


def line_of(frame: StackFrame) -> str:
    """One call in one line."""
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return f"{plain(frame.function)}  {plain(where)}".rstrip()
