"""Would the worker have been declared lost with a different timeout?

The coordinator's liveness rules are replayed over the facts, and over the heartbeats that the
workers' clock samples prove, with the recorded timeouts, one of them changed. Whether a worker
would have sent a heartbeat after it was declared lost is unknown, unless the same incarnation sent
something later.
"""

import msgspec
from msgspec import Struct

from strata.core.cluster import CoordinatorStarted
from strata.core.events import COORDINATOR
from strata.core.rule_settings import Timeouts
from strata.core.state import Cluster
from strata.core.workers.declared_losses import DeclareLosses
from strata.core.workers.heartbeats import Beat
from strata.core.workers.liveness import Watch
from strata.core.workers.worker_facts import ClockSampled
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.errors import InvalidArgument
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import lasting, seconds
from strata.timeline.why.investigation import Answer, LogSearch, link
from strata.timeline.why.worker_losses import exit_text, the_loss

BEFORE_NS = 300 * SECOND_NS
SETTINGS = {
    "heartbeat": "heartbeat_timeout_s",
    "connection": "connection_grace_s",
    "absent": "reattach_grace_s",
    "hang": "hang_floor_s",
    "agent": "heartbeat_timeout_s",
}


def timeout(
    search: LogSearch, worker: str, timeout_s: float, time_ms: float | None = None
) -> Answer:
    """Would this worker also have been declared lost with a different timeout?"""
    if timeout_s <= 0:
        raise InvalidArgument(f"timeout_s is {timeout_s:g}", hint="use more than 0 seconds")
    loss = the_loss(search, worker, time_ms)
    body = loss.event.body
    assert isinstance(body, WorkerLost)
    setting = SETTINGS.get(body.signal)
    if setting is None:
        text = f"yes: the loss did not depend on a timeout: {body.reason}"
        return Answer(verdict="yes", text=text, chain=[link(loss)])
    rules = search.timeouts_at(loss.at_ns)
    then_s = body.evidence.get("timeout_s")
    if then_s is None and rules is not None:
        then_s = getattr(rules, setting)
    if then_s is not None and timeout_s <= then_s:
        text = f"yes: {setting} was {then_s:g} s, and {timeout_s:g} s is not longer"
        return Answer(verdict="yes", text=text, chain=[link(loss)])
    if body.signal == "hang":
        return _hang(search, loss, body, timeout_s)
    if rules is None or then_s is None:
        text = f"unknown: the timeouts of this run, such as {setting}, are not recorded in its log"
        return Answer(verdict="unknown", text=text, chain=[link(loss)])
    return _heartbeat_timeout(
        search,
        loss,
        body,
        _Changed(setting=setting, then_s=then_s, timeout_s=timeout_s, rules=rules),
    )


def _heartbeat_timeout(
    search: LogSearch, loss: Record, body: WorkerLost, changed: "_Changed"
) -> Answer:
    timeout_s = changed.timeout_s
    rerun = _rerun if body.signal != "agent" else _with_its_host
    declared_ns = rerun(search, loss, body, changed)
    back = _next_message(search, loss, body)
    chain = [link(loss)] + ([link(back)] if back is not None else [])
    if declared_ns is None and back is not None:
        text = (
            f"no: with {changed.setting} {timeout_s:g} s instead of {changed.then_s:g} s its next "
            f"message would have been in time: it came {seconds(back.at_ns - loss.at_ns)} after it "
            "was declared lost"
        )
        return Answer(verdict="no", text=text, chain=chain, cost=_saved(search, loss, body))
    if declared_ns is not None and back is not None:
        later = seconds(declared_ns - loss.at_ns)
        again = seconds(back.at_ns - loss.at_ns)
        text = f"yes, {later} later: its next message came {again} after it was declared lost"
        return Answer(verdict="yes", text=text, chain=chain)
    exited = search.exit_of(body.worker, body.incarnation)
    if exited is not None and exited.at_ns <= loss.at_ns + SECOND_NS:
        text = f"yes, only later: {exit_text(exited)}"
        return Answer(verdict="yes", text=text, chain=[link(exited, exit_text(exited)), link(loss)])
    if exited is not None:
        after = seconds(exited.at_ns - loss.at_ns)
        text = f"{exit_text(exited)} {after} after it was declared lost, without another message"
        return Answer(
            verdict="unknown",
            text=f"unknown: {text}",
            chain=[link(loss), link(exited, exit_text(exited))],
        )
    holes = search.holes(body.worker, loss.at_ns, loss.at_ns + int(timeout_s * SECOND_NS))
    if holes:
        text = f"unknown: whether it would have sent another message: {holes[0]}"
        return Answer(verdict="unknown", text=text, chain=chain)
    return Answer(verdict="yes", text="yes, only later: it never sent another message", chain=chain)


class _Changed(Struct, frozen=True):
    """The changed setting with its old and new value, and all recorded timeouts."""

    setting: str
    then_s: float
    timeout_s: float
    rules: Timeouts

    @property
    def timeouts(self) -> Timeouts:
        """All timeouts, with the changed value."""
        return msgspec.structs.replace(self.rules, **{self.setting: self.timeout_s})


def _rerun(search: LogSearch, loss: Record, body: WorkerLost, changed: _Changed) -> int | None:
    """When the liveness rules declare the worker lost with the changed timeout; None if never."""
    watch = Watch(changed.timeouts)
    started = search.last({CoordinatorStarted.__name__}, loss.at_ns, loss.at_ns - BEFORE_NS)
    start_ns = started.at_ns if started is not None else loss.at_ns - BEFORE_NS
    state: Cluster = state_at(search.timeline, search.timeline.position_at(start_ns)).state
    origin_ns = loss.event.mono_ns - loss.at_ns
    watch.adopt(state, start_ns + origin_ns)
    until_ns = loss.at_ns + int(changed.timeout_s * SECOND_NS) + SECOND_NS
    broken_ns = loss.at_ns - int(changed.then_s * SECOND_NS)
    back = _next_message(search, loss, body)
    for record in search.timeline.records(start_ns + 1, until_ns):
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


def _with_its_host(
    search: LogSearch, loss: Record, body: WorkerLost, changed: _Changed
) -> int | None:
    """The same for a worker that was lost with its host. The agent's heartbeats are not recorded,
    so the worker's are used."""
    heard = search.last({ClockSampled.__name__}, loss.at_ns, node=body.worker)
    back = _next_message(search, loss, body)
    if heard is None:
        return None
    declared_ns = heard.at_ns + int(changed.timeout_s * SECOND_NS)
    return None if back is not None and back.at_ns <= declared_ns else declared_ns


def _declares(watch: Watch, state: Cluster, body: WorkerLost, now_ns: int) -> bool:
    """Whether the rules would declare this loss now; other decisions are ignored."""
    watch._moved.clear()
    declared = [c for c in watch.overdue(state, now_ns) if isinstance(c, DeclareLosses)]
    return any(loss.worker == body.worker for command in declared for loss in command.workers)


def _show(watch: Watch, record: Record, body: WorkerLost, now_ns: int) -> None:
    """Feed a record to the rules, without the loss in question."""
    fact = record.event.body
    if record.node == COORDINATOR:
        same = isinstance(fact, WorkerLost) and fact.worker == body.worker
        if not same or fact != body:
            watch.follow(record.event)
    elif isinstance(fact, ClockSampled):
        watch.beat(record.node, record.incarnation, Beat(), now_ns)


def _next_message(search: LogSearch, loss: Record, body: WorkerLost) -> Record | None:
    """The first message or event of the same incarnation after the loss, if any."""
    fenced = search.first(
        {"WorkerFenced"}, loss.at_ns, worker=body.worker, incarnation=body.incarnation
    )
    own = search.first({ClockSampled.__name__}, loss.at_ns + 1, node=body.worker)
    if own is not None and own.incarnation == body.incarnation:
        return own if fenced is None or own.at_ns < fenced.at_ns else fenced
    return fenced


def _hang(search: LogSearch, loss: Record, body: WorkerLost, timeout_s: float) -> Answer:
    """The answer for a hang: a longer timeout waits longer for the step."""
    step = search.first({"StepFinished"}, loss.at_ns, node=body.worker)
    stuck_s = body.evidence.get("stuck_s", 0.0)
    if step is not None and step.incarnation == body.incarnation:
        took_s = stuck_s + (step.at_ns - loss.at_ns) / SECOND_NS
        verdict: Verdict = "no" if took_s < timeout_s else "yes"
        text = f"{verdict}: the step finished {took_s:.0f} s after it began"
        return Answer(verdict=verdict, text=text, chain=[link(loss), link(step)])
    text = (
        f"yes, {timeout_s - stuck_s:.0f} s later: its step had not ended after {stuck_s:.0f} s, "
        "and no later step of it is recorded"
    )
    return Answer(verdict="yes", text=text, chain=[link(loss)])


def _saved(search: LogSearch, loss: Record, body: WorkerLost) -> Cost:
    again = search.first({"RecoveryChosen"}, loss.at_ns, task=body.task)
    if again is None:
        return Cost()
    spent_s = (again.at_ns - loss.at_ns) / SECOND_NS
    return Cost(spent_s, 1, f"the recovery of {lasting(spent_s)} would not have been needed")
