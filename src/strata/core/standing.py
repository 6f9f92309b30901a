"""What a worker or an agent has to know now.

Whoever is told something is told its whole standing: the same message after a change, after a lost
message, and after a restart of either side. So telling twice is harmless, and nothing has to be
remembered about what was told before.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct, field, structs

from strata.core.agreements import LoopExit, LoopLeft, ValueAgreed
from strata.core.checkpoints import CheckpointRequested
from strata.core.datasets import AssignmentChanged, DatasetAttached
from strata.core.events import Event
from strata.core.generations import GenerationChanged
from strata.core.recovery import RecoveryChosen, RolledBack
from strata.core.save_points import CheckpointScheduled, has_open_request
from strata.core.tasks import Phase, Recovery, Task, TaskPlaced, TaskState, TaskStateChanged
from strata.core.workers import WorkerLost, WorkerRegistered, WorkerStateChanged

if TYPE_CHECKING:
    from strata.core.state import Cluster

MAX_GIVERS = 2
TELLING_MEMBERS = (
    GenerationChanged,
    RecoveryChosen,
    RolledBack,
    CheckpointRequested,
    CheckpointScheduled,
    DatasetAttached,
    AssignmentChanged,
    ValueAgreed,
    LoopLeft,
)
TELLING = (
    *TELLING_MEMBERS,
    WorkerRegistered,
    WorkerLost,
    WorkerStateChanged,
    TaskPlaced,
    TaskStateChanged,
)
"""The facts that change somebody's standing; most, arrivals above all, do not."""


class TaskStanding(Struct, frozen=True, kw_only=True):
    """What every worker of a task is told alike.

    `save_request` is a request for a checkpoint whose step is still to be agreed upon, `save_at`
    the step that was; 0 for none. Where a recovery is from peers, `peers` are those who give the
    model and where, and `fetching` counts the members that need it. At `leader` the member with
    rank 0 is met by the others. `agreed` counts the values that the workers agreed on; `loop_exit`
    is the loop that a worker left before its end. `finished_step` is after how many steps members
    finished, -1 while none has; `copies`, in how many further storages the chosen checkpoint lies.
    """

    task: str
    task_state: TaskState
    generation: int
    world_size: int
    phase: Phase
    attempt: int
    committed: int
    save_request: int
    save_at: int
    recovery: Recovery | None
    peers: dict[str, str]
    fetching: int
    leader: str
    agreed: int = 0
    loop_exit: LoopExit | None = None
    finished_step: int = -1
    copies: int = 0


class Standing(TaskStanding, frozen=True, kw_only=True):
    """A worker's place in its task, and what its task is doing."""

    worker: str
    incarnation: int
    rank: int
    lanes: dict[str, list[int]]


class Duty(Struct, frozen=True):
    """A worker that an agent has to keep running; a higher `start` replaces a lower one."""

    task: str
    worker: str
    start: int


class Told(Struct, frozen=True):
    """Who has to be told because of a fact."""

    workers: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)


def standing(state: "Cluster", worker_id: str) -> Standing:
    """The standing of a worker that is registered."""
    worker = state.workers[worker_id]
    task = state.tasks[worker.task]
    return Standing(
        worker=worker.id,
        incarnation=worker.incarnation,
        rank=worker.rank,
        lanes=lanes_of(task, worker_id),
        **structs.asdict(task_standing(task)),
    )


def task_standing(task: Task) -> TaskStanding:
    """What the workers of a task share; it takes as long as the task has members."""
    holders = model_holders(task)
    chosen = task.checkpoints.get(task.recovery.checkpoint) if task.recovery else None
    return TaskStanding(
        task=task.id,
        task_state=task.state,
        generation=task.generation,
        world_size=len(task.members),
        phase=task.phase,
        attempt=task.attempt,
        committed=task.committed,
        save_request=open_request(task),
        save_at=task.save_at,
        recovery=task.recovery,
        peers=dict(_givers(task, holders)),
        fetching=len(task.members) - len(holders) if holders else 0,
        leader=_leader(task),
        agreed=task.agreed,
        loop_exit=task.loop_exit,
        finished_step=task.finished_step,
        copies=len(chosen.copies) if chosen is not None else 0,
    )


def lanes_of(task: Task, worker_id: str) -> dict[str, list[int]]:
    """The lanes that a worker owns, by dataset."""
    return {
        feed.dataset: list(feed.holdings.get(worker_id, ()))
        for feed in task.feeds.values()
        if feed.unit == "lane"
    }


def open_request(task: Task) -> int:
    """The request for a checkpoint that has no step yet; 0 where there is none."""
    return task.checkpoint_requests if has_open_request(task) else 0


def model_holders(task: Task) -> dict[str, str]:
    """The members that brought the very model from which the generation goes on, and where they
    give it to others."""
    chosen = task.recovery
    if chosen is None or chosen.source != "peer":
        return {}
    wanted = (chosen.model_attempt, chosen.model_generation, chosen.step)
    return {
        worker: entry.address
        for worker, entry in task.entered.items()
        if (entry.attempt, entry.generation, entry.step) == wanted
    }


def _leader(task: Task) -> str:
    """Where the member with rank 0 is met."""
    entry = task.entered.get(task.members[0]) if task.members else None
    return entry.meeting if entry is not None else ""


def _givers(task: Task, holders: dict[str, str]) -> list[tuple[str, str]]:
    """The chosen one first, and a few more in case it fails: each copies its model once."""
    assert task.recovery is not None or not holders
    chosen = task.recovery.worker if task.recovery is not None else ""
    able = [(worker, address) for worker, address in holders.items() if address]
    return sorted(able, key=lambda giver: giver[0] != chosen)[:MAX_GIVERS]


def duties(state: "Cluster", agent: str) -> list[Duty]:
    """What an agent has to keep running; it ends whatever else it runs."""
    return duties_by_agent(state).get(agent, [])


def duties_by_agent(state: "Cluster") -> dict[str, list[Duty]]:
    """What each agent has to keep running, in one pass over all placements."""
    found: defaultdict[str, list[Duty]] = defaultdict(list)
    for task in state.tasks.values():
        vacant = set(task.vacant)
        for worker, placement in task.placements.items():
            if worker not in vacant:
                found[placement.agent].append(Duty(task.id, worker, placement.start))
    return found


def told(state: "Cluster", events: Iterable[Event]) -> Told:
    """Whose standing the facts of a turn change, each named once.

    The members of a task are listed once, also when thousands of them finish in one turn. A task
    may have been forgotten later in the same turn; then none of its workers is alive.
    """
    workers: dict[str, None] = {}
    agents: dict[str, None] = {}
    tasks: dict[str, None] = {}
    for event in events:
        body = event.body
        if isinstance(body, TELLING_MEMBERS):
            tasks[body.task] = None
            if isinstance(body, GenerationChanged):
                workers.update(dict.fromkeys(_unseated(state, body)))
        elif isinstance(body, WorkerStateChanged):
            if body.finished:
                tasks[body.task] = None
        elif isinstance(body, WorkerRegistered):
            workers[body.worker] = None
        elif isinstance(body, TaskPlaced):
            agents.update(dict.fromkeys(p.agent for p in body.placements.values()))
        elif isinstance(body, TaskStateChanged):
            whose = _told_of_state(state, state.tasks.get(body.task))
            workers.update(dict.fromkeys(whose.workers))
            agents.update(dict.fromkeys(whose.agents))
        elif isinstance(body, WorkerLost) and body.task in state.tasks:
            placement = state.tasks[body.task].placements.get(body.worker)
            agents.update({placement.agent: None} if placement else {})
    for task in (state.tasks[task_id] for task_id in tasks if task_id in state.tasks):
        workers.update(dict.fromkeys(task.members))
    return Told(list(workers), sorted(agents))


def _unseated(state: "Cluster", body: GenerationChanged) -> list[str]:
    """Workers that live on and are no longer members."""
    return [w for w in body.left if w in state.workers and state.workers[w].alive]


def _told_of_state(state: "Cluster", task: Task | None) -> Told:
    """The workers of a task and its agents; all agents when it has ended, and no longer needs any
    of the processes that they run for it."""
    if task is None or task.ended:
        members = [*task.members, *task.waiting] if task is not None else []
        return Told(members, sorted(state.agents))
    agents = {placement.agent for placement in task.placements.values()}
    return Told([*task.members, *task.waiting], sorted(agents))
