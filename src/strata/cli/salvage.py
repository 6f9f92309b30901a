"""Copy the readable part of a damaged data folder to a new folder."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from strata.cli.support.options import AsJson
from strata.cli.support.tables import clock, console, count, plain, print_json
from strata.coordinator.archive.damaged_log import LostFacts, Report, damage_of, salvage_to

Folder = Annotated[
    Path, typer.Argument(metavar="DATA_DIR", help="Data folder of a stopped coordinator.")
]
To = Annotated[
    Path | None,
    typer.Option("--to", help="Folder to create; default: DATA_DIR-salvaged."),
]
SHOWN = 10


def salvage(data_dir: Folder, to: To = None, as_json: AsJson = False) -> None:
    """Copy the readable part of a damaged data folder to a new folder, and list what is lost.

    The damaged folder is not changed. Then start the coordinator with --data-dir on the new folder:
    tasks continue from the newest checkpoint in the readable part of the log. Ids that the lost
    part may have assigned are not used again.
    """
    found = damage_of(data_dir) if data_dir.is_dir() else []
    report = salvage_to(data_dir, to or data_dir.with_name(f"{data_dir.name}-salvaged"))
    if as_json:
        print_json([msgspec.json.encode(report)])
        return
    out = console()
    for text in found[:SHOWN]:
        out.print(Text(f"damage: {plain(text)}"), soft_wrap=True)
    if not found:
        out.print(
            Text("the log is not damaged; it was copied unchanged, and a salvage was recorded")
        )
    print_report(out, report)
    folder = plain(str(Path(report.log).parent))
    out.print(Text(f"next: strata up --data-dir {folder}", style="bold"), soft_wrap=True)


def print_report(out: Console, report: Report) -> None:
    """Print what was salvaged and what is lost."""
    for line in described(report):
        out.print(Text(line), soft_wrap=True)


def described(report: Report) -> list[str]:
    """Sentences on what was salvaged and what is lost."""
    lines = [
        f"salvaged {count(report.facts)} facts and {count(report.batches)} batches of workers' "
        f"events into {plain(report.log)}",
        f"the damaged log is kept as {plain(report.damaged)}",
    ]
    lines += [_lost(each) for each in report.lost[:SHOWN]]
    if len(report.lost) > SHOWN:
        lines.append(f"lost: and {len(report.lost) - SHOWN} more ranges (--json lists all)")
    if not report.lost:
        lines.append("lost: no fact of the coordinator")
    if not report.certain:
        lines.append("lost: maybe more facts at the end; the file with their number is missing")
    if report.lost_batches is None:
        lines.append("lost: an unknown number of batches of workers' events")
    elif report.lost_batches:
        lines.append(f"lost: {count(report.lost_batches)} batches of workers' events")
    lines += [
        f"missing: events {each.first} to {each.stop - 1} of {plain(each.worker)}, incarnation "
        f"{each.incarnation}"
        for each in report.lost_events[:SHOWN]
    ]
    if len(report.lost_events) > SHOWN:
        more = len(report.lost_events) - SHOWN
        lines.append(f"missing: and {more} more ranges of workers' events (--json lists all)")
    if report.unfolded:
        named = ", ".join(f"@{first} to @{stop - 1}" for first, stop in report.unfolded[:SHOWN])
        lines.append(f"readable, but not in the state, because facts before them are lost: {named}")
    lines.append(f"the state continues from the first {count(report.base)} facts")
    return lines


def _lost(lost: LostFacts) -> str:
    what = f"lost: facts @{lost.first} to @{lost.stop - 1}"
    if lost.from_ms is not None and lost.to_ms is not None:
        what += f", recorded between {clock(lost.from_ms)} and {clock(lost.to_ms)}"
    elif lost.from_ms is not None:
        what += f", recorded after {clock(lost.from_ms)}"
    elif lost.to_ms is not None:
        what += f", recorded before {clock(lost.to_ms)}"
    return what + (f", among them {plain(', '.join(lost.kinds))}" if lost.kinds else "")
