"""Show the coordinator's facts in order."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import msgspec
import typer
from msgspec import Raw
from rich.console import Console
from rich.text import Text

from strata.cli.support.event_stream import EventStream
from strata.cli.support.options import AsJson, Follow, Limit, Url
from strata.cli.support.rest_client import PAGE_ITEMS, Api, Param, reach
from strata.cli.support.tables import clock, console, plain, print_empty, print_json
from strata.cli.support.terminal import note
from strata.coordinator.rest.response_models import FactResponse

FIRST_WINDOW = 1000


def events(
    position: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, help="Position of the first fact; default: the newest facts."
        ),
    ] = None,
    follow: Follow = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="Show only this kind, such as WorkerLost; repeatable.")
    ] = None,
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the coordinator's facts in order, the newest or from a position; -f follows."""
    log = Log(reach(url), ",".join(kind or []))
    out = console()
    with suppress(KeyboardInterrupt):
        end = log.end()
        shown: list[Raw] = []
        if position is None:
            shown = log.newest(end, limit)
        elif not follow:
            shown = log.span(position, end, limit)
        for raw in shown:
            print_fact(out, log.api, raw, as_json)
        if follow:
            for raw in log.follow(end if position is None else position):
                print_fact(out, log.api, raw, as_json)
        elif shown and (following := log.place(shown[-1]) + 1) < end:
            note(f"more facts: strata events --from {following}")
        elif not shown and not as_json:
            print_empty("no facts match", "strata events")


class Log:
    """The facts of a coordinator, optionally of some kinds."""

    def __init__(self, api: Api, kinds: str) -> None:
        self.api = api
        self.kinds = kinds

    def end(self) -> int:
        """The number of facts."""
        return self.api.get("/api/events", limit=1, kinds=self.kinds).total

    def place(self, raw: Raw) -> int:
        """The position of a fact."""
        return self.api.decode(raw, FactResponse).position

    def span(self, start: int, end: int, limit: int | None = None) -> list[Raw]:
        """Facts in [start, end), at most `limit`."""
        found: list[Raw] = []
        cursor: str = str(start)
        while cursor and int(cursor) < end and (limit is None or len(found) < limit):
            answer = self.api.get(
                "/api/events", position=cursor, limit=PAGE_ITEMS, kinds=self.kinds
            )
            facts = self.api.decode(answer.body, list[Raw])
            found += [raw for raw in facts if self.place(raw) < end]
            cursor = answer.cursor
        return found[:limit]

    def newest(self, end: int, limit: int) -> list[Raw]:
        """The last facts before a position, read in growing windows."""
        found: list[Raw] = []
        window = FIRST_WINDOW if self.kinds else limit
        while end > 0 and len(found) < limit:
            start = max(0, end - window)
            found = self.span(start, end) + found
            end, window = start, window * 2
        return found[-limit:]

    def follow(self, position: int) -> Iterator[Raw]:
        """Facts from a position on, as they are recorded."""
        params: dict[str, Param] = {"position": position, "kinds": self.kinds}
        for event in EventStream(self.api, "/api/stream", params):
            if event.kind == "message":
                yield Raw(event.data)


def print_fact(out: Console, api: Api, raw: Raw, as_json: bool) -> None:
    """Print a fact on one line: position, time, kind and fields, cut to the terminal."""
    if as_json:
        print_json([raw])
        return
    fact = api.decode(raw, FactResponse)
    # The task is last: nearly every fact has one, and the line may be cut.
    fields = sorted(fact.fields.items(), key=lambda each: each[0] == "task")
    text = Text.assemble(
        (f"{fact.position:>6} {clock(fact.time)} ", "dim"),
        (f"{plain(fact.kind):<20} ", "cyan"),
        " ".join(field(*each) for each in fields),
    )
    if out.is_terminal:
        text.truncate(out.width, overflow="ellipsis")
    out.print(text, soft_wrap=True)


def field(name: str, value: object) -> str:
    """A field and its value; structures are JSON."""
    shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"{plain(name)}={plain(shown)}"
