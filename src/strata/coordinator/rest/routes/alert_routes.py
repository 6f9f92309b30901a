"""Endpoints of alerts: list them, send a test message."""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import QueryParameter

from strata.coordinator.rest.alert_responses import AlertResponse, AlertStatus, ChannelTested
from strata.coordinator.rest.error_responses import READS, WRITES
from strata.coordinator.rest.paging import DEFAULT_LIMIT, HEADERS, Cursor, Limit, page, paged
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.views import alert_views
from strata.errors import NotAllowedNow

Status = Annotated[AlertStatus | None, QueryParameter(description="Only with this status.")]
OfTask = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]


@get("/alerts", responses=READS, response_headers=HEADERS)
async def list_alerts(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    status: Status = None,
    task_id: OfTask = "",
) -> Response[list[AlertResponse]]:
    """Alerts: open ones first, then the last resolved, each newest first."""
    async with api.engine.settled() as state:
        wanted = (
            alert
            for alert in state.alerts.values()
            if task_id in ("", alert.task)
            and status in (None, "open" if alert.open else "resolved")
        )
        found = page(wanted, alert_views.alert_order, limit, cursor)
        return paged(alert_views.alerts(found.items), found.total, found.next_cursor)


@post("/alerts/test", status_code=200, responses=WRITES)
async def test_channels(api: TheApi) -> list[ChannelTested]:
    """Send a test message to every channel, and say what each did with it."""
    if api.alerts is None or not api.alerts.names:
        raise NotAllowedNow(
            "no channel for alerts is set up",
            hint="set alert_webhook or alert_email_to and start the coordinator again",
        )
    sent = await api.alerts.test()
    return [
        ChannelTested(channel=each.channel, target=each.target, error=each.error) for each in sent
    ]
