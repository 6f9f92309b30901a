"""A simulated worker: registers, enters generations, trains in lockstep, saves, recovers, ends.

It keeps the same protocol as the SDK, so what is proven of it here is proven of the protocol.
Training is real as far as it matters: the model is a digest of every step that was applied, in
order, so a step lost or applied twice shows at the end.
"""

from typing import TYPE_CHECKING, Literal

from strata.core.barriers import ArriveAtBarrier, Barrier
from strata.core.checkpoints import Checkpoint
from strata.core.cluster import Outcome
from strata.core.recovery import EnterGeneration
from strata.core.saving import AckPart, BeginCheckpoint
from strata.core.signals import Beat
from strata.core.standing import Standing
from strata.core.worker_facts import (
    ConnectionChanged,
    ParametersRequested,
    RequestCompleted,
    RequestSubmitted,
    RunEnded,
    StepFinished,
    TrainingFinished,
    TrainingStarted,
)
from strata.core.worker_operations import (
    CheckpointDownloadCompleted,
    CheckpointDownloadStarted,
    CheckpointWriteCompleted,
    CheckpointWriteStarted,
)
from strata.core.workers import (
    DeregisterWorker,
    ReattachWorker,
    RegisterWorker,
    Reported,
    ReportState,
    Worker,
)
from strata.errors import AlreadyExists, Fenced, NotFound
from strata.sim.disk import Model
from strata.sim.process import Process
from strata.sim.witness import Witness

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation

PART_BYTES = 1_000_000


class SimWorker(Process):
    """One training process."""

    def __init__(self, sim: "Simulation", host: str, name: str, task: str, start: int) -> None:
        super().__init__(sim, host, name)
        self.task = task
        self.start = start
        self.nonce = f"{sim.world.random.random()}"
        self.model: Model | None = None
        self.standing: Standing | None = None
        self.generation = 0
        self.lanes: dict[str, list[int]] = {}
        self.world_size = 0
        self.training = False
        self.waiting = False
        self.hung = False
        self.slowness = 1.0
        self.finished = False
        self.leaving: Literal["", "done", "stopped"] = ""
        self.unacked: dict[str, AckPart] = {}
        self.barrier_requests = 0
        self.waits_at = ""
        self.data_s = 0.0
        self.witness = Witness(self)
        self._state: Reported = "initializing"

    def connect(self) -> None:
        """Registers as a new incarnation, or reattaches as the one it is."""
        if self.incarnation:
            again = ReattachWorker(worker=self.name, incarnation=self.incarnation)
            self.call(again, self._registered)
        else:
            self.call(
                RegisterWorker(
                    worker=self.name,
                    task=self.task,
                    nonce=self.nonce,
                    hostname=self.host,
                    gpu_count=1,
                    start=self.start,
                    syncs=True,
                ),
                self._registered,
            )

    def _registered(self, outcome: Outcome) -> None:
        if isinstance(outcome.refusal, Fenced):
            if self.incarnation:
                self.rejoin()
            else:
                self.exit(1)
        elif isinstance(outcome.refusal, AlreadyExists):
            self.later(self.sim.world.about(2.0), self.connect)
        elif outcome.refusal is not None:
            self.exit(0 if not isinstance(outcome.refusal, NotFound) else 1)
        else:
            assert isinstance(outcome.answer, Worker)
            first = not self.incarnation
            self.sim.workers[self.name] = self  # of two processes, the one that is known
            self.attached(outcome.answer.incarnation)
            if first:
                self.witness.begin()
                self._beat(self.incarnation)
            self.witness.record(ConnectionChanged("coordinator", "direct"))
            for part in list(self.unacked.values()):
                self.call(part, self._acked)
            if self.waits_at:
                self._arrive()
            if self.leaving:
                self._deregister(self.leaving)

    def rejoin(self) -> None:
        """It was declared lost: whatever it still holds counts for nothing; it starts over."""
        self.incarnation = 0
        self.generation = 0
        self.training = self.waiting = False
        self.waits_at = self.leaving = ""
        self.unacked.clear()
        self.nonce += "'"
        self.session += 1
        self.connect()

    def _beat(self, incarnation: int) -> None:
        if self.incarnation != incarnation or self.finished:
            return
        sim = self.sim
        if self.connected:
            self.witness.beat()
            model = self.model
            beat = (
                Beat(model.attempt, model.generation, model.steps, self.training, self.waiting)
                if model
                else Beat()
            )
            sim.network.send(
                self.host, True, sim.coordinator.beat, self, self.session, incarnation, beat
            )
        self.later(sim.scenario.heartbeat_s, self._beat, incarnation)

    def heard_pulse(self, *clocks: int) -> None:
        """The answer to a beat, which waits like everything else while the process is stopped."""
        self.later(0.0, self.witness.sampled, *clocks)

    def heard(self, message: object) -> None:
        """Its standing changed, or is told again."""
        assert isinstance(message, Standing)
        if message.incarnation != self.incarnation or self.finished:
            return
        before, self.standing = self.standing, message
        if before is None or before.generation != message.generation:
            self.witness.told(message)
        if message.task_state in ("completed", "failed", "stopped"):
            self.exit(0)
        elif message.task_state == "stopping":
            self._deregister("stopped")
        elif message.rank >= 0 and message.phase == "syncing":
            self._enter(message)
        elif message.rank >= 0 and message.phase == "running":
            if self.generation != message.generation:
                self._recover(message)
        else:
            self.training = self.waiting = False

    def _enter(self, standing: Standing) -> None:
        self.training = self.waiting = False
        model = self.model or Model(0, 0, -1)
        self.call(
            EnterGeneration(
                worker=self.name,
                incarnation=self.incarnation,
                generation=standing.generation,
                model_attempt=model.attempt,
                model_generation=model.generation,
                step=model.steps,
            )
        )

    def _recover(self, standing: Standing) -> None:
        self.generation = standing.generation
        self.training = self.waiting = False
        self.waits_at = ""
        recovery = standing.recovery
        assert recovery is not None
        wanted = (recovery.model_attempt, recovery.model_generation, recovery.step)
        model = self.model
        held = (model.attempt, model.generation, model.steps) if model else None
        if recovery.source == "peer" and model is not None and held == wanted:
            return self._train_from(standing.generation, model)
        self._report("recovering")
        seconds = self.sim.world.about(self.sim.scenario.load_s)
        if recovery.source == "peer":
            self.witness.record(ParametersRequested(recovery.worker))
            self.later(seconds, self._copy_peer, standing)
        elif recovery.source == "checkpoint":
            op = f"load-{standing.generation}"
            self.witness.record(CheckpointDownloadStarted(recovery.checkpoint, PART_BYTES), op)
            self.later(seconds, self._load, standing)
        else:
            self._train_from(standing.generation, Model(0, 0))

    def _copy_peer(self, standing: Standing) -> None:
        recovery = standing.recovery
        assert recovery is not None
        peer = self.sim.workers.get(recovery.worker)
        if peer is None or not peer.alive or self.generation != standing.generation:
            return
        ready = peer.model is not None and peer.generation == standing.generation
        if peer.model is not None and ready and not peer.paused:
            self._train_from(standing.generation, peer.model.copy())
        else:
            self.later(1.0, self._copy_peer, standing)

    def _load(self, standing: Standing) -> None:
        recovery = standing.recovery
        assert recovery is not None
        if self.generation == standing.generation:
            op = f"load-{standing.generation}"
            done = CheckpointDownloadCompleted(True, checkpoint=recovery.checkpoint)
            self.witness.record(done, op)
            model = self.sim.checkers.restored(self.task, recovery.checkpoint)
            self._train_from(standing.generation, model.copy())

    def _train_from(self, generation: int, model: Model) -> None:
        standing = self.standing
        if standing is None or self.generation != generation or standing.generation != generation:
            return
        model.attempt, model.generation = standing.attempt, generation
        self.model = model
        self.lanes = standing.lanes
        self.world_size = standing.world_size
        self.training = True
        self._report("training")
        self._next_step()

    def _next_step(self) -> None:
        model, scenario = self.model, self.sim.scenario
        assert model is not None
        if model.steps >= scenario.steps:
            return self._finish()
        if model.steps and model.steps % scenario.barrier_every == 0 and not self.waits_at:
            self.waits_at = f"step-{model.steps}"
            self.barrier_requests += 1
            self.waiting = True
            self.witness.begun("barrier")
            asked = RequestSubmitted(self.barrier_requests, "arrive", self.waits_at)
            self.witness.record(asked, f"request-{self.barrier_requests}")
            return self._arrive()
        self.waits_at = ""
        self.witness.begun("step")
        self.witness.record(TrainingStarted(f"{model.steps}", model.steps))
        computing_s = self.sim.world.about(scenario.step_s) * self.slowness
        self.later(computing_s + self.data_s, self._computed, self.generation)

    def _arrive(self) -> None:
        self.call(
            ArriveAtBarrier(
                worker=self.name,
                incarnation=self.incarnation,
                barrier=self.waits_at,
                request=self.barrier_requests,
            ),
            self._at_barrier,
        )

    def _at_barrier(self, outcome: Outcome) -> None:
        """Looks again until the barrier is released; a failed one is tried again."""
        if not self.waits_at or not self.training:
            return
        barrier = outcome.answer
        if isinstance(barrier, Barrier) and barrier.name == self.waits_at:
            if barrier.state == "released":
                self.waiting = False
                request = self.barrier_requests
                met = RequestCompleted(request, "arrive", True, barrier=self.waits_at)
                self.witness.record(met, f"request-{request}")
                return self._next_step()
            if barrier.state == "failed":
                self.barrier_requests += 1
        self.later(self.sim.world.about(2.0), self._arrive_again, self.generation)

    def _arrive_again(self, generation: int) -> None:
        if self.waits_at and self.generation == generation and self.connected:
            self._arrive()

    def _computed(self, generation: int) -> None:
        """Its share of the step is done: meets the others, unless it hangs."""
        if self.training and self.generation == generation and not self.hung:
            assert self.model is not None
            self.waiting = True
            self.witness.begun("reduce")
            self.witness.record(TrainingFinished(f"{self.model.steps}", self.model.steps))
            self.witness.announce(generation, self.model.steps)
            self.sim.all_reduce(self, generation, self.model.steps)

    def applied(self, generation: int, step: int) -> None:
        """The step's result is there: applies it."""
        model = self.model
        if not self.training or self.generation != generation or model is None:
            return
        if model.steps != step:
            return
        self.waiting = False
        model.train()
        wait_s = self.witness.took_s("reduce")
        compute_s = self.witness.took_s("step") - wait_s - self.data_s
        self.witness.record(StepFinished(step, self.data_s, compute_s, 0.0, wait_s))
        if model.steps % self.sim.scenario.save_every == 0:
            self._save(model.copy())
        self._next_step()

    def _save(self, model: Model) -> None:
        command = BeginCheckpoint(
            worker=self.name,
            incarnation=self.incarnation,
            generation=self.generation,
            step=model.steps,
            path=f"sim://{self.task}",
        )
        self.call(command, lambda outcome: self._write(model, outcome))

    def _write(self, model: Model, outcome: Outcome) -> None:
        if isinstance(outcome.answer, Checkpoint):
            seconds = self.sim.world.about(self.sim.scenario.save_s, 0.5)
            saved = outcome.answer.id
            self.witness.record(CheckpointWriteStarted(saved, PART_BYTES, model.steps), saved)
            self.later(seconds, self._written, model, outcome.answer.id, self.incarnation)

    def _written(self, model: Model, checkpoint: str, incarnation: int) -> None:
        if incarnation != self.incarnation or self.standing is None:
            return
        self.witness.record(CheckpointWriteCompleted(True, checkpoint=checkpoint), checkpoint)
        self.sim.coordinator.storage.parts[self.task, checkpoint, self.standing.rank] = model
        part = AckPart(
            worker=self.name,
            incarnation=incarnation,
            checkpoint=checkpoint,
            path=f"sim://{checkpoint}/{self.standing.rank}",
            size_bytes=PART_BYTES,
            checksum=f"{model.digest:x}",
        )
        self.unacked[checkpoint] = part
        self.call(part, self._acked)

    def _acked(self, outcome: Outcome) -> None:
        if isinstance(outcome.answer, Checkpoint):
            self.unacked.pop(outcome.answer.id, None)
        elif outcome.refusal is not None:
            self.unacked.clear()

    def _report(self, state: Reported) -> None:
        if self._state != state:
            self._state = state
            self.call(ReportState(worker=self.name, incarnation=self.incarnation, state=state))

    def _finish(self) -> None:
        assert self.model is not None
        self.sim.checkers.finished(self.task, self.model)
        self._deregister("done")

    def _deregister(self, outcome: Literal["done", "stopped"]) -> None:
        self.training = False
        if not self.leaving:
            self.witness.record(RunEnded(outcome, "", self.model.steps if self.model else 0))
            self.witness.beat()
        self.leaving = outcome
        leave = DeregisterWorker(
            worker=self.name,
            incarnation=self.incarnation,
            outcome=outcome,
            steps=self.model.steps if self.model else 0,
        )
        self.call(leave, self._left)

    def _left(self, outcome: Outcome) -> None:
        self.finished = outcome.refusal is None
        self.exit(0)

    def exit(self, code: int, signal: int = 0) -> None:
        """The process ends; its host's agent sees it."""
        if self.alive:
            self.alive = False
            self.sim.ended(self, code, signal)
