"""Views of alerts: open ones first, then the resolved ones, each newest first."""

from collections.abc import Iterable
from itertools import islice

from strata.coordinator.rest.alert_responses import AlertResponse
from strata.coordinator.rest.paging import Key
from strata.core.state import Alert, Cluster
from strata.timeline.read.records import ref_of_cause

RESOLVED_SHOWN = 20


def alert_order(alert: Alert) -> Key:
    """Sort key: open alerts first, each part newest first."""
    return (
        (0 if alert.open else 1),
        f"{2**63 - (alert.resolved_ns or alert.raised_ns):020}",
        alert.id,
    )


def shown_alerts(state: Cluster, limit: int) -> list[Alert]:
    """The alerts on the dashboard: the open ones and the last resolved."""
    ordered = sorted(state.alerts.values(), key=alert_order)
    opened = [alert for alert in ordered if alert.open]
    resolved = islice((alert for alert in ordered if not alert.open), RESOLVED_SHOWN)
    return [*opened, *resolved][:limit]


def alerts(shown: Iterable[Alert]) -> list[AlertResponse]:
    """Alerts as responses."""
    return [
        AlertResponse(
            id=alert.id,
            status="open" if alert.open else "resolved",
            rule=alert.rule,
            severity=alert.severity,
            subject=alert.subject,
            text=alert.text,
            task_id=alert.task,
            worker_id=alert.worker,
            evidence=alert.evidence,
            event=f"@{alert.position}",
            causes=[*map(ref_of_cause, alert.causes)],
            count=alert.count,
            raised_at=alert.raised_ns // 1_000_000,
            last_at=alert.last_ns // 1_000_000,
            resolved_at=alert.resolved_ns // 1_000_000 or None,
            resolution=alert.resolution,
            channels=alert.channels,
            pending=alert.pending,
            failed=alert.failed,
            expired=alert.expired,
        )
        for alert in shown
    ]
