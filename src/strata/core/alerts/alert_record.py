"""The record of alerts: raised, noticed again, resolved, and what became of their messages.

The rules (`core/alerts/alert_watch`) find conditions that begin and end; the rule here decides what
that means for the recorded alerts. There is at most one open alert for a rule and a subject: a
condition that is found again only raises its count. A condition that ends resolves its alert.

The number of open alerts is limited; the alert that reaches the limit records that. Of the resolved
ones the state keeps the newest, first those with pending messages; the log has all of them. An
alert that is no longer kept while its message is pending gets a recorded failure.

A channel gets a message when an alert is raised and another when it is resolved, but not when it
expires. The outcome of each is recorded once, so after a restart exactly the messages without an
outcome are sent.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

from msgspec import Struct, field

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.limits import LimitHit, shortened
from strata.core.state import Alert, AlertMoment, AlertSeverity, Cluster

MAX_OPEN = 1_000
MAX_RESOLVED = 200
MAX_CAUSES = 8
MAX_EVIDENCE = 16


class Finding(Struct, frozen=True, kw_only=True):
    """A condition that holds. `evidence` has what was measured and the thresholds in force;
    `causes` are the events that show it; `count` is how often it was noticed since it was last
    recorded."""

    rule: str
    subject: str
    severity: AlertSeverity
    text: str
    evidence: dict[str, float | str] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    task: str = ""
    worker: str = ""
    count: int = 1


class Ending(Struct, frozen=True, kw_only=True):
    """A condition that no longer holds, and why. An `expired` one may still hold, but its alert is
    closed because of its age."""

    rule: str
    subject: str
    reason: str
    causes: tuple[str, ...] = ()
    expired: bool = False


Change: TypeAlias = Finding | Ending


class AlertRaised(Fact, frozen=True, kw_only=True):
    """A rule found a condition that a person should know of; its causes are the evidence.

    `evidence` has what was measured and the thresholds in force. `subject` is `task:ID`,
    `worker:ID`, `host:NAME` or `log`. `channels` are to get a message.
    """

    sentence = "{alert} was raised, {severity}: {text}"
    lane_mark = True

    alert: str
    rule: str
    severity: AlertSeverity
    subject: str
    text: str
    task: str = ""
    worker: str = ""
    evidence: dict[str, float | str] = field(default_factory=dict)
    channels: list[str] = field(default_factory=list)


class AlertRepeated(Fact, frozen=True, kw_only=True):
    """The condition of an open alert was noticed again, `count` times so far."""

    sentence = "{alert} was noticed {count:time} so far: {text}"

    alert: str
    rule: str
    subject: str
    text: str
    count: int
    task: str = ""
    worker: str = ""
    evidence: dict[str, float | str] = field(default_factory=dict)


class AlertResolved(Fact, frozen=True, kw_only=True):
    """An alert was closed, for this reason: its condition ended, or it `expired`: it is no longer
    shown, although nothing proves that its condition ended."""

    sentence = "{alert} ({rule}) was closed[: {reason}]"
    lane_mark = True

    alert: str
    rule: str
    subject: str
    reason: str
    task: str = ""
    worker: str = ""
    expired: bool = False


class AlertDelivered(Fact, frozen=True, kw_only=True):
    """A channel took the message about an alert, at the last of `attempts`."""

    sentence = "sent to {channel} in {attempts:attempt}: {alert} was {moment}"

    alert: str
    channel: str
    moment: AlertMoment
    attempts: int
    task: str = ""


class AlertDeliveryFailed(Fact, frozen=True, kw_only=True):
    """A message about an alert was given up after `attempts`."""

    sentence = (
        "could not send to {channel} that {alert} was {moment}[, {attempts:attempt}][: {reason}]"
    )

    alert: str
    channel: str
    moment: AlertMoment
    attempts: int
    reason: str
    task: str = ""


class RecordAlerts(Command, frozen=True):
    """Record conditions that began or ended. `channels` get messages, by severity."""

    changes: tuple[Change, ...]
    channels: dict[AlertSeverity, list[str]] = field(default_factory=dict)


class NoteDelivery(Command, frozen=True):
    """Record what became of a message; `error` is empty if the channel took it."""

    alert: str
    channel: str
    moment: AlertMoment
    attempts: int
    error: str = ""


def find_open(state: Cluster, rule: str, subject: str) -> Alert | None:
    """The open alert of a rule about a subject."""
    return next(
        (
            alert
            for alert in state.alerts.values()
            if alert.open and (alert.rule, alert.subject) == (rule, subject)
        ),
        None,
    )


@applies(AlertRaised)
def _raised(state: Cluster, fact: AlertRaised, event: Event) -> None:
    state.last_alert += 1
    state.alerts[fact.alert] = Alert(
        id=fact.alert,
        rule=fact.rule,
        severity=fact.severity,
        subject=fact.subject,
        text=fact.text,
        raised_ns=event.wall_ns,
        position=event.seq,
        task=fact.task,
        worker=fact.worker,
        evidence=fact.evidence,
        causes=list(event.cause),
        last_ns=event.wall_ns,
        channels=fact.channels,
        pending=list(fact.channels),
    )


@applies(AlertRepeated)
def _repeated(state: Cluster, fact: AlertRepeated, event: Event) -> None:
    alert = state.alerts[fact.alert]
    alert.count = fact.count
    alert.text = fact.text
    alert.evidence = fact.evidence
    alert.last_ns = event.wall_ns


@applies(AlertResolved)
def _resolved(state: Cluster, fact: AlertResolved, event: Event) -> None:
    # Put last, so that resolved alerts are in the order in which they were resolved.
    alert = state.alerts[fact.alert] = state.alerts.pop(fact.alert)
    alert.resolved_ns = event.wall_ns
    alert.resolution = fact.reason
    alert.expired = fact.expired
    if not fact.expired:
        alert.pending = list(alert.channels)
    resolved = [each for each in state.alerts.values() if not each.open]
    resolved.sort(key=lambda each: bool(each.pending))
    for surplus in resolved[: max(len(resolved) - MAX_RESOLVED, 0)]:
        del state.alerts[surplus.id]


@applies(AlertDelivered)
def _delivered(state: Cluster, fact: AlertDelivered, event: Event) -> None:
    _no_longer_pending(state, fact.alert, fact.channel, fact.moment)


@applies(AlertDeliveryFailed)
def _delivery_failed(state: Cluster, fact: AlertDeliveryFailed, event: Event) -> None:
    alert = _no_longer_pending(state, fact.alert, fact.channel, fact.moment)
    if alert is not None and fact.channel not in alert.failed:
        alert.failed.append(fact.channel)


def _no_longer_pending(
    state: Cluster, alert_id: str, channel: str, moment: AlertMoment
) -> Alert | None:
    alert = state.alerts.get(alert_id)
    if alert is not None and alert.moment == moment and channel in alert.pending:
        alert.pending.remove(channel)
    return alert


@decides(RecordAlerts)
def record_alerts(d: Decision, c: RecordAlerts) -> None:
    """Raise, repeat and resolve alerts, so that each rule and subject has at most one open one."""
    for change in c.changes:
        known = find_open(d.state, change.rule, change.subject)
        if isinstance(change, Ending):
            if known is not None:
                _resolve(d, known, change)
        elif known is not None:
            _repeat(d, known, change)
        else:
            _raise(d, change, c.channels.get(change.severity, ()))


def _evidence(found: Finding) -> dict[str, float | str]:
    """The evidence as it is recorded: its numbers are floats."""
    first = islice(found.evidence.items(), MAX_EVIDENCE)
    return {name: value if isinstance(value, str) else float(value) for name, value in first}


def _raise(d: Decision, found: Finding, channels: Sequence[str]) -> None:
    opened = sum(alert.open for alert in d.state.alerts.values())
    if opened >= MAX_OPEN:
        return
    raised = AlertRaised(
        alert=f"alert-{d.state.last_alert + 1}",
        rule=found.rule,
        severity=found.severity,
        subject=found.subject,
        text=shortened(found.text),
        task=found.task,
        worker=found.worker,
        evidence=_evidence(found),
        channels=list(channels),
    )
    cause = d.record(raised, found.causes[:MAX_CAUSES])
    if opened + 1 == MAX_OPEN:
        reason = "further alerts are not raised until some are resolved"
        d.record(LimitHit(limit="open alerts", value=MAX_OPEN, reason=reason), cause)


def _repeat(d: Decision, known: Alert, found: Finding) -> None:
    d.record(
        AlertRepeated(
            alert=known.id,
            rule=known.rule,
            subject=known.subject,
            text=shortened(found.text),
            count=known.count + found.count,
            task=known.task,
            worker=known.worker,
            evidence=_evidence(found),
        ),
        found.causes[:MAX_CAUSES],
    )


def _resolve(d: Decision, known: Alert, ending: Ending) -> None:
    resolved = [alert for alert in d.state.alerts.values() if not alert.open]
    if len(resolved) >= MAX_RESOLVED and all(alert.pending for alert in resolved):
        reason = f"the messages of {len(resolved)} newer alerts are pending"
        for channel in list(resolved[0].pending):
            _record_failure(d, resolved[0], channel, attempts=0, reason=reason)
    d.record(
        AlertResolved(
            alert=known.id,
            rule=known.rule,
            subject=known.subject,
            reason=shortened(ending.reason),
            task=known.task,
            worker=known.worker,
            expired=ending.expired,
        ),
        ending.causes[:MAX_CAUSES],
    )


@decides(NoteDelivery)
def note_delivery(d: Decision, c: NoteDelivery) -> None:
    """Record the outcome of a message, unless it is recorded or the alert is no longer kept."""
    alert = d.state.alerts.get(c.alert)
    if alert is None or alert.moment != c.moment or c.channel not in alert.pending:
        return
    cause = (f"@{alert.position}",)
    if not c.error:
        d.record(
            AlertDelivered(
                alert=alert.id,
                channel=c.channel,
                moment=c.moment,
                attempts=c.attempts,
                task=alert.task,
            ),
            cause,
        )
        return
    _record_failure(d, alert, c.channel, attempts=c.attempts, reason=c.error)


def _record_failure(d: Decision, alert: Alert, channel: str, *, attempts: int, reason: str) -> None:
    d.record(
        AlertDeliveryFailed(
            alert=alert.id,
            channel=channel,
            moment=alert.moment,
            attempts=attempts,
            reason=shortened(reason),
            task=alert.task,
        ),
        f"@{alert.position}",
    )
