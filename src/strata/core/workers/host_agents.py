"""Agents: one per host; they offer slots, start workers and report how processes ended."""

from msgspec import field

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Agent, Cluster, Gpu
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

MAX_GPUS = 256
"""GPUs of one slot."""

NEVER_JOINED = "ended with exit code 0 and never joined: a script trains after strata.join()"
"""Starting such a script again would not help: it never joins."""


class AgentRegistered(Fact, frozen=True, kw_only=True):
    """A host offers slots; `gpus` are those of each slot."""

    sentence = "{agent} registered on host {hostname} with {slots:slot}"

    agent: str
    incarnation: int
    hostname: str
    slots: int
    nonce: str = ""
    gpus: list[list[Gpu]] = field(default_factory=list)


class AgentSlotsChanged(Fact, frozen=True, kw_only=True):
    """An agent reconnected with another number of slots."""

    sentence = "{agent} changed from {before:slot} to {after:slot}"

    agent: str
    before: int
    after: int


class AgentGpusChanged(Fact, frozen=True, kw_only=True):
    """An agent reconnected with other GPUs in its slots."""

    sentence = "{agent} offers other GPUs than before"

    agent: str
    gpus: list[list[Gpu]]


class AgentLost(Fact, frozen=True, kw_only=True):
    """A host was lost, with the workers on it."""

    sentence = "{agent} was lost[: {reason}]"

    agent: str
    incarnation: int
    reason: str


class WorkerExited(Fact, frozen=True, kw_only=True):
    """An agent reported that a worker's process ended; `signal` is 0 unless one killed it. `gpus`
    are those that the process had."""

    sentence = "the process of {worker} [was killed by signal {signal}|exited with code {code}]"
    lane_mark = True

    task: str
    worker: str
    agent: str
    start: int
    code: int
    signal: int = 0
    gpus: list[str] = field(default_factory=list)


class RegisterAgent(Command, frozen=True):
    agent: str
    hostname: str = ""
    slots: int = 1
    nonce: str = ""
    gpus: list[list[Gpu]] = field(default_factory=list)


class DeclareAgentLost(Command, frozen=True):
    agent: str
    incarnation: int
    reason: str
    silence_s: float = 0.0


class ReportExit(Command, frozen=True):
    agent: str
    incarnation: int
    task: str
    worker: str
    start: int
    code: int
    signal: int = 0
    gpus: tuple[str, ...] = ()


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
        gpus=fact.gpus,
    )


@applies(AgentSlotsChanged)
def _slots_changed(state: Cluster, fact: AgentSlotsChanged, event: Event) -> None:
    state.agents[fact.agent].slots = fact.after


@applies(AgentGpusChanged)
def _gpus_changed(state: Cluster, fact: AgentGpusChanged, event: Event) -> None:
    state.agents[fact.agent].gpus = fact.gpus


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
    _check_gpus(c)
    known = d.state.agents.get(c.agent)
    if known is not None and known.up:
        if c.nonce and known.nonce == c.nonce:
            _note_offer(d, known, c)
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
        gpus=c.gpus,
    )
    place_waiting(d, d.record(registered, c.cause))
    return d.state.agents[c.agent]


def _check_gpus(c: RegisterAgent) -> None:
    if c.gpus and len(c.gpus) != c.slots:
        raise InvalidArgument(
            f"agent {c.agent!r} names the GPUs of {len(c.gpus)} slots and offers {c.slots}",
            hint="name the GPUs of each slot, or none",
        )
    if any(len(slot) > MAX_GPUS for slot in c.gpus):
        raise InvalidArgument(
            f"agent {c.agent!r} has a slot of more than {MAX_GPUS} GPUs", hint="offer more slots"
        )


def _note_offer(d: Decision, agent: Agent, c: RegisterAgent) -> None:
    """Record that an agent offers other slots or GPUs after its restart; its workers run on."""
    cause = c.cause
    if agent.gpus != c.gpus:
        cause = (d.record(AgentGpusChanged(agent=agent.id, gpus=c.gpus), cause),)
    if agent.slots != c.slots:
        changed = AgentSlotsChanged(agent=agent.id, before=agent.slots, after=c.slots)
        cause = (d.record(changed, cause),)
    if cause != c.cause:
        place_waiting(d, cause)


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
            task=c.task,
            worker=c.worker,
            agent=c.agent,
            start=c.start,
            code=c.code,
            signal=c.signal,
            gpus=list(c.gpus),
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
            gpus=c.gpus,
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
        departures.exit(task, c.worker, reason, how, exited, c.gpus)


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
