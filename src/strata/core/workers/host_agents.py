"""Agents: one per host; they offer slots, start workers and report how processes ended."""

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Agent, Cluster
from strata.core.task_state import Task
from strata.core.tasks.placement import place_waiting
from strata.core.tasks.task_lifecycle import change_state
from strata.core.workers.departures import Departures, left_after_release
from strata.core.workers.fencing import require_agent
from strata.core.workers.worker_lifecycle import DeclareLost
from strata.errors import AlreadyExists, Fenced, InvalidArgument

UNKNOWN_CODE = -1
"""The exit code of a process that outlived the agent that started it: only the parent process can
read it."""

NEVER_JOINED = "ended with exit code 0 and never joined: a script trains after strata.join()"
"""Starting such a script again would not help: it never joins."""


class AgentRegistered(Fact, frozen=True, kw_only=True):
    """A host offers slots."""

    sentence = "{agent} registered on host {hostname} with {slots:slot}"

    agent: str
    incarnation: int
    hostname: str
    slots: int
    nonce: str = ""


class AgentSlotsChanged(Fact, frozen=True, kw_only=True):
    """An agent reconnected with another number of slots."""

    sentence = "{agent} changed from {before:slot} to {after:slot}"

    agent: str
    before: int
    after: int


class AgentLost(Fact, frozen=True, kw_only=True):
    """A host was lost, with the workers on it."""

    sentence = "{agent} was lost[: {reason}]"

    agent: str
    incarnation: int
    reason: str


class WorkerExited(Fact, frozen=True, kw_only=True):
    """An agent reported that a worker's process ended; `signal` is 0 unless one killed it."""

    sentence = "the process of {worker} [was killed by signal {signal}|exited with code {code}]"
    lane_mark = True

    task: str
    worker: str
    agent: str
    start: int
    code: int
    signal: int = 0


class RegisterAgent(Command, frozen=True):
    agent: str
    hostname: str = ""
    slots: int = 1
    nonce: str = ""


class DeclareAgentLost(Command, frozen=True):
    agent: str
    incarnation: int
    reason: str


class ReportExit(Command, frozen=True):
    agent: str
    incarnation: int
    task: str
    worker: str
    start: int
    code: int
    signal: int = 0


@applies(AgentRegistered)
def _registered(state: Cluster, fact: AgentRegistered, event: Event) -> None:
    state.last_incarnation = fact.incarnation
    state.agents[fact.agent] = Agent(
        id=fact.agent,
        incarnation=fact.incarnation,
        hostname=fact.hostname,
        slots=fact.slots,
        nonce=fact.nonce,
        registered_ns=event.wall_ns,
    )


@applies(AgentSlotsChanged)
def _slots_changed(state: Cluster, fact: AgentSlotsChanged, event: Event) -> None:
    state.agents[fact.agent].slots = fact.after


@applies(AgentLost)
def _lost(state: Cluster, fact: AgentLost, event: Event) -> None:
    agent = state.agents[fact.agent]
    agent.up = False
    agent.reason = fact.reason
    for task in state.tasks.values():
        for worker_id, placement in task.placements.items():
            if placement.agent != fact.agent:
                continue
            worker = state.workers.get(worker_id)
            settled = worker is not None and (worker.alive or worker.done)
            if not settled and worker_id not in task.vacant:
                task.vacant.append(worker_id)
        for worker_id in [w for w, p in task.released.items() if p.agent == fact.agent]:
            if not state.workers[worker_id].alive:
                del task.released[worker_id]


@applies(WorkerExited)
def _exited(state: Cluster, fact: WorkerExited, event: Event) -> None:
    task = state.tasks[fact.task]
    placement = task.placements.get(fact.worker)
    task.exits[fact.worker] = fact.start
    worker = state.workers.get(fact.worker)
    over = fact.worker in task.vacant or (worker is not None and worker.done)
    if fact.worker in task.released and task.released[fact.worker].start == fact.start:
        del task.released[fact.worker]
    if placement is not None and placement.start == fact.start and not over:
        task.vacant.append(fact.worker)


@decides(RegisterAgent)
def register(d: Decision, c: RegisterAgent) -> Agent:
    """Register an agent; tasks that wait for slots may start."""
    if c.slots < 1 or not c.agent:
        raise InvalidArgument(
            f"agent {c.agent!r} offers {c.slots} slots", hint="name it and offer at least one slot"
        )
    known = d.state.agents.get(c.agent)
    if known is not None and known.up:
        if c.nonce and known.nonce == c.nonce:
            _note_slots(d, known, c)
            return known
        raise AlreadyExists(
            f"agent {c.agent!r} is registered and alive", hint="choose another name for this agent"
        )
    registered = AgentRegistered(
        agent=c.agent,
        incarnation=d.state.last_incarnation + 1,
        hostname=c.hostname,
        slots=c.slots,
        nonce=c.nonce,
    )
    place_waiting(d, d.record(registered, c.cause))
    return d.state.agents[c.agent]


def _note_slots(d: Decision, agent: Agent, c: RegisterAgent) -> None:
    """Record that an agent offers another number of slots after its restart; its workers run on."""
    if agent.slots == c.slots:
        return
    place_waiting(
        d, d.record(AgentSlotsChanged(agent=agent.id, before=agent.slots, after=c.slots), c.cause)
    )


@decides(ReportExit)
def report_exit(d: Decision, c: ReportExit) -> None:
    """Record how a process ended, and what follows from it."""
    departures = Departures(d)
    record_exit(d, departures, c)
    departures.follow()


def record_exit(d: Decision, departures: Departures, c: ReportExit) -> None:
    """Record how a process ended; the departures of the same turn follow it up."""
    task = d.state.task(c.task)
    if not _is_new(d, task, c):
        return
    how = how_it_ended(c.code, c.signal)
    worker = d.state.workers.get(c.worker)
    released = task.released.get(c.worker)
    placement = released or task.placements[c.worker]
    runs = c.start == placement.start and c.worker not in task.vacant
    exited = d.record(
        WorkerExited(
            task=c.task, worker=c.worker, agent=c.agent, start=c.start, code=c.code, signal=c.signal
        ),
        c.cause,
    )
    if not runs:
        return
    if worker is not None and worker.alive:
        loss = DeclareLost(
            worker=worker.id,
            incarnation=worker.incarnation,
            signal="exit",
            reason=f"its process ended with {how}",
            failure=f"signal {c.signal}" if c.signal else f"exit code {c.code}",
            cause=(exited,),
        )
        if released:
            departures.leave(left_after_release(loss))
        else:
            departures.lose(loss)
    elif released:
        place_waiting(d, exited)
    elif worker is None and c.code == 0 and not c.signal and task.state != "stopping":
        place_waiting(d, change_state(d, task, "failed", f"{c.worker} {NEVER_JOINED}", exited, 1))
    elif worker is None or not worker.done:
        when = "before it joined" if worker is None else "before the task was done"
        reason = f"its process ended with {how} {when}"
        departures.exit(task, c.worker, reason, how, exited)


def _is_new(d: Decision, task: Task, c: ReportExit) -> bool:
    """Whether this exit is not recorded yet; refuses an exit that the agent cannot have seen."""
    require_agent(d.state, c.agent, c.incarnation)
    placement = task.released.get(c.worker) or task.placements.get(c.worker)
    if placement is None or c.start <= task.exits.get(c.worker, 0):
        return False
    if c.start > placement.start or (c.start == placement.start and placement.agent != c.agent):
        raise Fenced(
            f"agent {c.agent!r} does not run start {c.start} of worker {c.worker!r}",
            hint="report only processes that this agent started",
        )
    return True


def how_it_ended(code: int, signal: int) -> str:
    """The exit code or signal as text."""
    if signal:
        return f"signal {signal}"
    if code == UNKNOWN_CODE:
        return "an unknown exit code: the agent that started it had ended"
    return f"exit code {code}"
