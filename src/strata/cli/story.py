"""Show all events about one worker, task, checkpoint or message."""

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.past_source import Data, RunName, past_of
from strata.cli.support.tables import console, plain, print_empty, print_json
from strata.cli.support.timeline_output import node_style, stamp
from strata.errors import NotFound

Subject = Annotated[
    str,
    typer.Argument(
        metavar="KIND:ID",
        help="KIND is worker, task, shard, checkpoint, barrier, batch, message or generation.",
    ),
]
GAP_MS = 10_000


def story(
    subject: Subject,
    limit: Limit = 200,
    cursor: Annotated[
        str, typer.Option(help="Cursor printed at the end of the previous page.")
    ] = "",
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show all events about one subject, of all nodes, in order."""
    found = past_of(data, run, url).story(subject, limit, cursor)
    if not found.entries and not cursor:
        raise NotFound(
            f"nothing is recorded about {subject}", hint="strata timeline shows what there was"
        )
    if as_json:
        print_json([msgspec.json.encode(entry) for entry in found.entries])
        return
    if not found.entries:
        print_empty(f"no events about {plain(subject)}", "strata timeline")
        return
    out = console()
    width = max(len(entry.node) for entry in found.entries)
    before_ms = found.entries[0].at_ms
    out.print(Text(f"{stamp(before_ms, dated=True)}  {plain(found.subject)}", style="bold"))
    for entry in found.entries:
        if entry.at_ms - before_ms > GAP_MS:
            out.print(Text(f"{'':12}  ⋮ {(entry.at_ms - before_ms) / 1000:.1f} s", style="dim"))
        before_ms = entry.at_ms
        text = Text.assemble(
            (f"{stamp(entry.at_ms)}  ", "dim"),
            (f"{plain(entry.node):<{width}}  ", node_style(entry.node)),
            plain(entry.text),
            (f"  {entry.ref}", "dim"),
        )
        if out.is_terminal:
            text.truncate(out.width, overflow="ellipsis")
        out.print(text, soft_wrap=True)
    if found.next:
        out.print(Text(f"more events follow: --cursor {found.next}", style="dim"))
