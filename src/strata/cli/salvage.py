"""Copy what is readable of a damaged data folder to a new one."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from strata.cli._look import clock, console, count, plain, print_json
from strata.cli._options import AsJson
from strata.coordinator.salvage import LostFacts, Report, damage_of, salvage_to

Folder = Annotated[
    Path, typer.Argument(metavar="DATA_DIR", help="The data folder of a stopped coordinator.")
]
To = Annotated[
    Path | None,
    typer.Option("--to", help="Folder to create; else DATA_DIR with -salvaged added."),
]
SHOWN = 10


def salvage(data_dir: Folder, to: To = None, as_json: AsJson = False) -> None:
    """Copy what is readable of a damaged data folder to a new one, and list what is lost.

    The damaged folder is not changed. Start a coordinator with --data-dir on the new folder: tasks
    go on from the newest checkpoint that the readable part of the log names. Numbers that the lost
    part may have given out are not used again.
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
        out.print(Text("the log is not damaged; it was copied as it is, and a salvage is recorded"))
    print_report(out, report)
    folder = plain(str(Path(report.log).parent))
    out.print(Text(f"next: strata up --data-dir {folder}", style="bold"), soft_wrap=True)


def print_report(out: Console, report: Report) -> None:
    """What was salvaged and what is lost."""
    for line in described(report):
        out.print(Text(line), soft_wrap=True)


def described(report: Report) -> list[str]:
    """What was salvaged and what is lost, in sentences."""
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
        lines.append(
            "lost: more facts may be missing at the end; the file that counts them is gone"
        )
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
        lines.append(
            f"readable, but not part of the state, since facts before them are lost: {named}"
        )
    lines.append(f"the state goes on from the first {count(report.base)} facts")
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
