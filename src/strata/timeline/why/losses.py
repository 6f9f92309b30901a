"""Why was this worker declared lost, and was it really dead? What was open on it when it died?

Three things tell a dead worker from a live one: its agent saw the process end; the worker was heard
again after it was declared lost (and fenced); its own events go on, or stop. Whether its whole host
was out of reach tells a partition from a process that was stopped.

An exit belongs to the incarnation that ran in that start of the worker (`Case.exit_of`): in a
restart loop each loss has its own.
"""

from strata.core.agents import WorkerExited, how_it_ended
from strata.core.workers import WorkerLost
from strata.timeline.operations import Pairing
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, Link, link, lost_s
from strata.timeline.words import counted, lasting, seconds, sentence

AROUND_NS = 120 * SECOND_NS
AFTER_NS = 3_600 * SECOND_NS
OPEN_NS = 900 * SECOND_NS
SILENCES = ("connection", "heartbeat")
"""Signals of a loss that a host out of reach gives; one whose agent saw an exit was in reach."""


SIGNALS = {
    "exit": "its process ended",
    "connection": "its connection broke",
    "heartbeat": "its heartbeats stopped",
    "hang": "its steps stopped",
    "agent": "its host was lost",
    "absent": "it did not reconnect after the coordinator's restart",
}
"""What made the coordinator declare a worker lost, by the signal in the fact."""


def the_loss(
    case: Case, worker: str, time_ms: float | None = None, incarnation: int | None = None
) -> Record:
    """The loss that a question is about: the last one before a moment that fits the names."""
    until_ns = case.until(time_ms)
    found = case.last({WorkerLost.__name__}, until_ns, worker=worker, incarnation=incarnation)
    named = f"loss of worker {worker}" if worker else "loss of a worker"
    if incarnation is not None:
        named = f"{named}, incarnation {incarnation}"
    return case.require(found, named)


def _declared(body: WorkerLost) -> str:
    """That a worker was declared lost, and why."""
    return f"it was declared lost because {SIGNALS[body.signal]} ({body.reason})"


def lost(
    case: Case, worker: str = "", time_ms: float | None = None, incarnation: int | None = None
) -> Answer:
    """Was it really dead: crash or lost host; or alive: hang, partition, standstill?"""
    loss = the_loss(case, worker, time_ms, incarnation)
    body = loss.event.body
    assert isinstance(body, WorkerLost)
    chain = case.ancestry(loss)
    cost = _cost(case, loss, body)
    told = _declared(body)
    if body.signal == "hang":
        return Answer("no", f"no, it hung: {told}", [*_last_step(case, loss, body), *chain], cost)
    exited = case.exit_of(body.worker, body.incarnation)
    alive = _sign_of_life(case, loss, body)
    # A connection breaks as the process ends; whoever ends after a long silence was ended for it.
    late_ns = 0 if body.signal == "heartbeat" else SECOND_NS
    if body.signal == "exit" and not _seen_first(exited, loss):
        return _gave_up(body, exited, chain, cost)
    if exited is not None and exited.at_ns <= loss.at_ns + late_ns:
        text = f"yes, it crashed: {exit_text(exited)}"
        text += "" if body.signal == "exit" else f"; {told}"
        return Answer("yes", text, _ordered([*chain, link(exited, exit_text(exited))]), cost)
    if alive is not None or exited is not None:
        return _alive(case, loss, body, alive or exited, chain, cost)
    host = _host_lost(case, loss, body)
    if host is not None:
        text = f"yes, its host went: {sentence(host)}; {told}"
        return Answer("yes", text, _ordered([*chain, link(host)]), cost)
    return _unseen(case, loss, body, chain, cost)


def _seen_first(exited: Record | None, loss: Record) -> bool:
    """Whether the agent saw the process end before it was declared lost."""
    return exited is not None and exited.event.seq < loss.event.seq


def _gave_up(body: WorkerLost, exited: Record | None, chain: list[Link], cost: Cost) -> Answer:
    """The worker itself said that its script failed."""
    text = f"yes, its script failed: {body.reason}"
    if exited is not None:
        text = f"{text}; {exit_text(exited)}"
        chain = _ordered([*chain, link(exited, exit_text(exited))])
    return Answer("yes", text, chain, cost)


def _unseen(case: Case, loss: Record, body: WorkerLost, chain: list[Link], cost: Cost) -> Answer:
    """No agent saw its process end, and it was not heard again."""
    told = _declared(body)
    holes = case.holes(body.worker, loss.at_ns - AROUND_NS, loss.at_ns + AROUND_NS)
    if loss.at_ns + AROUND_NS > case.extent.to_ns:
        left = seconds(case.extent.to_ns - loss.at_ns)
        text = f"open: {told}; the log ends {left} later, so it may still come back"
        return Answer("open", text, chain, cost)
    why = holes[0] if holes else "no agent saw its process end, and it was not heard again"
    return Answer("unknown", f"unknown: {told}; {why}", chain, cost)


def _alive(
    case: Case,
    loss: Record,
    body: WorkerLost,
    alive: Record | None,
    chain: list[Link],
    cost: Cost,
) -> Answer:
    """It was heard again, or its process ended only later: why were there no heartbeats?"""
    assert alive is not None
    after = seconds(alive.at_ns - loss.at_ns)
    silent = _host_silent(case, loss, body)
    worked = _worked_meanwhile(case, loss, body)
    if silent is not None:
        kind = f"a partition: its host was out of reach as a whole ({sentence(silent)})"
    elif worked is not None:
        kind = "a partition: it went on training while nothing of it reached the coordinator"
    elif body.signal == "connection":
        kind = "a false alarm: only its connection broke"
    else:
        kind = "a standstill: its process was stopped or starved of CPU; its host was reachable"
    sign = "its process was ended" if alive.kind == "WorkerExited" else "it was heard again"
    chain = [*chain, link(alive, f"{sign} {after} after it was declared lost")]
    if worked is not None:
        chain.append(link(worked))
    text = f"no, {kind}; {sign} {after} later"
    return Answer("no", text, _ordered(chain), cost)


def exit_text(exited: Record) -> str:
    """How a process ended, in words."""
    body = exited.event.body
    assert isinstance(body, WorkerExited)
    return f"the process of {body.worker} ended with {how_it_ended(body.code, body.signal)}"


def _sign_of_life(case: Case, loss: Record, body: WorkerLost) -> Record | None:
    """A message or event of the same incarnation after it was declared lost."""
    fenced = case.first(
        {"WorkerFenced"}, loss.at_ns, worker=body.worker, incarnation=body.incarnation
    )
    stop_ns = loss.at_ns + AFTER_NS
    for record in case.timeline.records(loss.at_ns + 1, stop_ns, node=body.worker):
        if record.incarnation == body.incarnation:
            return record if fenced is None or record.at_ns < fenced.at_ns else fenced
        break
    return fenced


def _worked_meanwhile(case: Case, loss: Record, body: WorkerLost) -> Record | None:
    """A step that it finished while it was thought silent."""
    silence = body.evidence.get("silence_s", 0.0)
    since_ns = loss.at_ns - int(silence * SECOND_NS) + SECOND_NS
    found = case.first({"StepFinished", "TrainingFinished"}, since_ns, loss.at_ns, body.worker)
    return found if found is not None and found.incarnation == body.incarnation else None


def _host_silent(case: Case, loss: Record, body: WorkerLost) -> Record | None:
    """Another silence on the same host at about the same time."""
    host = case.host_of(body.worker, loss.at_ns)
    near = case.all({"WorkerLost", "AgentLost"}, loss.at_ns - AROUND_NS, loss.at_ns + AROUND_NS)
    for other in near:
        if other.kind == "AgentLost":
            agent = case.last({"AgentRegistered"}, other.at_ns, agent=other.text("agent"))
            there = agent.text("hostname") if agent is not None else ""
        elif other.text("worker") == body.worker or other.text("signal") not in SILENCES:
            continue
        else:
            there = case.host_of(other.text("worker"), other.at_ns)
        if there and there == host and other.key != loss.key:
            return other
    return None


def _host_lost(case: Case, loss: Record, body: WorkerLost) -> Record | None:
    found = _host_silent(case, loss, body)
    return found if found is not None and found.kind == "AgentLost" else None


def _last_step(case: Case, loss: Record, body: WorkerLost) -> list[Link]:
    step = case.last({"StepFinished"}, loss.at_ns, loss.at_ns - OPEN_NS, body.worker)
    return [link(step, f"its last step: {sentence(step)}")] if step is not None else []


def _cost(case: Case, loss: Record, body: WorkerLost) -> Cost:
    """From the loss until the task trained again, for everyone in it."""
    again = case.first({"RecoveryChosen"}, loss.at_ns, task=body.task)
    changed = case.first({"GenerationChanged"}, loss.at_ns, task=body.task)
    rolled = case.first(
        {"RolledBack"}, loss.at_ns, again.at_ns + 1 if again else None, task=body.task
    )
    silence_s = body.evidence.get("silence_s") or body.evidence.get("stuck_s") or 0.0
    if again is None:
        return Cost(silence_s, 1, "the task did not train again")
    stopped_s = lost_s(loss.at_ns, again.at_ns)
    size = changed.get("world_size") if changed else None
    workers = size if isinstance(size, int) and size else 1
    noticed = f"{lasting(silence_s)} until it was noticed" if silence_s else "noticed at once"
    text = f"{noticed}, {lasting(stopped_s)} until training went on"
    if rolled is not None:
        origin, to = rolled.get("origin"), rolled.get("to")
        if isinstance(origin, int) and isinstance(to, int):
            text += f", {counted(origin - to, 'step')} to train again"
    return Cost((silence_s + stopped_s) * workers, workers, text)


def _ordered(chain: list[Link]) -> list[Link]:
    seen = {each.record.key: each for each in chain}
    return sorted(seen.values(), key=lambda each: each.record.key)


def unfinished(case: Case, worker: str = "", time_ms: float | None = None) -> Answer:
    """What was open on a node when it died, by its own events?"""
    loss = the_loss(case, worker, time_ms)
    worker, incarnation = loss.text("worker"), loss.get("incarnation")
    pairing = Pairing()
    last: Record | None = None
    for record in case.timeline.records(loss.at_ns - OPEN_NS, loss.at_ns + 1, node=worker):
        if record.incarnation == incarnation:
            pairing.feed(record)
            last = record
    holes = case.holes(worker, last.at_ns if last else loss.at_ns, loss.at_ns)
    doubt = [f"after its last event it may have begun or ended more: {holes[0]}"] if holes else []
    if last is None:
        return Answer("unknown", f"unknown: {worker} left no events", [link(loss)], findings=doubt)
    silence = seconds(loss.at_ns - last.at_ns)
    chain = [link(op.start) for op in pairing.open.values() if op.start is not None]
    chain = _ordered([*chain, link(last, f"its last event: {sentence(last)}"), link(loss)])
    if not pairing.open:
        verdict: Verdict = "unknown" if holes else "no"
        text = (
            f"{verdict}: nothing was open at its last event, {silence} before it was declared lost"
        )
        return Answer(verdict, text, chain, findings=doubt)
    named = "; ".join(operation.text for operation in pairing.open.values())
    text = f"yes: {named}; its last event was {silence} before it was declared lost"
    return Answer("yes", text, chain, findings=doubt)
