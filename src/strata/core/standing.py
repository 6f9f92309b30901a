"""What a worker or an agent has to know now.

Whoever is told something is told its whole standing: the same message after a change, after a lost
message, and after a restart of either side. So telling twice is harmless, and nothing has to be
remembered about what was told before.
"""

from typing import TYPE_CHECKING

from msgspec import Struct, field

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


class Standing(Struct, frozen=True):
    """A worker's place in its task.

    `save_request` is a request for a checkpoint whose step is still to be agreed upon, `save_at`
    the step that was; 0 for none. Where a recovery is from peers, `peers` are those who give the
    model and where, and `fetching` counts the members that need it. At `leader` the member with
    rank 0 is met by the others. `agreed` counts the values that the workers agreed on; `loop_exit`
    is the loop that a worker left before its end. `finished_step` is after how many steps members
    finished, -1 while none has; `copies`, in how many further storages the chosen checkpoint lies.
    """

    worker: str
    incarnation: int
    task: str
    task_state: TaskState
    generation: int
    rank: int
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
    lanes: dict[str, list[int]]
    agreed: int = 0
    loop_exit: LoopExit | None = None
    finished_step: int = -1
    copies: int = 0


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
    holders = model_holders(task)
    chosen = task.checkpoints.get(task.recovery.checkpoint) if task.recovery else None
    return Standing(
        worker=worker.id,
        incarnation=worker.incarnation,
        task=task.id,
        task_state=task.state,
        generation=task.generation,
        rank=worker.rank,
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
        lanes={
            feed.dataset: list(feed.holdings.get(worker_id, ()))
            for feed in task.feeds.values()
            if feed.unit == "lane"
        },
        agreed=task.agreed,
        loop_exit=task.loop_exit,
        finished_step=task.finished_step,
        copies=len(chosen.copies) if chosen is not None else 0,
    )


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
    return [
        Duty(task.id, worker, placement.start)
        for task in state.tasks.values()
        for worker, placement in task.placements.items()
        if placement.agent == agent and worker not in task.vacant
    ]


def told(state: "Cluster", event: Event) -> Told:
    """Whose standing a fact changes."""
    body = event.body
    if isinstance(body, GenerationChanged):
        unseated = [worker for worker in body.left if state.workers[worker].alive]
        return Told([*state.tasks[body.task].members, *unseated])
    if isinstance(body, TELLING_MEMBERS):
        return Told(list(state.tasks[body.task].members))
    if isinstance(body, WorkerRegistered):
        return Told([body.worker])
    if isinstance(body, TaskPlaced):
        return Told(agents=sorted({p.agent for p in body.placements.values()}))
    if isinstance(body, WorkerStateChanged):
        return Told(list(state.tasks[body.task].members) if body.finished else [])
    if isinstance(body, WorkerLost) and body.task in state.tasks:
        placement = state.tasks[body.task].placements.get(body.worker)
        return Told(agents=[placement.agent] if placement else [])
    if isinstance(body, TaskStateChanged):
        task = state.tasks[body.task]
        agents = (
            {p.agent for p in task.placements.values()} if not task.ended else set(state.agents)
        )
        return Told([*task.members, *task.waiting], sorted(agents))
    return Told()
