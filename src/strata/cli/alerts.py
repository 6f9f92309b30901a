"""List the alerts, or send a test message to every channel."""

from typing import Annotated

import typer
from rich.text import Text

from strata.cli.support import exit_codes
from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.rest_client import Api, reach
from strata.cli.support.tables import Column, Look, ago, console, duration, plain, print_json
from strata.cli.support.tables import print_list as show_list
from strata.coordinator.rest.alert_responses import AlertResponse, ChannelTested

STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}

What = Annotated[
    str,
    typer.Argument(
        metavar="[TASK|test]",
        help="Task whose alerts to list; `test` sends a test message to every channel.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Also list resolved alerts.")]


def severity(alert: AlertResponse) -> Text:
    """The severity, or that the alert is resolved."""
    if alert.status == "resolved":
        return Text("resolved", style="green")
    return Text(alert.severity, style=STYLES[alert.severity])


def note(alert: AlertResponse) -> str:
    """What the alert says, and what became of it."""
    parts = [f"{alert.id}: {alert.text}"]
    if alert.count > 1:
        parts.append(f"noticed {alert.count} times")
    if alert.resolution:
        parts.append(f"resolved: {alert.resolution}")
    if alert.failed:
        parts.append(f"not delivered: {', '.join(alert.failed)}")
    return "; ".join(parts)


def held(alert: AlertResponse, now_ms: int) -> str:
    """How long the alert has been open, or was."""
    return duration(max((alert.resolved_at or now_ms) - alert.raised_at, 0) / 1000)


LOOK = Look(
    "alerts",
    AlertResponse,
    [
        Column("alert", lambda alert, _: alert.id),
        Column("severity", lambda alert, _: severity(alert)),
        Column("rule", lambda alert, _: alert.rule),
        Column("subject", lambda alert, _: alert.subject, shrinks=True),
        Column("raised", lambda alert, now_ms: ago(alert.raised_at, now_ms)),
        Column("open for", held, "right", from_width=90),
        Column("times", lambda alert, _: str(alert.count), "right", from_width=100),
        Column("event", lambda alert, _: alert.event, from_width=110),
    ],
    empty="no alert is open; --all lists the resolved ones",
    next_command="strata alerts --all",
    note=note,
    mark=lambda alert: (
        ("✓", "green") if alert.status == "resolved" else ("!", STYLES[alert.severity])
    ),
)


def alerts(
    what: What = "",
    every: All = False,
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List open alerts, errors and warnings of the rules; or send a test message."""
    api = reach(url)
    if what == "test":
        test(api, as_json)
        return
    show_list(api, LOOK, limit, as_json, status=None if every else "open", task_id=what)


def test(api: Api, as_json: bool) -> None:
    """Send a test message to every channel and say what happened; fails if one did not take it."""
    answer = api.post("/api/alerts/test")
    found = api.decode(answer, list[ChannelTested])
    if as_json:
        print_json([answer])
    else:
        out = console()
        for each in found:
            mark, style = ("✗", "red") if each.error else ("✓", "green")
            said = each.error or "took the message"
            line = f"{each.channel} to {plain(each.target)}: {plain(said)}"
            out.print(Text.assemble((f"{mark} ", style), line), soft_wrap=True)
    if any(each.error for each in found):
        raise typer.Exit(exit_codes.FAILED)
