"""Had the timeout been another one, would it have happened?

The core's own watch is run again over the facts, and over the beats that workers' clock samples
prove, with other patience. What it declares then is the answer; what it cannot know is who would
have come back after the log's own decision ended its wait, except where that worker spoke again.
"""

import msgspec

from strata.core.events import COORDINATOR
from strata.core.liveness import Patience, Watch
from strata.core.losses import DeclareLosses
from strata.core.signals import Beat
from strata.core.state import Cluster
from strata.core.worker_facts import ClockSampled
from strata.core.workers import WorkerLost
from strata.errors import InvalidArgument
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, link
from strata.timeline.why.losses import the_loss
from strata.timeline.words import lasting, seconds

BEFORE_NS = 300 * SECOND_NS
SETTINGS = {
    "heartbeat": "heartbeat_timeout_s",
    "connection": "connection_grace_s",
    "absent": "reattach_grace_s",
    "hang": "hang_floor_s",
    "agent": "heartbeat_timeout_s",
}


def timeout(case: Case, worker: str, timeout_s: float, time_ms: float | None = None) -> Answer:
    """Would this worker still have been declared lost with another timeout?"""
    loss = the_loss(case, worker, time_ms)
    body = loss.event.body
    assert isinstance(body, WorkerLost)
    setting = SETTINGS.get(body.signal)
    if setting is None:
        text = f"yes: it was lost by {body.signal}, which no timeout decides"
        return Answer("yes", text, [link(loss)])
    if timeout_s <= 0:
        raise InvalidArgument(f"a timeout of {timeout_s} s makes no sense", hint="use more than 0")
    then_s = body.evidence.get("timeout_s") or getattr(Patience(), setting)
    if timeout_s <= then_s:
        text = f"yes: {timeout_s:g} s is no longer than the {then_s:g} s it was given"
        return Answer("yes", text, [link(loss)])
    if body.signal == "hang":
        return _hang(case, loss, body, timeout_s)
    return _silence(case, loss, body, setting, timeout_s)


def _silence(case: Case, loss: Record, body: WorkerLost, setting: str, timeout_s: float) -> Answer:
    rerun = _rerun if body.signal != "agent" else _with_its_host
    declared_ns = rerun(case, loss, body, setting, timeout_s)
    back = _next_word(case, loss, body)
    chain = [link(loss)] + ([link(back)] if back is not None else [])
    if declared_ns is None and back is not None:
        text = (
            f"no: with {timeout_s:g} s it would have been heard again first, "
            f"{seconds(back.at_ns - loss.at_ns)} after it was declared lost"
        )
        return Answer("no", text, chain, _saved(case, loss, body))
    if declared_ns is not None and back is not None:
        text = f"yes, {seconds(declared_ns - loss.at_ns)} later: it came back too late for that too"
        return Answer("yes", text, chain)
    exited = case.first({"WorkerExited"}, loss.at_ns - BEFORE_NS, worker=body.worker)
    if exited is not None and exited.at_ns <= loss.at_ns + SECOND_NS:
        return Answer("yes", "yes, only later: its process had ended", [link(exited), link(loss)])
    holes = case.holes(body.worker, loss.at_ns, loss.at_ns + int(timeout_s * SECOND_NS))
    if holes:
        text = f"unknown: whether it would have beaten again is not recorded: {holes[0]}"
        return Answer("unknown", text, chain)
    return Answer("yes", "yes, only later: it never spoke again", chain)


def _rerun(
    case: Case, loss: Record, body: WorkerLost, setting: str, timeout_s: float
) -> int | None:
    """When the core's watch, with other patience, declares the worker lost; None if it does not."""
    patience = msgspec.structs.replace(Patience(), **{setting: timeout_s})
    watch = Watch(patience)
    start = case.timeline.position_at(loss.at_ns - BEFORE_NS)
    state: Cluster = state_at(case.timeline, start).state
    origin_ns = loss.event.mono_ns - loss.at_ns
    watch.adopt(state, loss.at_ns - BEFORE_NS + origin_ns)
    until_ns = loss.at_ns + int(timeout_s * SECOND_NS) + SECOND_NS
    back = _next_word(case, loss, body)
    for record in case.timeline.records(loss.at_ns - BEFORE_NS, until_ns):
        now_ns = record.at_ns + origin_ns
        if back is not None and record.at_ns >= back.at_ns:
            return None
        if _declares(watch, state, body, now_ns):
            return record.at_ns
        _show(watch, record, body, now_ns)
    return until_ns if _declares(watch, state, body, until_ns + origin_ns) else None


def _with_its_host(
    case: Case, loss: Record, body: WorkerLost, setting: str, timeout_s: float
) -> int | None:
    """The same for a worker lost with its host, whose beats are not recorded: its own stand in."""
    heard = case.last({ClockSampled.__name__}, loss.at_ns, node=body.worker)
    back = _next_word(case, loss, body)
    if heard is None:
        return None
    declared_ns = heard.at_ns + int(timeout_s * SECOND_NS)
    return None if back is not None and back.at_ns <= declared_ns else declared_ns


def _declares(watch: Watch, state: Cluster, body: WorkerLost, now_ns: int) -> bool:
    """Whether the watch would declare this loss now; what else it says is decided already."""
    watch._moved.clear()
    declared = [c for c in watch.overdue(state, now_ns) if isinstance(c, DeclareLosses)]
    return any(loss.worker == body.worker for command in declared for loss in command.workers)


def _show(watch: Watch, record: Record, body: WorkerLost, now_ns: int) -> None:
    """Shows the watch what the coordinator heard, except its own conclusion in question."""
    fact = record.event.body
    if record.node == COORDINATOR:
        same = isinstance(fact, WorkerLost) and fact.worker == body.worker
        if not same or fact != body:
            watch.follow(record.event)
    elif isinstance(fact, ClockSampled):
        watch.beat(record.node, record.incarnation, Beat(), now_ns)


def _next_word(case: Case, loss: Record, body: WorkerLost) -> Record | None:
    """The first sign of the same incarnation after the loss."""
    fenced = case.first(
        {"WorkerFenced"}, loss.at_ns, worker=body.worker, incarnation=body.incarnation
    )
    own = case.first({ClockSampled.__name__}, loss.at_ns + 1, node=body.worker)
    if own is not None and own.incarnation == body.incarnation:
        return own if fenced is None or own.at_ns < fenced.at_ns else fenced
    return fenced


def _hang(case: Case, loss: Record, body: WorkerLost, timeout_s: float) -> Answer:
    """A step that never finished would have been waited for longer."""
    step = case.first({"StepFinished"}, loss.at_ns, node=body.worker)
    stuck_s = body.evidence.get("stuck_s", 0.0)
    if step is not None and step.incarnation == body.incarnation:
        took_s = stuck_s + (step.at_ns - loss.at_ns) / SECOND_NS
        verdict: Verdict = "no" if took_s < timeout_s else "yes"
        text = f"{verdict}: the step finished {took_s:.0f} s after it began"
        return Answer(verdict, text, [link(loss), link(step)])
    text = (
        f"yes, {timeout_s - stuck_s:.0f} s later: it was stuck for {stuck_s:.0f} s and nothing "
        "says that it ever moved again"
    )
    return Answer("yes", text, [link(loss)])


def _saved(case: Case, loss: Record, body: WorkerLost) -> Cost:
    again = case.first({"RecoveryChosen"}, loss.at_ns, task=body.task)
    if again is None:
        return Cost()
    spent_s = (again.at_ns - loss.at_ns) / SECOND_NS
    return Cost(spent_s, 1, f"the recovery of {lasting(spent_s)} would not have been needed")
