"""The goodput of the last seconds of a task, for the alert on it."""

from strata.core.alerts.goodput_rules import RecentGoodput
from strata.core.events import event_id
from strata.timeline.goodput.goodput_answers import LABELS
from strata.timeline.goodput.ledger import ledger
from strata.timeline.goodput.lost_time import answers
from strata.timeline.goodput.prices import Prices
from strata.timeline.goodput.task_goodput import what_if
from strata.timeline.read.records import SECOND_NS, is_fact, parse_ref
from strata.timeline.read.run_timeline import Timeline


def recent_goodput(timeline: Timeline, task: str, window_s: float) -> RecentGoodput | None:
    """The ledger of a task over its last seconds; None if its workers are younger than that."""
    until_ns = timeline.extent().to_ns
    from_ns = until_ns - round(window_s * SECOND_NS)
    found = ledger(timeline, task, since_ns=from_ns)
    if found.from_ns > from_ns or not found.total.ns:
        return None
    lost = {name: spent for name, spent in found.ordered() if name != "productive"}
    most = max(lost, key=lambda name: lost[name].ns, default=None)
    cause = next(iter(answers(found.lost, what_if(found, Prices()), most=1)), None)
    return RecentGoodput(
        task=task,
        wall_s=(found.total.ns + found.pending_ns) / SECOND_NS,
        counted_s=found.total.ns / SECOND_NS,
        productive_s=found.productive_ns / SECOND_NS,
        lost_as=LABELS[most] if most is not None else "",
        cause=cause.text if cause is not None else "",
        cause_s=cause.seconds if cause is not None else 0.0,
        ref=_cause_of(cause.ref) if cause is not None and cause.ref else "",
    )


def _cause_of(ref: str) -> str:
    """A reference as facts name their causes."""
    return ref if is_fact(ref) else event_id(*parse_ref(ref))
