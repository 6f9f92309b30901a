"""The full state that a worker or an agent is sent: its place, its task, its duties.

A message always holds the whole state, not a change: the same message after a change, after a lost
message, and after a restart of either side. So sending it twice is harmless, and nothing has to be
remembered about earlier messages.
"""

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct, field, structs

from strata.core.barriers.agreements import LoopLeft, ValueAgreed
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointRequested
from strata.core.checkpoints.save_schedule import CheckpointScheduled, has_open_request
from strata.core.datasets.dataset_rules import AssignmentChanged, DatasetAttached
from strata.core.events import Event
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen, RolledBack
from strata.core.hosts.gpu_exclusion import GpuExcluded, GpuIncluded
from strata.core.state import Cluster
from strata.core.task_state import LoopExit, Phase, Recovery, Task, TaskState
from strata.core.tasks.elastic_workers import WorkersReleased
from strata.core.tasks.task_lifecycle import TaskPlaced, TaskStateChanged
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered, WorkerStateChanged

MAX_GIVERS = 2
AFFECTING_MEMBERS = (
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
AFFECTING = (
    *AFFECTING_MEMBERS,
    WorkerRegistered,
    WorkerLost,
    WorkerStateChanged,
    TaskPlaced,
    TaskStateChanged,
    WorkersReleased,
    GpuExcluded,
    GpuIncluded,
)
"""The facts that change what a worker or agent is sent; most facts, such as arrivals, do not."""


class TaskStanding(Struct, frozen=True, kw_only=True):
    """The part of the state that all workers of a task share.

    `save_request` is a request for a checkpoint whose step is not set yet, `save_at` the scheduled
    step; 0 for none. If members recover from peers, `peers` are the workers that offer the model,
    with their addresses, and `fetching` counts the members that need it. `leader` is the address at
    which the members meet rank 0. `agreed` counts the values that the workers agreed on;
    `loop_exit` is the loop that a worker left before its end. `finished_step` is the step at which
    members finished, -1 while none has; `copies` is the number of further storages that hold the
    chosen checkpoint. The newest `planned_changes` generations began without a lost member.
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
    planned_changes: int = 0


class Standing(TaskStanding, frozen=True, kw_only=True):
    """A worker's place in its task, and the state of the task; a `released` worker is to end."""

    worker: str
    incarnation: int
    rank: int
    lanes: dict[str, list[int]]
    released: bool = False


class Duty(Struct, frozen=True):
    """A worker that an agent has to keep running; a higher `start` replaces a lower one."""

    task: str
    worker: str
    start: int


class Affected(Struct, frozen=True):
    """The workers and agents that have to be informed of a fact."""

    workers: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)


def standing(state: Cluster, worker_id: str) -> Standing:
    """The state of a registered worker."""
    worker = state.workers[worker_id]
    task = state.tasks[worker.task]
    return Standing(
        worker=worker.id,
        incarnation=worker.incarnation,
        rank=worker.rank,
        lanes=lanes_of(task, worker_id),
        released=worker_id in task.released,
        **structs.asdict(task_standing(task)),
    )


def task_standing(task: Task) -> TaskStanding:
    """The state that the workers of a task share; takes time in proportion to its members."""
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
        planned_changes=task.planned_changes,
    )


def lanes_of(task: Task, worker_id: str) -> dict[str, list[int]]:
    """The lanes that a worker owns, by dataset."""
    return {
        feed.dataset: list(feed.holdings.get(worker_id, ()))
        for feed in task.feeds.values()
        if feed.unit == "lane"
    }


def open_request(task: Task) -> int:
    """The request for a checkpoint that has no step yet; 0 if there is none."""
    return task.checkpoint_requests if has_open_request(task) else 0


def model_holders(task: Task) -> dict[str, str]:
    """The members that hold the model from which the generation resumes, and their addresses."""
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
    """The address at which the members meet rank 0."""
    entry = task.entered.get(task.members[0]) if task.members else None
    return entry.meeting if entry is not None else ""


def _givers(task: Task, holders: dict[str, str]) -> list[tuple[str, str]]:
    """The chosen worker first, and a few more in case it fails: each copies its model once."""
    assert task.recovery is not None or not holders
    chosen = task.recovery.worker if task.recovery is not None else ""
    able = [(worker, address) for worker, address in holders.items() if address]
    return sorted(able, key=lambda giver: giver[0] != chosen)[:MAX_GIVERS]


def duties(state: Cluster, agent: str) -> list[Duty]:
    """The workers that an agent has to keep running; it ends all other processes."""
    return duties_by_agent(state).get(agent, [])


def duties_by_agent(state: Cluster) -> dict[str, list[Duty]]:
    """The workers that each agent has to keep running, in one pass over all placements."""
    found: defaultdict[str, list[Duty]] = defaultdict(list)
    for task in state.tasks.values():
        vacant = set(task.vacant)
        for worker, placement in task.placements.items():
            if worker not in vacant:
                found[placement.agent].append(Duty(task.id, worker, placement.start))
    return found


def affected(state: Cluster, events: Iterable[Event]) -> Affected:
    """The workers and agents whose state the facts of a turn change, each named once.

    The members of a task are listed once, also when thousands of them finish in one turn. A task
    may have been removed later in the same turn; then none of its workers is alive.
    """
    workers: dict[str, None] = {}
    agents: dict[str, None] = {}
    tasks: dict[str, None] = {}
    for event in events:
        body = event.body
        if isinstance(body, AFFECTING_MEMBERS):
            tasks[body.task] = None
            if isinstance(body, GenerationChanged):
                workers.update(dict.fromkeys(_living(state, body.left)))
        elif isinstance(body, WorkerStateChanged):
            if body.finished:
                tasks[body.task] = None
        elif isinstance(body, WorkerRegistered):
            workers[body.worker] = None
        elif isinstance(body, WorkersReleased):
            workers.update(dict.fromkeys(_living(state, body.left)))
            agents.update(dict.fromkeys(body.agents))
        elif isinstance(body, TaskPlaced):
            agents.update(dict.fromkeys(p.agent for p in body.placements.values()))
        elif isinstance(body, TaskStateChanged):
            whose = _affected_by_state(state, state.tasks.get(body.task))
            workers.update(dict.fromkeys(whose.workers))
            agents.update(dict.fromkeys(whose.agents))
        elif isinstance(body, GpuExcluded | GpuIncluded):
            agents[body.host] = None
        elif isinstance(body, WorkerLost) and body.task in state.tasks:
            placement = state.tasks[body.task].placements.get(body.worker)
            agents.update({placement.agent: None} if placement else {})
    for task in (state.tasks[task_id] for task_id in tasks if task_id in state.tasks):
        workers.update(dict.fromkeys(task.members))
    return Affected(list(workers), sorted(agents))


def _living(state: Cluster, workers: list[str]) -> list[str]:
    """The workers among them that are alive."""
    return [worker for worker in workers if worker in state.workers and state.workers[worker].alive]


def _affected_by_state(state: Cluster, task: Task | None) -> Affected:
    """The workers of a task and its agents; all agents if the task has ended or is queued, since it
    needs none of its processes any more."""
    if task is None or task.ended or task.state == "queued":
        members = [*task.members, *task.waiting] if task is not None else []
        return Affected(members, sorted(state.agents))
    agents = {placement.agent for placement in task.placements.values()}
    return Affected([*task.members, *task.waiting], sorted(agents))
