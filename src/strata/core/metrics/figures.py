"""Metrics derived from facts, over the last minutes; never recorded.

`Figures` observes every fact once, in order; its memory is bounded and `read` is cheap. The same
facts give the same figures, live or replayed. A figure that was not measured is None.

- *Checkpoint throughput*: bytes of acknowledged parts per second of saving, in MB/s, over the last
  `window_s`. Saving is the time in which any checkpoint was in progress, or any worker reported
  `checkpointing`; idle time does not dilute it. A checkpoint without a manifest is reported only
  after it is written, so its start says nothing: its bytes count if the worker that wrote them
  reports `checkpointing`, and not at all otherwise.
- *Barrier latency*: from a barrier's first arrival to its release, of the newest releases.
- *Recovery*: from the loss that stopped a task to its next generation training.

Times are differences of the coordinator's monotonic clock, which cannot be compared across its
restarts. After a restart, saving is measured from then on, and barriers and recoveries in progress
are not measured.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from msgspec import Struct, field

from strata.core.barriers.barrier_rules import BarrierFailed, BarrierOpened, BarrierReleased
from strata.core.checkpoints.checkpoint_lifecycle import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointPartAcked,
    CheckpointStarted,
)
from strata.core.cluster import CoordinatorStarted
from strata.core.datasets.dataset_rules import AssignmentChanged
from strata.core.events import Event, Fact
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen, RolledBack, StepsCommitted
from strata.core.limits import LimitHit
from strata.core.metrics.sliding_windows import SECOND_NS, WAIT_BOUNDS_S, Histogram, Samples, Tally
from strata.core.state import Cluster, WorkerState
from strata.core.task_state import TaskState
from strata.core.tasks.task_lifecycle import TaskStateChanged, TaskSubmitted
from strata.core.workers.worker_lifecycle import (
    WorkerLost,
    WorkerRegistered,
    WorkerRejected,
    WorkerStateChanged,
)

MB = 1_000_000
MAX_UNDER_WAY = 65_536
"""Barriers, checkpoints and recoveries that are followed at a time; the oldest is dropped."""

Key: TypeAlias = tuple[str, ...]
Name = TypeVar("Name")
Under = TypeVar("Under")


class Counts(Struct):
    """How often things happened since the figures started."""

    facts: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    registrations: int = 0
    rejections: int = 0
    generations: int = 0
    recoveries: Counter[str] = field(default_factory=Counter)
    rollbacks: int = 0
    steps_committed: int = 0
    steps_rolled_back: int = 0
    barriers: Counter[str] = field(default_factory=Counter)
    checkpoints: Counter[str] = field(default_factory=Counter)
    checkpoint_bytes: int = 0
    assignments: int = 0
    moved: int = 0
    limits: Counter[str] = field(default_factory=Counter)


class Reading(Struct, frozen=True):
    """The figures at one moment. Workers count while they are neither lost nor gone."""

    checkpoint_throughput_mb_s: float | None
    checkpoint_duration_p99_ms: float | None
    barrier_latency_p99_ms: float | None
    recovery_p99_ms: float | None
    active_workers: int
    total_workers: int
    worker_states: dict[str, int]
    task_states: dict[str, int]


class Figures:
    """Folds facts into figures. Start with `adopt` if earlier facts are in a state already."""

    def __init__(self, window_s: int = 60, samples: int = 4096) -> None:
        self.window_s = window_s
        self._limit = samples
        self.counts = Counts()
        self.barrier_wait_s = Histogram(WAIT_BOUNDS_S)
        self.checkpoint_s = Histogram(WAIT_BOUNDS_S)
        self.recovery_s = Histogram(WAIT_BOUNDS_S)
        self._workers: dict[str, WorkerState] = {}
        self._tasks: Counter[TaskState] = Counter()
        self._checkpoints: dict[Key, tuple[int, bool]] = {}
        self._saving: set[Key] = set()
        self._begin_windows()

    def _begin_windows(self) -> None:
        long_ns = 5 * self.window_s * SECOND_NS
        self._barrier_ms = Samples(self._limit, long_ns)
        self._checkpoint_ms = Samples(self._limit, long_ns)
        self._recovery_ms = Samples(self._limit, long_ns)
        self._bytes = Tally(self.window_s)
        self._saving_ns = Tally(self.window_s)
        self._saved_until_ns = 0
        self._barriers: dict[Key, int] = {}
        self._recovering: dict[str, int] = {}

    def adopt(self, state: Cluster, now_ns: int) -> None:
        """Start from a state; saves in progress count from now on."""
        self._saved_until_ns = now_ns
        for worker in state.workers.values():
            if worker.alive:
                self._move(worker.id, worker.state, now_ns)
        for task in state.tasks.values():
            self._tasks[task.state] += 1
            for checkpoint in task.checkpoints.values():
                if checkpoint.state in ("in_progress", "sealing"):
                    self._begin_saving(task.id, checkpoint.id, checkpoint.manifest, now_ns)

    def observe(self, event: Event) -> None:
        """Update the figures by one fact."""
        self.counts.facts += 1
        handler = HANDLERS.get(type(event.body))
        if handler is not None:
            handler(self, event.body, event.mono_ns)

    def read(self, now_ns: int) -> Reading:
        """The figures now."""
        self._spend(now_ns)
        states: Counter[str] = Counter(self._workers.values())
        saving_ns = self._saving_ns.total(now_ns)
        acked = self._bytes.total(now_ns)
        throughput = acked / MB * SECOND_NS / saving_ns if saving_ns and acked else None
        return Reading(
            checkpoint_throughput_mb_s=throughput,
            checkpoint_duration_p99_ms=self._checkpoint_ms.quantile(0.99, now_ns),
            barrier_latency_p99_ms=self._barrier_ms.quantile(0.99, now_ns),
            recovery_p99_ms=self._recovery_ms.quantile(0.99, now_ns),
            active_workers=states["training"] + states["checkpointing"],
            total_workers=len(self._workers),
            worker_states=dict(states),
            task_states={state: count for state, count in self._tasks.items() if count},
        )

    def _spend(self, now_ns: int) -> None:
        """Count the time since the last call as saving, if a save is in progress."""
        if self._saving and now_ns > self._saved_until_ns:
            self._saving_ns.add_span(self._saved_until_ns, now_ns)
        self._saved_until_ns = max(self._saved_until_ns, now_ns)

    def _begin_saving(self, task: str, checkpoint: str, timed: bool, now_ns: int) -> None:
        self._spend(now_ns)
        crowded_out = follow(self._checkpoints, (task, checkpoint), (now_ns, timed))
        if crowded_out is not None:
            self._saving.discard(crowded_out)
        if timed:
            self._saving.add((task, checkpoint))

    def _end_saving(self, task: str, checkpoint: str, now_ns: int) -> int | None:
        """End a save; return when it began, if that is known."""
        self._spend(now_ns)
        self._saving.discard((task, checkpoint))
        began_ns, timed = self._checkpoints.pop((task, checkpoint), (0, False))
        return began_ns if timed else None

    def _move(self, worker: str, state: WorkerState, now_ns: int) -> None:
        saves = state == "checkpointing"
        if saves != ((worker,) in self._saving):
            self._spend(now_ns)
            self._saving ^= {(worker,)}
        if state in ("lost", "left"):
            self._workers.pop(worker, None)
        else:
            self._workers[worker] = state

    def coordinator_started(self, fact: CoordinatorStarted, now_ns: int) -> None:
        self._begin_windows()
        self._saved_until_ns = now_ns
        for key, (_, timed) in self._checkpoints.items():
            self._checkpoints[key] = (now_ns, timed)

    def worker_registered(self, fact: WorkerRegistered, now_ns: int) -> None:
        self.counts.registrations += 1
        self._move(fact.worker, "initializing", now_ns)

    def worker_rejected(self, fact: WorkerRejected, now_ns: int) -> None:
        self.counts.rejections += 1

    def limit_hit(self, fact: LimitHit, now_ns: int) -> None:
        self.counts.limits[fact.limit] += 1

    def worker_changed(self, fact: WorkerStateChanged, now_ns: int) -> None:
        self._move(fact.worker, fact.after, now_ns)

    def worker_lost(self, fact: WorkerLost, now_ns: int) -> None:
        self.counts.losses[fact.signal] += 1
        self._move(fact.worker, "lost", now_ns)

    def task_submitted(self, fact: TaskSubmitted, now_ns: int) -> None:
        self._tasks["queued"] += 1

    def task_changed(self, fact: TaskStateChanged, now_ns: int) -> None:
        self._tasks[fact.before] -= 1
        self._tasks[fact.after] += 1
        began_ns = self._recovering.pop(fact.task, None)
        if fact.after == "recovering":
            follow(self._recovering, fact.task, now_ns)
        elif fact.after == "running" and began_ns is not None:
            self.recovery_s.add((now_ns - began_ns) / SECOND_NS)
            self._recovery_ms.add(now_ns, (now_ns - began_ns) / 1e6)

    def generation_changed(self, fact: GenerationChanged, now_ns: int) -> None:
        self.counts.generations += 1

    def recovery_chosen(self, fact: RecoveryChosen, now_ns: int) -> None:
        self.counts.recoveries[fact.source] += 1

    def steps_committed(self, fact: StepsCommitted, now_ns: int) -> None:
        steps = fact.last - fact.first + 1
        self.counts.steps_committed += steps

    def rolled_back(self, fact: RolledBack, now_ns: int) -> None:
        self.counts.rollbacks += 1
        self.counts.steps_rolled_back += fact.origin - fact.to

    def assignment_changed(self, fact: AssignmentChanged, now_ns: int) -> None:
        self.counts.assignments += 1
        self.counts.moved += fact.moved

    def barrier_opened(self, fact: BarrierOpened, now_ns: int) -> None:
        follow(self._barriers, (fact.task, fact.barrier), now_ns)

    def barrier_released(self, fact: BarrierReleased, now_ns: int) -> None:
        self.counts.barriers["released"] += 1
        opened_ns = self._barriers.pop((fact.task, fact.barrier), None)
        if opened_ns is not None:
            self.barrier_wait_s.add((now_ns - opened_ns) / SECOND_NS)
            self._barrier_ms.add(now_ns, (now_ns - opened_ns) / 1e6)

    def barrier_failed(self, fact: BarrierFailed, now_ns: int) -> None:
        self.counts.barriers["failed"] += 1
        self._barriers.pop((fact.task, fact.barrier), None)

    def checkpoint_started(self, fact: CheckpointStarted, now_ns: int) -> None:
        self.counts.checkpoints["started"] += 1
        self._begin_saving(fact.task, fact.checkpoint, fact.manifest, now_ns)

    def part_acked(self, fact: CheckpointPartAcked, now_ns: int) -> None:
        self.counts.checkpoint_bytes += fact.size_bytes
        _, timed = self._checkpoints.get((fact.task, fact.checkpoint), (0, False))
        if timed or self._workers.get(fact.worker) == "checkpointing":
            self._spend(now_ns)
            self._bytes.add(now_ns, fact.size_bytes)

    def checkpoint_committed(self, fact: CheckpointCommitted, now_ns: int) -> None:
        self.counts.checkpoints["committed"] += 1
        began_ns = self._end_saving(fact.task, fact.checkpoint, now_ns)
        if began_ns is not None:
            self.checkpoint_s.add((now_ns - began_ns) / SECOND_NS)
            self._checkpoint_ms.add(now_ns, (now_ns - began_ns) / 1e6)

    def checkpoint_failed(self, fact: CheckpointFailed, now_ns: int) -> None:
        self.counts.checkpoints["failed"] += 1
        self._end_saving(fact.task, fact.checkpoint, now_ns)


def follow(under_way: dict[Name, Under], name: Name, value: Under) -> Name | None:
    """Note the start of something in progress; if there are too many, remove and return the
    oldest."""
    crowded_out = None
    if len(under_way) >= MAX_UNDER_WAY:
        crowded_out = next(iter(under_way))
        del under_way[crowded_out]
    under_way[name] = value
    return crowded_out


Handler: TypeAlias = Callable[[Figures, Fact, int], None]

HANDLERS: dict[type[Fact], Handler] = {
    kind: cast("Handler", handler)
    for kind, handler in (
        (CoordinatorStarted, Figures.coordinator_started),
        (WorkerRegistered, Figures.worker_registered),
        (WorkerRejected, Figures.worker_rejected),
        (LimitHit, Figures.limit_hit),
        (WorkerStateChanged, Figures.worker_changed),
        (WorkerLost, Figures.worker_lost),
        (TaskSubmitted, Figures.task_submitted),
        (TaskStateChanged, Figures.task_changed),
        (GenerationChanged, Figures.generation_changed),
        (RecoveryChosen, Figures.recovery_chosen),
        (StepsCommitted, Figures.steps_committed),
        (RolledBack, Figures.rolled_back),
        (AssignmentChanged, Figures.assignment_changed),
        (BarrierOpened, Figures.barrier_opened),
        (BarrierReleased, Figures.barrier_released),
        (BarrierFailed, Figures.barrier_failed),
        (CheckpointStarted, Figures.checkpoint_started),
        (CheckpointPartAcked, Figures.part_acked),
        (CheckpointCommitted, Figures.checkpoint_committed),
        (CheckpointFailed, Figures.checkpoint_failed),
    )
}
