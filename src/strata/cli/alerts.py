"""List open alerts, or send a test message to every channel."""

from typing import Annotated

import msgspec
import typer
from msgspec import Raw
from rich.text import Text

from strata.cli.support import exit_codes
from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.past_source import Data, RunName, opened
from strata.cli.support.rest_client import Api, Listing, reach
from strata.cli.support.tables import (
    Column,
    Look,
    ago,
    console,
    duration,
    plain,
    print_found,
    print_json,
)
from strata.cli.support.terminal import note
from strata.coordinator.rest.alert_responses import AlertResponse, ChannelTested
from strata.errors import InvalidArgument

STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}
STATUS_STYLES = {"open": "", "resolved": "green", "expired": "dim"}

What = Annotated[
    str,
    typer.Argument(
        metavar="[TASK|test]",
        help="Task whose alerts to list; `test` sends a test message to every channel.",
        show_default=False,
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="Also list alerts that have ended: resolved or expired.")
]


def severity(alert: AlertResponse) -> Text:
    """The severity; dim if the alert is resolved."""
    return Text(alert.severity, style=STYLES[alert.severity] if alert.status == "open" else "dim")


def status(alert: AlertResponse) -> str:
    """Whether the alert is open, or how it ended."""
    return "expired" if alert.expired else alert.status


def mark(alert: AlertResponse) -> tuple[str, str]:
    """The sign of the alert and its style; an expired alert has no check mark."""
    if alert.status == "open":
        return "!", STYLES[alert.severity]
    return ("–", "dim") if alert.expired else ("✓", "green")


def said(alert: AlertResponse) -> str:
    """What the alert says, and what became of it."""
    parts = [f"{alert.id}: {alert.text}"]
    if alert.count > 1:
        parts.append(f"noticed {alert.count} times")
    if alert.resolution:
        parts.append(f"{status(alert)}: {alert.resolution}")
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
        Column("status", lambda alert, _: Text(status(alert), style=STATUS_STYLES[status(alert)])),
        Column("severity", lambda alert, _: severity(alert)),
        Column("rule", lambda alert, _: alert.rule),
        Column("subject", lambda alert, _: alert.subject, shrinks=True),
        Column("raised", lambda alert, now_ms: ago(alert.raised_at, now_ms)),
        Column("open for", held, "right", from_width=90),
        Column("times", lambda alert, _: str(alert.count), "right", from_width=100),
        Column("event", lambda alert, _: alert.event, from_width=110),
    ],
    empty="no alerts are open",
    note=said,
    mark=mark,
)


def alerts(
    what: What = "",
    every: All = False,
    limit: Limit = 100,
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List open alerts, or send a test message to every channel."""
    if what == "test":
        if data or run:
            raise InvalidArgument("a recorded run sends no messages", hint="omit --data and --run")
        test(reach(url), as_json)
        return
    if run and not data:
        raise InvalidArgument("--run needs the folder of the run", hint="add --data FOLDER")

    def none() -> None:
        print_none(what, every)

    if data:
        found = recorded(data, run, what, every, limit)
        print_found(LOOK, found, as_json, none, decoded)
        return
    api = reach(url)
    if what:
        api.get(f"/api/tasks/{what}")  # raises if there is no such task
    found = api.listing("/api/alerts", limit, status=None if every else "open", task_id=what)
    print_found(LOOK, found, as_json, none, api.decode)


def recorded(data: str, run: str, task: str, every: bool, limit: int) -> Listing:
    """The alerts at the end of a recorded run."""
    # Imported here: Arrow is slow to import, and a coordinator's list does not need it.
    from strata.coordinator.rest.views import alert_views
    from strata.timeline.read.past_states import state_at
    from strata.timeline.read.recorded_tasks import require_task

    with opened(data, run) as timeline:
        if task:
            require_task(timeline, task)
        past = state_at(timeline, timeline.position)
        now_ms = timeline.extent().to_ns // 1_000_000
    if past.doubt:
        note(f"alerts after @{past.position} are missing: {past.doubt}")
    ordered = sorted(past.state.alerts.values(), key=alert_views.alert_order)
    chosen = [each for each in ordered if (every or each.open) and task in ("", each.task)]
    items = [Raw(msgspec.json.encode(each)) for each in alert_views.alerts(chosen[:limit])]
    return Listing(items, len(chosen), now_ms)


def decoded(item: Raw, kind: type[AlertResponse]) -> AlertResponse:
    """An alert from the JSON that was made of it here."""
    return msgspec.json.decode(item, type=kind)


def print_none(task: str, every: bool) -> None:
    """Print that no alert is listed."""
    of = f" of {plain(task)}" if task else ""
    if every:
        console().print(Text(f"no alerts{of} were raised"))
    else:
        text = f"no alerts{of} are open; `strata alerts --all` also lists ended ones"
        console().print(Text(text), soft_wrap=True)


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
