"""Show log lines of the coordinator and all workers.

A search is a regular expression (RE2), ignoring case; the coordinator evaluates it.

A follower prints every line once: after each connection it requests the lines between its last one
and the first one of the stream, because the stream begins with the newest few lines.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer
from msgspec import Raw
from rich.console import Console
from rich.text import Text

from strata.cli.support.event_stream import EventStream, retrying
from strata.cli.support.options import AsJson, Follow, Limit, OfTask, Url
from strata.cli.support.rest_client import PAGE_ITEMS, Api, Param, reach
from strata.cli.support.tables import (
    clock,
    console,
    plain,
    print_empty,
    print_json,
    shortened,
)
from strata.cli.support.terminal import note
from strata.cli.support.texts.known_ids import worker_ids
from strata.coordinator.logs.log_entries import Level, LogEntry, Skipped, seq_of
from strata.logsetup import printable

WHO_WIDTH = 20
BEFORE_ALL = "log_0"
STYLES = {"error": "bold red", "warn": "yellow", "info": "green", "debug": "dim"}


def logs(
    follow: Follow = False,
    level: Annotated[Level | None, typer.Option(help="Lowest level to show.")] = None,
    source: Annotated[str, typer.Option(help="Show only this source: coordinator, worker, …")] = "",
    task: OfTask = "",
    worker: Annotated[
        str, typer.Option(help="Show only lines of this worker.", autocompletion=worker_ids)
    ] = "",
    search: Annotated[
        str,
        typer.Option(
            help="Show only lines that match this regular expression (RE2), ignoring case."
        ),
    ] = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show log lines of the coordinator and all workers, oldest first; -f follows."""
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
    """Matching lines: stored ones and new ones."""

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
        """New lines after the last printed one."""
        stream = EventStream(self.api, "/api/logs/stream", self.params, self.last_id)
        fresh = True
        for event in stream:
            if event.kind == "opened":
                fresh = True
            elif event.kind == "skipped":
                skipped = self.api.decode(event.data, Skipped).count
                note(f"{skipped:,} lines skipped: the stream was too fast")
            else:
                if fresh:
                    yield from retrying(partial(self._between, self.last_id, event.id))
                fresh, self.last_id = False, event.id
                yield Raw(event.data)

    def _between(self, last_id: str, first_id: str) -> list[Raw]:
        """The lines between two ids, exclusive."""
        missed: list[Raw] = []
        for raw, line in self._backwards(first_id):
            if line.seq <= seq_of(last_id):
                break
            missed.append(raw)
        return missed[::-1]

    def _backwards(self, cursor: str = "") -> Iterator[tuple[Raw, LogEntry]]:
        """Lines before a cursor, newest first."""
        while True:
            answer = self.api.get("/api/logs", limit=PAGE_ITEMS, cursor=cursor, **self.params)
            for raw in self.api.decode(answer.body, list[Raw]):
                yield raw, self.api.decode(raw, LogEntry)
            cursor = answer.cursor
            if not cursor:
                return


def print_line(out: Console, api: Api, raw: Raw, as_json: bool) -> None:
    """Print a line: time, level, source and message; continuation lines are indented."""
    if as_json:
        print_json([raw])
        return
    line = api.decode(raw, LogEntry)
    who = shortened(line.worker_id or line.source, WHO_WIDTH)
    text = Text.assemble(
        (f"{clock(line.timestamp)} ", "dim"),
        (f"{plain(line.level).upper():5} ", STYLES.get(line.level, "none")),
        (f"{who:<12} ", "cyan"),
        printable(line.message).rstrip("\n").replace("\n", "\n    "),
    )
    out.print(text, soft_wrap=True)
