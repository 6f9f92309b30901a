"""Tasks: one training job each, from submission to its end.

A task owns everything that belongs to its run: the generation of its workers, the steps that
count, what it trains on, its barriers and checkpoints. Its life is a table. Its `policy` says
what a lost worker means: `continue` with fewer, `replace` it, or `stop`.

A task is either placed by Strata on agents, or *external*: a user starts its workers, which
register by themselves (`core/task_choice` says with which task).
"""

from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, field

from strata.core.agreements import Agreement, LoopExit
from strata.core.barriers import Barrier
from strata.core.checkpoints import Checkpoint
from strata.core.datasets import Feed
from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies
from strata.core.lifecycle import Lifecycle
from strata.core.loops import Loop

if TYPE_CHECKING:
    from strata.core.state import Cluster

TaskState: TypeAlias = Literal[
    "queued", "starting", "running", "recovering", "stopping", "completed", "failed", "stopped"
]
TaskType: TypeAlias = Literal["training", "tuning", "evaluation", "data"]
Policy: TypeAlias = Literal["continue", "replace", "stop"]
RecoverySource: TypeAlias = Literal["peer", "checkpoint", "fresh"]
ModelState: TypeAlias = Literal["replicated", "sharded"]
Phase: TypeAlias = Literal["forming", "syncing", "running"]

LIFECYCLE = Lifecycle(
    "task",
    "queued",
    (
        ("queued", "starting", "slots are free"),
        ("queued", "stopped", "stopped before it began"),
        ("starting", "running", "the first generation trains"),
        ("starting", "failed", "it cannot start"),
        ("starting", "stopping", "asked to stop"),
        ("running", "recovering", "a generation ended"),
        ("recovering", "running", "the next generation trains"),
        ("recovering", "failed", "no progress between losses"),
        ("recovering", "stopping", "asked to stop"),
        ("recovering", "completed", "the rest had finished"),
        ("running", "stopping", "asked to stop"),
        ("running", "completed", "every worker finished"),
        ("running", "failed", "a loss that the policy does not forgive"),
        ("stopping", "stopped", "every worker left"),
        ("starting", "completed", "every worker left"),
    ),
)

ENDED: frozenset[TaskState] = frozenset({"completed", "failed", "stopped"})
RESTART_LOOP_EXIT_CODE = 93
UNSAVED_EXIT_CODE = 94
"""Of a task that completed, though the checkpoint of its end failed."""

INTERRUPTED_EXIT_CODE = 130
"""Of a task that was stopped from outside. If its script stops it, it ends as if completed."""

DEFAULT_GROUP = "default"
"""The name of the task that workers share where no task was submitted."""

MAX_ENDED_TASKS = 200
FORGOTTEN_AT_ONCE = 50
MAX_THEIR_WORKERS = 10_000
WORKERS_AT_ONCE = 1_000


class TaskSpec(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was asked for.

    A `replicated` model survives on any worker, a `sharded` one only on all of them. Workers of a
    task that `syncs` enter each generation and agree from where to go on; the others only meet.
    `config` is a JSON object, as text: it is the script's business, not the rules'. The values of
    the environment may be secret, so facts hold only the names, and a key under which others keep
    the values.

    `spares` are workers beyond those that train: they have joined and wait, and one of them takes
    the seat of a lost one at once. Once it has begun, a task trains with `min_workers` or more
    while lost ones are being replaced; 0 leaves it to the policy: all of them, or one to continue.

    `allow_fresh_start` lets the task train again from step 0 although it has saved checkpoints,
    when none of them can be restored and no worker holds a model. Without it such a task fails.
    """

    name: str
    type: str = "training"
    dataset_id: str = ""
    worker_count: int = 1
    min_workers: int = 0
    policy: Policy = "replace"
    model_state: ModelState = "replicated"
    keep_count: int = 5
    max_restarts: int = 3
    entry: str = ""
    args: list[str] = field(default_factory=list)
    config: str = "{}"
    env_names: list[str] = field(default_factory=list)
    env_key: str = ""
    external: bool = False
    syncs: bool = True
    spares: int = 0
    allow_fresh_start: bool = False

    @property
    def slots(self) -> int:
        """How many processes it has."""
        return self.worker_count + self.spares


class Placement(Struct, frozen=True):
    """Where a worker runs, and its start count.

    `fruitless` counts its failures in a row between which it took part in no new step, `causes`
    those in a row between which it took part in few of them, by cause (`core/restarts`). When it
    was placed, `committed` steps were the most that the task had had, and `incarnation` was the
    newest of the worker.
    """

    agent: str
    start: int = 1
    fruitless: int = 0
    committed: int = 0
    incarnation: int = 0
    causes: dict[str, int] = field(default_factory=dict)


class Entry(Struct, frozen=True, gc=False):
    """What a worker brought into a generation: the lineage and step of its model, -1 for none.

    At `address` it gives its model to others; empty where it does not. At `meeting` it is met by
    the others, should it have rank 0.
    """

    attempt: int
    generation: int
    step: int
    address: str = ""
    meeting: str = ""


class Recovery(Struct, frozen=True):
    """From where the present generation goes on: a worker's model, a checkpoint, or nothing.

    A worker whose model is at this step and of this attempt and generation need not fetch anything.
    """

    source: RecoverySource
    step: int
    worker: str = ""
    checkpoint: str = ""
    model_generation: int = 0
    model_attempt: int = 0


class StorageWait(Struct):
    """Members that cannot reach the storage of the chosen checkpoint, and since when."""

    since_ns: int
    reason: str
    workers: list[str] = field(default_factory=list)
    missing: bool = False


class Task(Struct):
    """A task and everything its run is made of. `members` is in the order of ranks, `saved` how
    many checkpoints were ever committed, `finished_step` after how many steps members finished,
    `ending` the members that have ended their training and save its last state. `only_meets` is set
    by a worker that enters no generations (see `TaskSpec.syncs`)."""

    id: str
    spec: TaskSpec
    submitted_ns: int
    state: TaskState = "queued"
    reason: str = ""
    exit_code: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    placements: dict[str, Placement] = field(default_factory=dict)
    vacant: list[str] = field(default_factory=list)
    exits: dict[str, int] = field(default_factory=dict)

    generation: int = 0
    phase: Phase = "forming"
    only_meets: bool = False
    members: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    finished_step: int = -1
    ending: list[str] = field(default_factory=list)
    entered: dict[str, Entry] = field(default_factory=dict)
    ran_generation: int = 0
    ran_members: int = 0
    recovery: Recovery | None = None
    peers_refused: bool = False
    storage_wait: StorageWait | None = None

    attempt: int = 1
    committed: int = 0

    feeds: dict[str, Feed] = field(default_factory=dict)
    loops: dict[str, Loop] = field(default_factory=dict)
    loop_exit: LoopExit | None = None
    agreements: dict[str, Agreement] = field(default_factory=dict)
    agreed: int = 0
    barriers: dict[str, Barrier] = field(default_factory=dict)
    last_round: int = 0
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    last_checkpoint: int = 0
    saved: int = 0
    checkpoint_requests: int = 0
    scheduled_request: int = 0
    fulfilled_request: int = 0
    save_at: int = 0
    postponed_request: int = 0
    missed_saves: int = 0
    save_failure: str = ""

    @property
    def ended(self) -> bool:
        """Whether its life is over."""
        return self.state in ENDED

    @property
    def syncs(self) -> bool:
        """Whether its workers enter each generation, or only meet."""
        return self.spec.syncs and not self.only_meets

    @property
    def shared(self) -> bool:
        """Whether it is the task of workers that name none; it grows with them."""
        return self.spec.external and self.spec.name == DEFAULT_GROUP

    @property
    def required(self) -> int:
        """How many workers a generation needs to train."""
        return self.required_without(())

    def required_without(self, left: Container[str]) -> int:
        """How many workers a generation needs when these have left."""
        everyone = max(self.spec.worker_count - len(self.finished), 1)
        began = self.ran_generation if self.syncs else self.generation
        if not began:
            return everyone
        ending = self.finished or any(worker not in left for worker in self.ending)
        if ending and self.spec.model_state == "replicated":
            return 1  # nobody is replaced any more: see core/generations, core/final_saves
        fewest = 1 if self.spec.policy == "continue" else everyone
        return min(self.spec.min_workers or fewest, everyone)


class TaskSubmitted(Fact, frozen=True):
    """Somebody asked for a run."""

    task: str
    spec: TaskSpec


class TaskPlaced(Fact, frozen=True):
    """These workers are to be started on these agents."""

    task: str
    placements: dict[str, Placement]
    reason: str


class TaskStateChanged(Fact, frozen=True):
    """The task moved on in its life."""

    task: str
    before: TaskState
    after: TaskState
    reason: str
    exit_code: int = 0


@applies(TaskSubmitted)
def _submitted(state: "Cluster", fact: TaskSubmitted, event: Event) -> None:
    state.last_task += 1
    state.tasks[fact.task] = Task(fact.task, fact.spec, event.wall_ns)


@applies(TaskPlaced)
def _placed(state: "Cluster", fact: TaskPlaced, event: Event) -> None:
    task = state.tasks[fact.task]
    task.placements.update(fact.placements)
    task.vacant = [worker for worker in task.vacant if worker not in fact.placements]


@applies(TaskStateChanged)
def _changed(state: "Cluster", fact: TaskStateChanged, event: Event) -> None:
    task = state.tasks[fact.task]
    task.state = fact.after
    task.reason = fact.reason
    task.exit_code = fact.exit_code
    if fact.after == "running" and not task.started_ns:
        task.started_ns = event.wall_ns
    if fact.after in ENDED:
        task.ended_ns = event.wall_ns
        task.placements = {}
        task.vacant = []
        task.exits = {}
        _forget_oldest_ended(state, task)


def _forget_oldest_ended(state: "Cluster", newest: Task) -> None:
    """Makes room: the log keeps every task, the state only the newest that have ended.

    They are fewer where they had many workers, which are remembered as long as their task.
    """
    ended = [task.id for task in state.tasks.values() if task.ended]
    many = len(ended) >= MAX_ENDED_TASKS + FORGOTTEN_AT_ONCE
    dead = len(state.workers) - state.living_workers
    if not many and dead < MAX_THEIR_WORKERS + WORKERS_AT_ONCE:
        return
    workers = Counter(worker.task for worker in state.workers.values())
    kept = {newest.id} | {worker.task for worker in state.workers.values() if worker.alive}
    tasks_over = FORGOTTEN_AT_ONCE if many else 0
    workers_over = sum(workers[task] for task in ended) - MAX_THEIR_WORKERS
    forgotten = set[str]()
    for task_id in ended:
        if task_id not in kept and (tasks_over > 0 or workers_over > 0):
            forgotten.add(task_id)
            workers_over -= workers[task_id]
        tasks_over -= 1
    for task_id in forgotten:
        del state.tasks[task_id]
    for worker_id in [w.id for w in state.workers.values() if w.task in forgotten]:
        del state.workers[worker_id]


def change_state(
    d: Decision,
    task: Task,
    after: TaskState,
    reason: str,
    cause: str | tuple[str, ...],
    exit_code: int = 0,
) -> str:
    """Moves a task on, if the table allows it.

    A task that was stopped ends with the reason and the exit code of the stop.
    """
    LIFECYCLE.require(task.id, task.state, after)
    if after == "stopped" and task.state == "stopping":
        repeated = reason.startswith(task.reason)
        reason = reason if repeated or not task.reason else f"{task.reason}; {reason}"
        exit_code = task.exit_code or (UNSAVED_EXIT_CODE if task.save_failure else 0)
    return d.record(TaskStateChanged(task.id, task.state, after, reason, exit_code), cause)
