"""Show log lines of the coordinator and all workers; -f follows them.

A search is a regular expression (as RE2 has them), whatever the case; the coordinator looks for it.

A follower sees every line once: after each connection the lines between the last one it has and
the first one the stream brings are asked for, since the stream begins with the newest few.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal

import typer
from msgspec import Raw, Struct
from rich.console import Console
from rich.text import Text

from strata.cli._api import PAGE_ITEMS, Api, Param, reach
from strata.cli._look import clock, console, plain, print_empty, print_json, shortened
from strata.cli._options import AsJson, Follow, Limit, OfTask, Url
from strata.cli._stream import Stream, patiently
from strata.cli._terminal import note
from strata.logsetup import printable

WHO_WIDTH = 20
BEFORE_ALL = "log_0"
STYLES = {"error": "bold red", "warn": "yellow", "info": "green", "debug": "dim"}

Level = Literal["debug", "info", "warn", "error"]


class Line(Struct, frozen=True):
    """What is shown of a line."""

    id: str
    timestamp: int
    level: str
    message: str
    source: str
    worker_id: str = ""


class Skipped(Struct, frozen=True):
    """Lines that the stream passed over because we were too slow."""

    count: int


def logs(
    follow: Follow = False,
    level: Annotated[Level | None, typer.Option(help="Least severe level to show.")] = None,
    source: Annotated[
        str, typer.Option(help="Only lines of this source: coordinator, worker, …")
    ] = "",
    task: OfTask = "",
    worker: Annotated[str, typer.Option(help="Only of this worker.")] = "",
    search: Annotated[
        str,
        typer.Option(help="Only lines that match this regular expression (RE2), ignoring case."),
    ] = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show log lines of the coordinator and all workers, oldest first; -f follows them."""
    filters: dict[str, Param] = {
        "level": level,
        "source": source,
        "task_id": task,
        "worker_id": worker,
    }
    history = History(reach(url), filters, search)
    out = console()
    with suppress(KeyboardInterrupt):
        found = history.newest(limit)
        for raw in found:
            print_line(out, history.api, raw, as_json)
        if follow:
            for raw in history.follow():
                print_line(out, history.api, raw, as_json)
        elif not found and not as_json:
            print_empty("no log lines match", "strata logs -f")


class History:
    """The lines that are wanted: those that are there, and those that come."""

    def __init__(self, api: Api, filters: dict[str, Param], search: str) -> None:
        self.api = api
        pattern = f"(?i){search}" if search else ""
        self.params = filters | {"search": pattern, "regex": "true" if search else None}
        self.last_id = BEFORE_ALL

    def newest(self, limit: int) -> list[Raw]:
        """The newest lines that match, oldest first."""
        found: list[Raw] = []
        for raw, line in self._backwards():
            if self.last_id == BEFORE_ALL:
                self.last_id = line.id
            found.append(raw)
            if len(found) == limit:
                break
        return found[::-1]

    def follow(self) -> Iterator[Raw]:
        """Lines as they come after those that were seen."""
        stream = Stream(self.api, "/api/logs/stream", self.params, self.last_id)
        fresh = True
        for event in stream:
            if event.kind == "opened":
                fresh = True
            elif event.kind == "skipped":
                skipped = self.api.decode(event.data, Skipped).count
                note(f"{skipped:,} lines were skipped: they came too fast")
            else:
                if fresh:
                    yield from patiently(partial(self._between, self.last_id, event.id))
                fresh, self.last_id = False, event.id
                yield Raw(event.data)

    def _between(self, last_id: str, first_id: str) -> list[Raw]:
        """The lines after one that was seen and before one that came."""
        missed: list[Raw] = []
        for raw, line in self._backwards(first_id):
            if number(line.id) <= number(last_id):
                break
            missed.append(raw)
        return missed[::-1]

    def _backwards(self, cursor: str = "") -> Iterator[tuple[Raw, Line]]:
        """Lines before a place, newest first."""
        while True:
            answer = self.api.get("/api/logs", limit=PAGE_ITEMS, cursor=cursor, **self.params)
            for raw in self.api.decode(answer.body, list[Raw]):
                yield raw, self.api.decode(raw, Line)
            cursor = answer.cursor
            if not cursor:
                return


def number(line_id: str) -> int:
    """Where a line stands among the others."""
    return int(line_id.removeprefix("log_"), 16)


def print_line(out: Console, api: Api, raw: Raw, as_json: bool) -> None:
    """One line: time, level, who, message; further lines of a message are indented."""
    if as_json:
        print_json([raw])
        return
    line = api.decode(raw, Line)
    who = shortened(line.worker_id or line.source, WHO_WIDTH)
    text = Text.assemble(
        (f"{clock(line.timestamp)} ", "dim"),
        (f"{plain(line.level).upper():5} ", STYLES.get(line.level, "none")),
        (f"{who:<12} ", "cyan"),
        printable(line.message).rstrip("\n").replace("\n", "\n    "),
    )
    out.print(text, soft_wrap=True)
