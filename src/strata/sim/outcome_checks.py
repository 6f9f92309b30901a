"""Checks of a simulated run, made from outside the core.

After every turn: the invariants of the state, and from the facts alone: steps commit without gap or
overlap, barriers are released once and only when every member is there, generations and
incarnations only grow. While training: the lanes of a step's workers cover it exactly once, and
only committed checkpoints are restored. At the end: each finished model was trained on every step
once and in order, and replaying the log gives the live state.
"""

from msgspec import Struct, field

from strata.core import state as cluster_state
from strata.core.barriers.barrier_rules import (
    BarrierArrived,
    BarrierFailed,
    BarrierOpened,
    BarrierReleased,
)
from strata.core.checkpoints.checkpoint_lifecycle import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
)
from strata.core.cluster import CoordinatorStarted, fold
from strata.core.events import Event
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen, RolledBack, StepsCommitted
from strata.core.hosts.host_exclusion import HostExcluded, HostIncluded
from strata.core.invariants import HistoryChecker, broken
from strata.core.state import Cluster
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.workers.worker_lifecycle import WorkerRegistered, WorkerStateChanged
from strata.sim.coordinator_checks import Broken
from strata.sim.sim_disk import SimDisk
from strata.sim.sim_models import Model, SimStorages, step_digest


class _Run(Struct):
    """The state of a task by its facts, folded independently of the core."""

    generation: int = 0
    attempt: int = 1
    committed: int = 0
    members: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    arrived: dict[tuple[str, int], dict[str, tuple[int, int]]] = field(default_factory=dict)
    released: set[tuple[str, int]] = field(default_factory=set)
    checkpoints: dict[str, int] = field(default_factory=dict)


class Checkers:
    """Watches a run and raises `Broken` at the first broken guarantee.

    The facts of every turn are checked. The invariants scan the whole state, which is slow in a
    large fleet: there they are checked after every `check_every` turns.
    """

    def __init__(self, storages: SimStorages, steps: int, check_every: int = 1) -> None:
        self.storages = storages
        self.check_every = check_every
        self._turns = 0
        self.models: dict[str, Model] = {}
        self.facts = 0
        self._expected = 0
        for step in range(steps):
            self._expected = step_digest(self._expected, step)
        self._steps = steps
        self._historian = HistoryChecker()
        self._runs: dict[str, _Run] = {}
        self._excluded: set[str] = set()
        self._coordinator = 0
        self._incarnation = 0

    def after_turn(self, state: Cluster, events: list[Event]) -> None:
        """Check the facts of a turn and the state after it."""
        for event in events:
            self._require(event.seq == self.facts, f"fact {event.seq} follows {self.facts - 1}")
            self.facts += 1
            for fault in self._historian.jumped(event.body):
                raise Broken(fault)
            self._check_fact(event)
        self._turns += 1
        if self._turns % self.check_every == 0:
            for fault in broken(state) + self._historian.shrunk(state):
                raise Broken(fault)

    def _check_fact(self, event: Event) -> None:
        body = event.body
        if isinstance(body, CoordinatorStarted):
            self._require(body.incarnation > self._coordinator, "a coordinator's number repeats")
            self._coordinator = body.incarnation
        elif isinstance(body, WorkerRegistered):
            self._require(body.incarnation > self._incarnation, "an incarnation was used twice")
            self._incarnation = body.incarnation
        elif isinstance(body, GenerationChanged):
            run = self._runs.setdefault(body.task, _Run())
            self._require(body.generation == run.generation + 1, "a generation was skipped")
            run.generation = body.generation
            run.members = (run.members - set(body.left)) | set(body.joined)
            self._require(len(run.members) == body.world_size, "the world size is wrong")
            for arrived in run.arrived.values():
                for worker in body.left:
                    arrived.pop(worker, None)
        elif isinstance(body, WorkerStateChanged):
            if body.finished:
                self._runs.setdefault(body.task, _Run()).finished.add(body.worker)
        elif isinstance(body, StepsCommitted | RolledBack | RecoveryChosen):
            self._check_progress(self._runs[body.task], body)
        elif isinstance(body, BarrierOpened | BarrierArrived | BarrierReleased | BarrierFailed):
            self._check_barrier(self._runs[body.task], body)
        elif isinstance(body, HostExcluded):
            self._excluded.add(body.host)
        elif isinstance(body, HostIncluded):
            self._excluded.discard(body.host)
        elif isinstance(body, TaskPlaced):
            used = {placement.agent for placement in body.placements.values()}
            self._require(not used & self._excluded, "a worker was placed on an excluded host")
        elif isinstance(body, CheckpointCommitted):
            self._runs[body.task].checkpoints[body.checkpoint] = body.step
        elif isinstance(body, CheckpointFailed | CheckpointDeleted):
            self._runs[body.task].checkpoints.pop(body.checkpoint, None)

    def _check_progress(
        self, run: _Run, body: StepsCommitted | RolledBack | RecoveryChosen
    ) -> None:
        if isinstance(body, StepsCommitted):
            self._require(body.first == run.committed, f"step {body.first} after {run.committed}")
            self._require(body.attempt == run.attempt, "an old attempt committed")
            run.committed = body.last + 1
        elif isinstance(body, RolledBack):
            self._require(body.origin == run.committed, "a rollback starts at a wrong step")
            self._require(body.attempt == run.attempt + 1, "an attempt was skipped")
            run.attempt, run.committed = body.attempt, body.to
        elif body.source == "checkpoint":
            self._require(
                run.checkpoints.get(body.checkpoint) == body.step,
                f"checkpoint {body.checkpoint} is restored and not committed",
            )

    def _check_barrier(
        self, run: _Run, body: BarrierOpened | BarrierArrived | BarrierReleased | BarrierFailed
    ) -> None:
        key = (body.barrier, body.round)
        if isinstance(body, BarrierOpened):
            self._require(key not in run.arrived, f"barrier {key} was opened twice")
            run.arrived[key] = {}
        elif isinstance(body, BarrierArrived):
            self._require(
                body.worker in run.members,
                f"a worker outside the generation arrived at barrier {key}",
            )
            arrival = (body.incarnation, body.request)
            before = run.arrived[key].get(body.worker, (0, 0))
            self._require(arrival > before, f"an arrival at {key} was counted twice")
            run.arrived[key][body.worker] = arrival
        elif isinstance(body, BarrierReleased):
            # If a release was sent before it was stored, not every arrival is known.
            everyone = run.members - run.finished <= set(run.arrived[key])
            self._require(everyone or body.told > 0, f"barrier {key} was released early")
            self._require(key not in run.released, f"barrier {key} was released twice")
            run.released.add(key)
            del run.arrived[key]
        else:
            del run.arrived[key]

    def trained(self, lanes: list[list[int]], count: int) -> None:
        """Check that the lanes of the workers cover a step exactly once."""
        held = sorted(lane for share in lanes for lane in share)
        self._require(held == list(range(count)), "a step's samples are not covered exactly once")

    def restored(self, task: str, checkpoint: str) -> Model:
        """Check that a restored checkpoint has a manifest and the right model."""
        model = self.storages.of(task).load(checkpoint)
        if model is None:
            raise Broken(f"checkpoint {checkpoint} of {task} is restored and has no manifest")
        return model

    def finished(self, task: str, model: Model) -> None:
        """Check the model of a worker that finished."""
        if model.steps == self._steps:
            self._require(
                model.digest == self._expected, f"{task}: a step was lost or applied twice"
            )
            self.models[task] = model

    def at_end(self, state: Cluster, disk: SimDisk) -> None:
        """Check the end of a run: tasks are complete, and the log gives the live state."""
        for task in state.tasks.values():
            if task.state == "completed" and not task.spec.external:
                committed = self._runs[task.id].committed
                self._require(committed == self._steps, f"{task.id} ended at step {committed}")
                self._require(task.id in self.models, f"{task.id} completed without a model")
        replayed = fold(Cluster(), disk.read())
        same = cluster_state.encode(replayed) == cluster_state.encode(state)
        self._require(same, "replaying the log does not give the live state")

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Broken(otherwise)
