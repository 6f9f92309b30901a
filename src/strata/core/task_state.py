"""The state of a task and of everything that belongs to its run.

Each concept has a folder with its facts and rules (`core/barriers`, `core/checkpoints` and so on).
The rules of each need the whole task, so the structures that a task is made of are together here,
where every rule can import them; `core/task_spec` has what the user submitted.
"""

from collections.abc import Container
from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.core.datasets.lane_owners import Holdings
from strata.core.order import Mode
from strata.core.task_spec import Retention, TaskSpec

TaskState: TypeAlias = Literal[
    "queued", "starting", "running", "recovering", "stopping", "completed", "failed", "stopped"
]
Phase: TypeAlias = Literal["forming", "syncing", "running"]
RecoverySource: TypeAlias = Literal["peer", "checkpoint", "fresh"]
BarrierState: TypeAlias = Literal["waiting", "released", "failed"]
CheckpointState: TypeAlias = Literal["in_progress", "sealing", "committed", "failed", "deleted"]
CheckpointType: TypeAlias = Literal["full", "incremental", "optimizer_only", "model_only"]
Unit: TypeAlias = Literal["lane", "shard", "lease"]

ENDED: frozenset[TaskState] = frozenset({"completed", "failed", "stopped"})

DEFAULT_GROUP = "default"
"""The name of the task that workers share if none was submitted."""


class Placement(Struct, frozen=True):
    """Where a worker runs, and its start count.

    `fruitless` counts its failures in a row without any new step, `causes` those in a row with few
    new steps between them, by cause (`core/tasks/restart_limit`). When it was placed, `committed`
    was the furthest step of the task and `incarnation` the newest of the worker.
    """

    agent: str
    start: int = 1
    fruitless: int = 0
    committed: int = 0
    incarnation: int = 0
    causes: dict[str, int] = field(default_factory=dict)


class Entry(Struct, frozen=True, gc=False):
    """The model that a worker brought into a generation: its lineage and step, -1 without a model.

    `address` is where other workers can fetch the model, empty if they cannot. `meeting` is where
    the other members connect if this worker has rank 0.
    """

    attempt: int
    generation: int
    step: int
    address: str = ""
    meeting: str = ""


class Recovery(Struct, frozen=True):
    """Where the present generation resumes: a worker's model, a checkpoint, or a fresh start.

    A worker whose model has this step, attempt and generation does not have to fetch one.
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


class Lease(Struct):
    """The right of one worker to train one shard in one epoch."""

    id: int
    shard: int
    worker: str
    incarnation: int
    epoch: int


class Feed(Struct):
    """A dataset that a task trains on. `batch_size` is set if the batch was given per worker.

    With `rebalance`, lanes are shared in proportion to the speed of the workers, in `paces` (see
    `core/datasets/lane_balance`).
    """

    dataset: str
    unit: Unit
    count: int
    global_batch: int = 0
    epochs: int = 0
    batch_size: int = 0
    mode: Mode = "global"
    window: int = 0
    epoch: int = 0
    holdings: Holdings = field(default_factory=dict)
    last_lease: int = 0
    next_shard: int = 0
    returned: list[int] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    consumed: int = 0
    rebalance: bool = False
    paces: dict[str, int] = field(default_factory=dict)


class Loop(Struct, frozen=True):
    """One loop of a script over a dataset; without `steps` it has no end of its own.

    `left_at` is the step of the run at which the script left it before its end. Its length was set
    when the task had been continued `continuation` times.
    """

    dataset: str
    start: int
    first: int
    steps: int | None = None
    left_at: int | None = None
    continuation: int = 0


class Agreement(Struct, frozen=True):
    """A value (JSON) that the workers agreed on at a step of the run."""

    step: int
    value: str


class LoopExit(Struct, frozen=True):
    """The last loop that a worker left before its end, and at which step of the run."""

    loop: str
    step: int
    worker: str


class Barrier(Struct, gc=False):
    """The newest round of a barrier, and the `last` one, for workers whose answer was lost.

    `arrived` maps each worker, in order of arrival, to its incarnation and request. For a round
    that was recorded because workers had left it, `told` is the round number that they were given
    and `participants` how many were released; `arrived` may then be incomplete.
    """

    name: str
    round: int
    state: BarrierState
    step: int
    opened_ns: int
    generation: int
    arrived: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended_ns: int = 0
    reason: str = ""
    missing: list[str] = field(default_factory=list)
    last: "Barrier | None" = None
    participants: int = 0
    told: int = 0

    @property
    def met(self) -> int:
        """How many workers were released, or had arrived when the barrier failed."""
        return self.participants or len(self.arrived)

    @property
    def ended(self) -> "Barrier | None":
        """The newest round that has ended."""
        return self.last if self.state == "waiting" else self


class StackCollection(Struct):
    """The newest collection of stacks of a task's workers; `open` while reports are awaited.

    `waiting` maps each worker to the agents that have not reported on it; the empty name is the
    worker itself. `max_bytes` is the limit of one report.
    """

    number: int
    began_ns: int
    open: bool = False
    workers: int = 0
    waiting: dict[str, list[str]] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)
    max_bytes: int = 0


class Part(Struct, gc=False):
    """The part that one rank wrote; `kept_bytes` of its share were in an earlier checkpoint
    already."""

    worker: str
    path: str
    size_bytes: int
    checksum: str
    kept_bytes: int = 0


class Checkpoint(Struct, gc=False):
    """A checkpoint of a task; `parts` by rank, `copies` are other places that hold it.

    `metrics` are the values that the script had logged last. `pins` are the holders of pins, which
    protect it from retention, with their notes in `pin_notes`. A `final` one holds the state in
    which training ended. `owner` is the task whose folder holds it, if this task is a fork and
    inherited it.
    """

    id: str
    step: int
    epoch: int
    attempt: int
    generation: int
    expected: int
    author: str
    path: str
    type: CheckpointType
    manifest: bool
    created_ns: int
    state: CheckpointState = "in_progress"
    reason: str = ""
    parts: dict[int, Part] = field(default_factory=dict)
    pins: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    damaged: bool = False
    copies: list[str] = field(default_factory=list)
    final: bool = False
    owner: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    pin_notes: dict[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes that ranks wrote and acknowledged so far."""
        return sum(part.size_bytes for part in self.parts.values())

    @property
    def kept_bytes(self) -> int:
        """Bytes that had not changed since an earlier checkpoint, so were not written again."""
        return sum(part.kept_bytes for part in self.parts.values())


class TaskWorkdir(Struct, frozen=True, kw_only=True):
    """The folder that a task runs in: the digest of its list of files, their number and size."""

    digest: str
    files: int
    size_bytes: int


class Task(Struct):
    """A task and everything that belongs to its run. `members` are in the order of ranks. `saved`
    counts all checkpoints that were ever committed, `continuations` how often the task was
    continued after its end. A fork has a `parent`, and `forked_at` is the step up to which it
    shares its history. `finished_step` is the step at which members finished. `ending` are members
    that have ended training and save their last state. `only_meets` is set by a worker that enters
    no generations (see `TaskSpec.syncs`). `last_start` is the highest start number of the workers
    that were placed before the task ended or was requeued. `preempted_by` is the task for which it
    stops; then it is queued again. `script_retention` is what the script chose instead of the
    spec's. `released` are workers that the task no longer needs, until their processes have ended;
    `retired` counts all placements that were ever given up. `batch_workers` is the number of
    workers before the first resize of a task that trains, 0 if there was none: batch sizes per
    worker refer to it. `planned_changes` counts the newest generations that began without a lost
    member. `rebuilds` is set if the workers build their model again in each generation, so none of
    them holds one. `trainer` names the framework's trainer that fixes the number of workers, if
    there is one. `media_bytes` is the room granted for images, texts and histograms. `attributed`
    is the last generation of which a failure was attributed to a host. `workdir` is the folder that
    was recorded last; the task runs in it if the spec names its digest.
    """

    id: str
    spec: TaskSpec
    submitted_ns: int
    state: TaskState = "queued"
    reason: str = ""
    exit_code: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    continuations: int = 0
    parent: str = ""
    forked_at: int = 0
    placements: dict[str, Placement] = field(default_factory=dict)
    vacant: list[str] = field(default_factory=list)
    exits: dict[str, int] = field(default_factory=dict)
    last_start: int = 0
    preempted_by: str = ""
    released: dict[str, Placement] = field(default_factory=dict)
    retired: int = 0
    batch_workers: int = 0
    workdir: TaskWorkdir | None = None

    generation: int = 0
    planned_changes: int = 0
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
    rebuilds: bool = False
    trainer: str = ""
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
    script_retention: Retention | None = None
    media_bytes: int = 0
    attributed: int = -1
    stack_collection: StackCollection | None = None

    @property
    def retention(self) -> Retention:
        """Which checkpoints are kept."""
        return self.script_retention or self.spec.retention

    @property
    def ended(self) -> bool:
        """Whether the task has completed, failed or stopped."""
        return self.state in ENDED

    def role_of(self, rank: int) -> str:
        """The role of a worker with this rank (see `RunStarted`); -1 is no rank."""
        if not self.syncs:
            return "client"
        return "spare" if rank < 0 and self.phase != "forming" else "trainer"

    @property
    def syncs(self) -> bool:
        """Whether the workers of the task enter generations."""
        return self.spec.syncs and not self.only_meets

    @property
    def shared(self) -> bool:
        """Whether this is the default task, which grows with the workers that name no task."""
        return self.spec.external and self.spec.name == DEFAULT_GROUP

    @property
    def required(self) -> int:
        """How many workers a generation needs to train."""
        return self.required_without(())

    def required_without(self, left: Container[str]) -> int:
        """How many workers a generation needs when the workers in `left` are gone."""
        everyone = max(self.spec.worker_count - len(self.finished), 1)
        began = self.ran_generation if self.syncs else self.generation
        if not began:
            return min(self.spec.min_workers, everyone) if self.spec.elastic else everyone
        ending = self.finished or any(worker not in left for worker in self.ending)
        if ending and self.spec.model_state == "replicated":
            # Lost workers are no longer replaced: see core/checkpoints/save_schedule.
            return 1
        fewest = 1 if self.spec.policy == "continue" else everyone
        # Workers that a resize added are not needed before they have joined.
        return min(self.spec.min_workers or fewest, everyone, self.ran_members or everyone)
