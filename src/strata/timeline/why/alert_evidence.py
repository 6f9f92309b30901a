"""Why was this alert raised: the events that showed its condition, and what ended it."""

from itertools import islice

from strata.core.alerts.alert_record import AlertRaised
from strata.core.alerts.alert_settings import RULES
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.causes import causes_of
from strata.timeline.read.sentences import shown, sized
from strata.timeline.why.investigation import Answer, LogSearch, in_order, link, lost_s

NAMED = 10
UPDATES = frozenset({"AlertRepeated", "AlertDelivered", "AlertDeliveryFailed"})


def alert(search: LogSearch, alert: str) -> Answer:
    """What showed the condition of the alert, and does it still hold?"""
    raised = search.require(
        search.last({AlertRaised.__name__}, alert=alert), f"alert {alert}; strata alerts lists them"
    )
    body = raised.event.body
    assert isinstance(body, AlertRaised)
    resolved = search.first({"AlertResolved"}, raised.at_ns, alert=alert)
    ends = [raised] if resolved is None else [raised, resolved]
    causes = [cause for end in ends for cause in causes_of(search.timeline, end)]
    chain = [*map(link, causes), *map(link, ends)]
    missing = len(raised.causes) - len(causes_of(search.timeline, raised))
    findings = [f"{name}: {_measured(name, value)}" for name, value in body.evidence.items()]
    if missing > 0:
        findings.append(f"{missing} of its {len(raised.causes)} causes are not in the log")
    updates = search.all(UPDATES, raised.at_ns, alert=alert)
    findings += [each.text for each in map(link, updates)]
    until_ns = search.extent.to_ns if resolved is None else resolved.at_ns
    why = f"{body.text}. The rule {body.rule} alerts when {RULES.get(body.rule, 'it says so')}"
    verdict: Verdict = "open" if resolved is None else "yes"
    ended = "it is open" if resolved is None else f"it was closed: {resolved.text('reason')}"
    return Answer(
        verdict=verdict,
        text=f"{why}; {ended}",
        chain=in_order(chain),
        cost=Cost(seconds=lost_s(raised.at_ns, until_ns), text="the time that the alert was open"),
        findings=findings,
    )


def alerts(search: LogSearch) -> list[str]:
    """The names of the newest alerts, in order."""
    end_ns = search.extent.to_ns + 1
    found = search.timeline.backwards(end_ns, None, kinds={AlertRaised.__name__})
    return [each.text("alert") for each in islice(found, NAMED)][::-1]


def _measured(name: str, value: float | str) -> str:
    return sized(int(value)) if name.endswith("_bytes") and value != "" else shown(value)
