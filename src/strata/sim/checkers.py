"""What must be true of a simulated run, checked from outside the core.

After every turn: the invariants of the state, and from the facts alone: steps commit without gap
or overlap, barriers are released once and only when everyone is there, generations and
incarnations only grow. While training: the lanes of a step's workers cover it exactly once, and
only committed checkpoints are restored. At the end: each finished model was trained on every step
once and in order, and replaying the log gives the live state.
"""

from msgspec import Struct, field

from strata.core import state as cluster_state
from strata.core.barriers import BarrierArrived, BarrierFailed, BarrierOpened, BarrierReleased
from strata.core.checkpoints import CheckpointCommitted, CheckpointDeleted, CheckpointFailed
from strata.core.cluster import CoordinatorStarted, fold
from strata.core.events import Event
from strata.core.generations import GenerationChanged
from strata.core.invariants import Historian, broken
from strata.core.recovery import RecoveryChosen, RolledBack, StepsCommitted
from strata.core.state import Cluster
from strata.core.workers import WorkerRegistered, WorkerStateChanged
from strata.sim.disk import SimDisk
from strata.sim.models import Model, SimStorages, step_digest
from strata.sim.promises import Broken


class _Run(Struct):
    """What the facts so far say of a task, folded independently of the core."""

    generation: int = 0
    attempt: int = 1
    committed: int = 0
    members: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    arrived: dict[tuple[str, int], dict[str, tuple[int, int]]] = field(default_factory=dict)
    released: set[tuple[str, int]] = field(default_factory=set)
    checkpoints: dict[str, int] = field(default_factory=dict)


class Checkers:
    """Watches a run and raises `Broken` at the first broken promise.

    The facts of every turn are checked. The invariants look at the whole state, which takes its
    time in a large fleet: there they are checked after every `check_every` turns.
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
        self._historian = Historian()
        self._runs: dict[str, _Run] = {}
        self._coordinator = 0
        self._incarnation = 0

    def after_turn(self, state: Cluster, events: list[Event]) -> None:
        """Checks the facts of a turn and the state after it."""
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
            self._require(body.incarnation > self._coordinator, "a coordinator came twice")
            self._coordinator = body.incarnation
        elif isinstance(body, WorkerRegistered):
            self._require(body.incarnation > self._incarnation, "an incarnation came twice")
            self._incarnation = body.incarnation
        elif isinstance(body, GenerationChanged):
            run = self._runs.setdefault(body.task, _Run())
            self._require(body.generation == run.generation + 1, "a generation was skipped")
            run.generation = body.generation
            run.members = (run.members - set(body.left)) | set(body.joined)
            self._require(len(run.members) == body.world_size, "the world has another size")
            for arrived in run.arrived.values():
                for worker in body.left:
                    arrived.pop(worker, None)
        elif isinstance(body, WorkerStateChanged):
            if body.finished:
                self._runs[body.task].finished.add(body.worker)
        elif isinstance(body, StepsCommitted | RolledBack | RecoveryChosen):
            self._check_progress(self._runs[body.task], body)
        elif isinstance(body, BarrierOpened | BarrierArrived | BarrierReleased | BarrierFailed):
            self._check_barrier(self._runs[body.task], body)
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
            self._require(body.origin == run.committed, "a rollback from elsewhere")
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
            self._require(body.worker in run.members, f"an outsider is at barrier {key}")
            arrival = (body.incarnation, body.request)
            before = run.arrived[key].get(body.worker, (0, 0))
            self._require(arrival > before, f"an arrival at {key} was counted twice")
            run.arrived[key][body.worker] = arrival
        elif isinstance(body, BarrierReleased):
            # Of a release that was told before it was stored, not every arrival is known.
            everyone = run.members - run.finished <= set(run.arrived[key])
            self._require(everyone or body.told > 0, f"barrier {key} was released early")
            self._require(key not in run.released, f"barrier {key} was released twice")
            run.released.add(key)
            del run.arrived[key]
        else:
            del run.arrived[key]

    def trained(self, lanes: list[list[int]], count: int) -> None:
        """A step is computed by workers with these lanes: they cover it exactly once."""
        held = sorted(lane for share in lanes for lane in share)
        self._require(held == list(range(count)), "a step's samples are not covered exactly once")

    def restored(self, task: str, checkpoint: str) -> Model:
        """A worker reads a checkpoint: it has a manifest and holds what the steps made of it."""
        model = self.storages.of(task).load(checkpoint)
        if model is None:
            raise Broken(f"checkpoint {checkpoint} of {task} is restored and has no manifest")
        return model

    def finished(self, task: str, model: Model) -> None:
        """A worker ended with this model."""
        if model.steps == self._steps:
            self._require(
                model.digest == self._expected, f"{task}: a step was lost or applied twice"
            )
            self.models[task] = model

    def at_end(self, state: Cluster, disk: SimDisk) -> None:
        """The run is over: completed tasks are whole, and the log gives the live state."""
        for task in state.tasks.values():
            if task.state == "completed":
                committed = self._runs[task.id].committed
                self._require(committed == self._steps, f"{task.id} ended at step {committed}")
                self._require(task.id in self.models, f"{task.id} completed without a model")
        replayed = fold(Cluster(), disk.read())
        same = cluster_state.encode(replayed) == cluster_state.encode(state)
        self._require(same, "replaying the log does not give the live state")

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Broken(otherwise)
