"""Agents: one per host; they offer slots, start workers and tell how these ended."""

from typing import TYPE_CHECKING

from msgspec import Struct

from strata.core.decision import Decision
from strata.core.departures import Departures
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.scheduling import place_waiting
from strata.core.tasks import change_state
from strata.core.workers import DeclareLost
from strata.errors import AlreadyExists, Fenced, InvalidArgument

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

UNKNOWN_CODE = -1
"""Of a process that outlived the agent that started it: the system tells its parent alone."""

NEVER_JOINED = "ended with exit code 0 and never joined: a script trains after strata.join()"
"""Starting such a script again would only do again whatever else it does."""


class Agent(Struct):
    """A host that offers slots."""

    id: str
    incarnation: int
    hostname: str
    slots: int
    nonce: str
    registered_ns: int
    up: bool = True
    reason: str = ""


class AgentRegistered(Fact, frozen=True):
    """A host offers slots."""

    agent: str
    incarnation: int
    hostname: str
    slots: int
    nonce: str = ""


class AgentSlotsChanged(Fact, frozen=True):
    """A host came back with another number of slots."""

    agent: str
    before: int
    after: int


class AgentLost(Fact, frozen=True):
    """A host is out of reach, and with it what ran there."""

    agent: str
    incarnation: int
    reason: str


class WorkerExited(Fact, frozen=True):
    """An agent saw a worker's process end; `signal` is 0 unless one killed it."""

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
def _registered(state: "Cluster", fact: AgentRegistered, event: Event) -> None:
    state.last_incarnation = fact.incarnation
    state.agents[fact.agent] = Agent(
        fact.agent, fact.incarnation, fact.hostname, fact.slots, fact.nonce, event.wall_ns
    )


@applies(AgentSlotsChanged)
def _slots_changed(state: "Cluster", fact: AgentSlotsChanged, event: Event) -> None:
    state.agents[fact.agent].slots = fact.after


@applies(AgentLost)
def _lost(state: "Cluster", fact: AgentLost, event: Event) -> None:
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


@applies(WorkerExited)
def _exited(state: "Cluster", fact: WorkerExited, event: Event) -> None:
    task = state.tasks[fact.task]
    placement = task.placements.get(fact.worker)
    task.exits[fact.worker] = fact.start
    worker = state.workers.get(fact.worker)
    over = fact.worker in task.vacant or (worker is not None and worker.done)
    if placement is not None and placement.start == fact.start and not over:
        task.vacant.append(fact.worker)


@decides(RegisterAgent)
def register(d: Decision, c: RegisterAgent) -> Agent:
    """Takes a host in; what waits for slots may start."""
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
            f"agent {c.agent!r} is registered and alive", hint="choose another name for this one"
        )
    registered = AgentRegistered(
        c.agent, d.state.last_incarnation + 1, c.hostname, c.slots, c.nonce
    )
    place_waiting(d, d.record(registered, c.cause))
    return d.state.agents[c.agent]


def _note_slots(d: Decision, agent: Agent, c: RegisterAgent) -> None:
    """The same agent may offer another number of slots after its restart; what runs goes on."""
    if agent.slots == c.slots:
        return
    place_waiting(d, d.record(AgentSlotsChanged(agent.id, agent.slots, c.slots), c.cause))


@decides(ReportExit)
def report_exit(d: Decision, c: ReportExit) -> None:
    """An agent says how a process ended. That is a fact; it changes things only if it is news."""
    departures = Departures(d)
    hear_exit(d, departures, c)
    departures.follow()


def hear_exit(d: Decision, departures: Departures, c: ReportExit) -> None:
    """Records how a process ended; what follows is left to the departures of the same turn."""
    task = d.state.task(c.task)
    if not _is_new(d, task, c):
        return
    how = how_it_ended(c.code, c.signal)
    worker = d.state.workers.get(c.worker)
    runs = c.start == task.placements[c.worker].start and c.worker not in task.vacant
    exited = d.record(WorkerExited(c.task, c.worker, c.agent, c.start, c.code, c.signal), c.cause)
    if not runs:
        return
    if worker is not None and worker.alive:
        departures.lose(
            DeclareLost(
                worker=worker.id,
                incarnation=worker.incarnation,
                signal="exit",
                reason=f"its process ended with {how}",
                cause=(exited,),
            )
        )
    elif worker is None and c.code == 0 and not c.signal and task.state != "stopping":
        place_waiting(d, change_state(d, task, "failed", f"{c.worker} {NEVER_JOINED}", exited, 1))
    elif worker is None or not worker.done:
        when = "before it joined" if worker is None else "before the task was done"
        departures.exit(task, c.worker, f"its process ended with {how} {when}", exited)


def _is_new(d: Decision, task: "Task", c: ReportExit) -> bool:
    """Whether this exit is not known yet; a refusal if the agent cannot know of it."""
    agent = d.state.agents.get(c.agent)
    if agent is None or agent.incarnation != c.incarnation:
        raise Fenced(
            f"agent {c.agent!r} of incarnation {c.incarnation} is not the one that counts",
            hint="register the agent again",
        )
    placement = task.placements.get(c.worker)
    if placement is None or c.start <= task.exits.get(c.worker, 0):
        return False
    if c.start > placement.start or (c.start == placement.start and placement.agent != c.agent):
        raise Fenced(
            f"agent {c.agent!r} does not run start {c.start} of worker {c.worker!r}",
            hint="report only what was started here",
        )
    return True


def how_it_ended(code: int, signal: int) -> str:
    """In words."""
    if signal:
        return f"signal {signal}"
    if code == UNKNOWN_CODE:
        return "an exit code that nobody saw: the agent that started it was gone"
    return f"exit code {code}"
