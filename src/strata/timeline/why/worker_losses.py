"""Why was a worker declared lost, was it really dead, and what was it doing?

A dead worker differs from a live one by three things: its agent recorded the exit of the process;
the worker sent messages after it was declared lost (and was fenced); its own events continue or
stop. If its whole host was unreachable, the cause is a partition rather than a stopped process.

An exit belongs to the incarnation that ran in that start of the worker (`LogSearch.exit_of`): in a
restart loop each loss has its own exit.
"""

from strata.core.record.log_salvage import LogSalvaged
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.host_agents import WorkerExited, how_it_ended
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.operations import Pairing
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, lasting, seconds, sentence
from strata.timeline.why.investigation import (
    Answer,
    Link,
    LogSearch,
    in_order,
    link,
    lost_s,
)
from strata.timeline.why.oom_kills import oom_kill

AROUND_NS = 120 * SECOND_NS
AFTER_NS = 3_600 * SECOND_NS
OPEN_NS = 900 * SECOND_NS
STOP_SIGNALS = (9, 15)
SILENCES = ("connection", "heartbeat")
"""Signals of a loss that an unreachable host causes; with an exit the agent was reachable."""


SIGNALS = {
    "exit": "its process ended",
    "connection": "its connection broke",
    "heartbeat": "its heartbeats stopped",
    "hang": "its steps stopped",
    "agent": "its host was lost",
    "absent": "it did not reconnect after the coordinator's restart",
}
"""Why the coordinator declared a worker lost, by the signal in the fact."""


def the_loss(
    search: LogSearch, worker: str, time_ms: float | None = None, incarnation: int | None = None
) -> Record:
    """The loss that a question is about: the last match before a moment."""
    until_ns = search.until(time_ms)
    found = search.last({WorkerLost.__name__}, until_ns, worker=worker, incarnation=incarnation)
    named = f"loss of worker {worker}" if worker else "loss of a worker"
    if incarnation is not None:
        named = f"{named}, incarnation {incarnation}"
    return search.require(found, named)


def _declared(body: WorkerLost) -> str:
    """A clause on why a worker was declared lost."""
    return f"it was declared lost because {SIGNALS[body.signal]} ({body.reason})"


def lost(
    search: LogSearch,
    worker: str = "",
    time_ms: float | None = None,
    incarnation: int | None = None,
) -> Answer:
    """Was it dead (crash, lost host) or alive (hang, partition, stopped process)?"""
    loss = the_loss(search, worker, time_ms, incarnation)
    body = loss.event.body
    assert isinstance(body, WorkerLost)
    chain = search.ancestry(loss)
    cost = _cost(search, loss, body)
    declared = _declared(body)
    if any(each.record.kind == LogSalvaged.__name__ for each in chain):
        text = (
            "unknown: it was declared lost because the damaged log was salvaged; "
            "what became of it is in the lost part of the log"
        )
        return Answer(verdict="unknown", text=text, chain=chain, cost=cost)
    if body.signal == "hang":
        return Answer(
            verdict="no",
            text=f"no, it hung: {declared}; where each rank was: strata why hang task={body.task}",
            chain=[*_last_step(search, loss, body), *chain],
            cost=cost,
        )
    exited = search.exit_of(body.worker, body.incarnation)
    alive = _sign_of_life(search, loss, body)
    # A connection breaks when the process ends. A process that ends after a heartbeat timeout was
    # ended because of the timeout.
    late_ns = 0 if body.signal == "heartbeat" else SECOND_NS
    if body.signal == "exit" and not _seen_first(exited, loss):
        return _script_failed(body, exited, chain, cost)
    if exited is not None and exited.at_ns <= loss.at_ns + late_ns:
        stopping = _stop_of(search, exited, body)
        if stopping is not None:
            return _stopped(exited, stopping, chain, cost)
        by_kernel, shown = oom_kill(search, exited)
        clauses = [f"yes, it crashed: {exit_text(exited)}", by_kernel]
        clauses += [] if body.signal == "exit" else [declared]
        return Answer(
            verdict="yes",
            text="; ".join(each for each in clauses if each),
            chain=in_order([*chain, link(exited, exit_text(exited)), *shown]),
            cost=cost,
        )
    if alive is not None or exited is not None:
        return _alive(search, loss, body, alive or exited, chain, cost)
    host = _host_lost(search, loss, body)
    chain = chain if host is None else in_order([*chain, link(host)])
    return _unseen(search, loss, body, host, chain, cost)


def _seen_first(exited: Record | None, loss: Record) -> bool:
    """Whether the exit was recorded before the loss."""
    return exited is not None and exited.event.seq < loss.event.seq


def _stop_of(search: LogSearch, exited: Record, body: WorkerLost) -> Record | None:
    """The stop of the task during which a signal ended the process."""
    ended = exited.event.body
    assert isinstance(ended, WorkerExited)
    changed = search.last({TaskStateChanged.__name__}, exited.at_ns, task=body.task)
    stopping = changed is not None and changed.text("after") == "stopping"
    return changed if stopping and ended.signal in STOP_SIGNALS else None


def _stopped(exited: Record, stopping: Record, chain: list[Link], cost: Cost) -> Answer:
    """The process was ended with its task; its agent sends SIGTERM, and later SIGKILL."""
    after = seconds(exited.at_ns - stopping.at_ns)
    text = (
        f"yes, it was ended with its task ({stopping.text('reason')}): {exit_text(exited)}, "
        f"{after} after the stop began"
    )
    links = [*chain, link(stopping), link(exited, exit_text(exited))]
    return Answer(verdict="yes", text=text, chain=in_order(links), cost=cost)


def _script_failed(
    body: WorkerLost, exited: Record | None, chain: list[Link], cost: Cost
) -> Answer:
    """The worker itself reported that its script failed."""
    text = f"yes, its script failed: {body.reason}"
    if exited is not None:
        text = f"{text}; {exit_text(exited)}"
        chain = in_order([*chain, link(exited, exit_text(exited))])
    return Answer(verdict="yes", text=text, chain=chain, cost=cost)


def _unseen(
    search: LogSearch,
    loss: Record,
    body: WorkerLost,
    host: Record | None,
    chain: list[Link],
    cost: Cost,
) -> Answer:
    """No exit is recorded, and the worker sent nothing more; nor did its `host`, if that is lost.

    A host that sends nothing may be switched off or cut off: which one shows when it returns.
    """
    declared = _declared(body)
    if host is not None:
        declared = f"its whole host was lost or cut off ({sentence(host)}); {declared}"
    holes = search.holes(body.worker, loss.at_ns - AROUND_NS, loss.at_ns + AROUND_NS)
    if loss.at_ns + AROUND_NS > search.extent.to_ns:
        left = seconds(search.extent.to_ns - loss.at_ns)
        text = f"open: {declared}; the log ends {left} later, so the worker may still return"
        return Answer(verdict="open", text=text, chain=chain, cost=cost)
    why = holes[0] if holes else "no exit of its process is recorded, and it sent nothing more"
    return Answer(verdict="unknown", text=f"unknown: {declared}; {why}", chain=chain, cost=cost)


def _alive(
    search: LogSearch,
    loss: Record,
    body: WorkerLost,
    alive: Record | None,
    chain: list[Link],
    cost: Cost,
) -> Answer:
    """It sent messages later, or its process ended later: why were there no heartbeats?"""
    assert alive is not None
    after = seconds(alive.at_ns - loss.at_ns)
    silent = _host_unreachable(search, loss, body)
    if alive.kind == WorkerExited.__name__ and _host_lost(search, loss, body) is not None:
        return _ended_unheard(body, alive, chain, cost)
    worked = _worked_meanwhile(search, loss, body)
    if silent is not None:
        kind = f"a partition: its whole host was unreachable ({sentence(silent)})"
    elif worked is not None:
        kind = "a partition: it continued training while the coordinator got no message"
    elif body.signal == "connection" and alive.kind == WorkerExited.__name__:
        return _ended_unheard(body, alive, chain, cost)
    elif body.signal == "connection":
        kind = "a false alarm: only its connection broke"
    else:
        kind = "a paused process: it was stopped or starved of CPU; its host was reachable"
    sign = "its process ended" if alive.kind == "WorkerExited" else "it sent messages again"
    chain = [*chain, link(alive, f"{sign} {after} after it was declared lost")]
    if worked is not None:
        chain.append(link(worked))
    text = f"no, {kind}; {sign} {after} later"
    return Answer(verdict="no", text=text, chain=in_order(chain), cost=cost)


def _ended_unheard(body: WorkerLost, exited: Record, chain: list[Link], cost: Cost) -> Answer:
    """It was not heard again; its agent, perhaps cut off too, reported its end only later."""
    text = (
        f"unknown: {_declared(body)}; {exit_text(exited)}, reported later: "
        "whether it had ended before that is not recorded"
    )
    return Answer(
        verdict="unknown",
        text=text,
        chain=in_order([*chain, link(exited, exit_text(exited))]),
        cost=cost,
    )


def exit_text(exited: Record) -> str:
    """A sentence on how a process ended."""
    body = exited.event.body
    assert isinstance(body, WorkerExited)
    return f"the process of {body.worker} ended with {how_it_ended(body.code, body.signal)}"


def _sign_of_life(search: LogSearch, loss: Record, body: WorkerLost) -> Record | None:
    """A message or event of the same incarnation after it was declared lost."""
    fenced = search.first(
        {"WorkerFenced"}, loss.at_ns, worker=body.worker, incarnation=body.incarnation
    )
    stop_ns = loss.at_ns + AFTER_NS
    for record in search.timeline.records(loss.at_ns + 1, stop_ns, node=body.worker):
        if record.incarnation == body.incarnation:
            return record if fenced is None or record.at_ns < fenced.at_ns else fenced
        break
    return fenced


def _worked_meanwhile(search: LogSearch, loss: Record, body: WorkerLost) -> Record | None:
    """A step that it finished during the heartbeat timeout."""
    since_beat_s = body.evidence.get("silence_s", 0.0)
    since_ns = loss.at_ns - int(since_beat_s * SECOND_NS) + SECOND_NS
    found = search.first({"StepFinished", "TrainingFinished"}, since_ns, loss.at_ns, body.worker)
    return found if found is not None and found.incarnation == body.incarnation else None


def _host_unreachable(search: LogSearch, loss: Record, body: WorkerLost) -> Record | None:
    """Another loss on the same host at about the same time."""
    host = search.host_of(body.worker, loss.at_ns)
    near = search.all({"WorkerLost", "AgentLost"}, loss.at_ns - AROUND_NS, loss.at_ns + AROUND_NS)
    for other in near:
        if other.kind == "AgentLost":
            agent = search.last({"AgentRegistered"}, other.at_ns, agent=other.text("agent"))
            there = agent.text("hostname") if agent is not None else ""
        elif other.text("worker") == body.worker or other.text("signal") not in SILENCES:
            continue
        else:
            there = search.host_of(other.text("worker"), other.at_ns)
        if there and there == host and other.key != loss.key:
            return other
    return None


def _host_lost(search: LogSearch, loss: Record, body: WorkerLost) -> Record | None:
    found = _host_unreachable(search, loss, body)
    return found if found is not None and found.kind == "AgentLost" else None


def _last_step(search: LogSearch, loss: Record, body: WorkerLost) -> list[Link]:
    step = search.last({"StepFinished"}, loss.at_ns, loss.at_ns - OPEN_NS, body.worker)
    return [link(step, f"its last step: {sentence(step)}")] if step is not None else []


def _cost(search: LogSearch, loss: Record, body: WorkerLost) -> Cost:
    """The time from the loss until the task trained again, for all its workers."""
    again = search.first({"RecoveryChosen"}, loss.at_ns, task=body.task)
    changed = search.first({"GenerationChanged"}, loss.at_ns, task=body.task)
    rolled = search.first(
        {"RolledBack"}, loss.at_ns, again.at_ns + 1 if again else None, task=body.task
    )
    undetected_s = body.evidence.get("silence_s") or body.evidence.get("stuck_s") or 0.0
    if again is None:
        return Cost(undetected_s, 1, "the task did not continue")
    stopped_s = lost_s(loss.at_ns, again.at_ns)
    size = changed.get("world_size") if changed else None
    workers = size if isinstance(size, int) and size else 1
    noticed = f"detected after {lasting(undetected_s)}" if undetected_s else "detected at once"
    text = f"{noticed}, {lasting(stopped_s)} until training continued"
    if rolled is not None:
        origin, to = rolled.get("origin"), rolled.get("to")
        if isinstance(origin, int) and isinstance(to, int):
            text += f", {counted(origin - to, 'step')} to train again"
    return Cost((undetected_s + stopped_s) * workers, workers, text)


def unfinished(search: LogSearch, worker: str = "", time_ms: float | None = None) -> Answer:
    """Which operations of a lost worker were open, by its own events?"""
    loss = the_loss(search, worker, time_ms)
    worker, incarnation = loss.text("worker"), loss.get("incarnation")
    pairing = Pairing()
    last: Record | None = None
    for record in search.timeline.records(loss.at_ns - OPEN_NS, loss.at_ns + 1, node=worker):
        if record.incarnation == incarnation:
            pairing.feed(record)
            last = record
    holes = search.holes(worker, last.at_ns if last else loss.at_ns, loss.at_ns)
    doubt = [f"it may have started or ended more after its last event: {holes[0]}"] if holes else []
    if last is None:
        return Answer(
            verdict="unknown",
            text=f"unknown: {worker} recorded no events",
            chain=[link(loss)],
            findings=doubt,
        )
    interval = seconds(loss.at_ns - last.at_ns)
    chain = [link(op.start) for op in pairing.open.values() if op.start is not None]
    chain = in_order([*chain, link(last, f"its last event: {sentence(last)}"), link(loss)])
    if not pairing.open:
        verdict: Verdict = "unknown" if holes else "no"
        text = (
            f"{verdict}: nothing was open at its last event, {interval} before it was declared lost"
        )
        return Answer(verdict=verdict, text=text, chain=chain, findings=doubt)
    named = "; ".join(operation.text for operation in pairing.open.values())
    text = f"yes: {named}; its last event was {interval} before it was declared lost"
    return Answer(verdict="yes", text=text, chain=chain, findings=doubt)
