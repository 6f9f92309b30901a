"""Would the worker have been declared lost with a different timeout?

The coordinator's own liveness rules are run again over the facts, and over the heartbeats that the
workers' clock samples prove, with the timeouts that the coordinator recorded at its start and one
of them changed. What cannot be known is whether a worker would have sent a heartbeat after the
coordinator had given it up, except where the same incarnation was heard again.
"""

import msgspec
from msgspec import Struct

from strata.core.cluster import CoordinatorStarted
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
from strata.timeline.why.losses import exit_text, the_loss
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
    if timeout_s <= 0:
        raise InvalidArgument(f"timeout_s is {timeout_s:g}", hint="give more than 0 seconds")
    loss = the_loss(case, worker, time_ms)
    body = loss.event.body
    assert isinstance(body, WorkerLost)
    setting = SETTINGS.get(body.signal)
    if setting is None:
        text = f"yes: no timeout was involved: {body.reason}"
        return Answer("yes", text, [link(loss)])
    rules = case.timeouts_at(loss.at_ns)
    then_s = body.evidence.get("timeout_s")
    if then_s is None and rules is not None:
        then_s = getattr(rules, setting)
    if then_s is not None and timeout_s <= then_s:
        text = f"yes: {setting} was {then_s:g} s, and {timeout_s:g} s is not longer"
        return Answer("yes", text, [link(loss)])
    if body.signal == "hang":
        return _hang(case, loss, body, timeout_s)
    if rules is None or then_s is None:
        text = f"unknown: the timeouts of this run, such as {setting}, are not recorded in its log"
        return Answer("unknown", text, [link(loss)])
    return _silence(case, loss, body, _Changed(setting, then_s, timeout_s, rules))


def _silence(case: Case, loss: Record, body: WorkerLost, changed: "_Changed") -> Answer:
    timeout_s = changed.timeout_s
    rerun = _rerun if body.signal != "agent" else _with_its_host
    declared_ns = rerun(case, loss, body, changed)
    back = _next_word(case, loss, body)
    chain = [link(loss)] + ([link(back)] if back is not None else [])
    if declared_ns is None and back is not None:
        text = (
            f"no: with {changed.setting} {timeout_s:g} s instead of {changed.then_s:g} s it would "
            f"have been heard in time: it was heard again {seconds(back.at_ns - loss.at_ns)} after "
            "it was declared lost"
        )
        return Answer("no", text, chain, _saved(case, loss, body))
    if declared_ns is not None and back is not None:
        later = seconds(declared_ns - loss.at_ns)
        again = seconds(back.at_ns - loss.at_ns)
        text = f"yes, {later} later: it was heard again only {again} after it was declared lost"
        return Answer("yes", text, chain)
    exited = case.exit_of(body.worker, body.incarnation)
    if exited is not None and exited.at_ns <= loss.at_ns + SECOND_NS:
        text = f"yes, only later: {exit_text(exited)}"
        return Answer("yes", text, [link(exited, exit_text(exited)), link(loss)])
    if exited is not None:
        after = seconds(exited.at_ns - loss.at_ns)
        text = f"{exit_text(exited)} {after} after it was declared lost, before it was heard again"
        return Answer("unknown", f"unknown: {text}", [link(loss), link(exited, exit_text(exited))])
    holes = case.holes(body.worker, loss.at_ns, loss.at_ns + int(timeout_s * SECOND_NS))
    if holes:
        text = f"unknown: nothing says whether it would have been heard again: {holes[0]}"
        return Answer("unknown", text, chain)
    return Answer("yes", "yes, only later: it was never heard again", chain)


class _Changed(Struct, frozen=True):
    """The setting that is changed, from what to what, and the timeouts that were in force."""

    setting: str
    then_s: float
    timeout_s: float
    rules: Patience

    @property
    def timeouts(self) -> Patience:
        """All timeouts, with the changed one."""
        return msgspec.structs.replace(self.rules, **{self.setting: self.timeout_s})


def _rerun(case: Case, loss: Record, body: WorkerLost, changed: _Changed) -> int | None:
    """When the liveness rules declare the worker lost with the changed timeout; None if never."""
    watch = Watch(changed.timeouts)
    started = case.last({CoordinatorStarted.__name__}, loss.at_ns, loss.at_ns - BEFORE_NS)
    start_ns = started.at_ns if started is not None else loss.at_ns - BEFORE_NS
    state: Cluster = state_at(case.timeline, case.timeline.position_at(start_ns)).state
    origin_ns = loss.event.mono_ns - loss.at_ns
    watch.adopt(state, start_ns + origin_ns)
    until_ns = loss.at_ns + int(changed.timeout_s * SECOND_NS) + SECOND_NS
    broken_ns = loss.at_ns - int(changed.then_s * SECOND_NS)
    back = _next_word(case, loss, body)
    for record in case.timeline.records(start_ns + 1, until_ns):
        now_ns = record.at_ns + origin_ns
        if back is not None and record.at_ns >= back.at_ns:
            return None
        if body.signal == "connection" and broken_ns <= record.at_ns:
            watch.disconnected(body.worker, body.incarnation, broken_ns + origin_ns)
            broken_ns = until_ns
        if _declares(watch, state, body, now_ns):
            return record.at_ns
        _show(watch, record, body, now_ns)
    return until_ns if _declares(watch, state, body, until_ns + origin_ns) else None


def _with_its_host(case: Case, loss: Record, body: WorkerLost, changed: _Changed) -> int | None:
    """The same for a worker lost with its host. The agent's heartbeats are not recorded, so those
    of the worker are used."""
    heard = case.last({ClockSampled.__name__}, loss.at_ns, node=body.worker)
    back = _next_word(case, loss, body)
    if heard is None:
        return None
    declared_ns = heard.at_ns + int(changed.timeout_s * SECOND_NS)
    return None if back is not None and back.at_ns <= declared_ns else declared_ns


def _declares(watch: Watch, state: Cluster, body: WorkerLost, now_ns: int) -> bool:
    """Whether the watch would declare this loss now; what else it says is decided already."""
    watch._moved.clear()
    declared = [c for c in watch.overdue(state, now_ns) if isinstance(c, DeclareLosses)]
    return any(loss.worker == body.worker for command in declared for loss in command.workers)


def _show(watch: Watch, record: Record, body: WorkerLost, now_ns: int) -> None:
    """Gives the watch what the coordinator heard, without the loss that is in question."""
    fact = record.event.body
    if record.node == COORDINATOR:
        same = isinstance(fact, WorkerLost) and fact.worker == body.worker
        if not same or fact != body:
            watch.follow(record.event)
    elif isinstance(fact, ClockSampled):
        watch.beat(record.node, record.incarnation, Beat(), now_ns)


def _next_word(case: Case, loss: Record, body: WorkerLost) -> Record | None:
    """The first message or event of the same incarnation after the loss."""
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
        f"yes, {timeout_s - stuck_s:.0f} s later: its step had not ended after {stuck_s:.0f} s, "
        "and no later step of it is recorded"
    )
    return Answer("yes", text, [link(loss)])


def _saved(case: Case, loss: Record, body: WorkerLost) -> Cost:
    again = case.first({"RecoveryChosen"}, loss.at_ns, task=body.task)
    if again is None:
        return Cost()
    spent_s = (again.at_ns - loss.at_ns) / SECOND_NS
    return Cost(spent_s, 1, f"the recovery of {lasting(spent_s)} would not have been needed")
