"""A simulated worker: registers, enters generations, trains in lockstep, saves, recovers, ends.

It follows the same protocol as the SDK, so what is shown for it holds for the protocol. Its model
is a digest of every applied step, in order, so a step that is lost or applied twice shows at the
end.
"""

from typing import TYPE_CHECKING, Literal

from strata.core.state import Reported
from strata.core.workers.exchange_facts import ConnectionChanged, ParametersRequested
from strata.core.workers.worker_facts import (
    RequestCompleted,
    RequestSubmitted,
    RunEnded,
    StepFinished,
    TrainingFinished,
    TrainingStarted,
)
from strata.core.workers.worker_operations import (
    CheckpointDownloadCompleted,
    CheckpointDownloadStarted,
    CheckpointWriteCompleted,
    CheckpointWriteStarted,
)
from strata.errors import StrataError
from strata.sim.coordinator_checks import named_reason
from strata.sim.sim_models import PART_BYTES, Model
from strata.sim.sim_recorder import SimRecorder
from strata.sim.sim_session import SimSession
from strata.wire.messages.worker_messages import STATE_NUMBERS
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation

DATASET = "sim"


class SimWorker(SimSession):
    """One training process."""

    def __init__(self, sim: "Simulation", host: str, name: str, task: str, start: int) -> None:
        super().__init__(sim, host, name, task, start)
        self.model: Model | None = None
        self.standing: pb.Standing | None = None
        self.generation = 0
        self.entered = 0
        self.lanes: list[int] = []
        self.world_size = 0
        self.training = False
        self.waiting = False
        self.hung = False
        self.slowness = 1.0
        self.finished = False
        self.saving = 0
        self.cannot_write = False
        self.arrivals = 0
        self.arrived_at: set[tuple[int, str]] = set()
        self.waits_at = ""
        self.data_s = 0.0
        self.witness = SimRecorder(self)
        self._arrival = 0
        self._state: Reported = "initializing"

    def joined(self) -> None:
        """Start to record events and send heartbeats."""
        self.sim.workers[self.name] = self  # of two processes with the same id, the registered one
        self.witness.begin()
        self._beat(self.incarnation)

    def ended(self, code: int, signal: int) -> None:
        """Tell the agent of the host that the process ended."""
        self.sim.ended(self, code, signal)

    def over(self) -> None:
        """Start over after it was declared lost, without its model."""
        self.generation = self.entered = 0
        self.training = self.waiting = False
        self.waits_at = ""
        self.saving = 0
        self.standing = None
        self._state = "initializing"

    def _beat(self, incarnation: int) -> None:
        if self.incarnation != incarnation or self.finished:
            return
        if self.connected:
            self.witness.send()
            self._beat_now()
        self.later(self.sim.scenario.heartbeat_s, self._beat, incarnation)

    def _beat_now(self) -> None:
        model, standing = self.model or Model(attempt=0, generation=0, steps=-1), self.standing
        beat = pb.Beat(
            state=pb.WorkerState.Name(STATE_NUMBERS["training" if self.training else self._state]),
            attempt=model.attempt,
            generation=model.generation,
            step=model.steps,
            waiting=self.waiting,
            sent_mono_ns=self.sim.world.now_ns,
            save_request=standing.checkpoint_requests if standing and not self.saving else 0,
        )
        for observe in self.sim.on_beat:
            observe(self, beat)
        self.say(pb.WorkerMessage(beat=beat), sign="beat")

    def _report(self, state: Reported) -> None:
        """Report a state at once."""
        if self._state != state:
            self._state = state
            if self.connected:
                self._beat_now()

    def pulsed(self, pulse: pb.Pulse) -> None:
        """Take the answer to a heartbeat."""
        self.witness.sampled(pulse)

    def stored(self, seq: int, again: bool = False) -> None:
        """Drop stored events; on a new stream send the others again."""
        self.witness.stored(seq)
        if again:
            self._beat_now()
            self.witness.record(ConnectionChanged(peer="coordinator", path="direct"))
            self.witness.resend()
            self.witness.send()

    def stands(self, standing: pb.Standing) -> None:
        """Act on its state as sent by the coordinator."""
        if self.finished:
            return
        before, self.standing = self.standing, standing
        if before is None or before.generation != standing.generation:
            self.witness.standing_received(standing)
        if standing.task_state in ("completed", "failed", "stopped"):
            self.exit(0)
        elif standing.task_state == "stopping" or standing.released:
            self._leave("stopped")
        elif standing.rank >= 0 and standing.phase == "syncing":
            self._enter(standing)
        elif standing.rank >= 0 and standing.phase == "running":
            if self.generation != standing.generation:
                self._recover(standing)
        else:
            self._pause_training()

    def _pause_training(self) -> None:
        self.training = self.waiting = False
        if self._state == "training":
            self._state = "idle"

    def _enter(self, standing: pb.Standing) -> None:
        self._pause_training()
        if self.entered == standing.generation:
            return
        self.entered = standing.generation
        model = self.model or Model(attempt=0, generation=0, steps=-1)
        entry = pb.Enter(
            generation=standing.generation,
            model_attempt=model.attempt,
            model_generation=model.generation,
            step=model.steps,
        )
        self.ask("enter", entry, _ignore)

    def _recover(self, standing: pb.Standing) -> None:
        self.generation = standing.generation
        self._pause_training()
        self._give_up_barrier()
        recovery = standing.recovery
        wanted = (recovery.model_attempt, recovery.model_generation, recovery.step)
        model = self.model
        held = (model.attempt, model.generation, model.steps) if model else None
        if recovery.source == "peer" and model is not None and held == wanted:
            return self._train_from(standing.generation, model)
        self._report("recovering")
        seconds = self.sim.world.about(self.sim.scenario.load_s)
        if recovery.source == "peer":
            self.witness.record(ParametersRequested(peer=recovery.worker_id))
            self.later(seconds, self._copy_peer, standing)
        elif recovery.source == "checkpoint":
            op, checkpoint = f"load-{standing.generation}", recovery.checkpoint_id
            self.witness.record(
                CheckpointDownloadStarted(checkpoint=checkpoint, size_bytes=PART_BYTES), op
            )
            self.later(seconds, self._load, standing)
        else:
            self._train_from(standing.generation, Model(attempt=0, generation=0))

    def _copy_peer(self, standing: pb.Standing) -> None:
        peer = self.sim.workers.get(standing.recovery.worker_id)
        if peer is None or not peer.alive or self.generation != standing.generation:
            return
        ready = peer.model is not None and peer.generation == standing.generation
        if peer.model is not None and ready and not peer.paused:
            self._train_from(standing.generation, peer.model.copy())
        else:
            self.later(1.0, self._copy_peer, standing)

    def _load(self, standing: pb.Standing) -> None:
        if self.generation == standing.generation:
            op, checkpoint = f"load-{standing.generation}", standing.recovery.checkpoint_id
            done = CheckpointDownloadCompleted(ok=True, checkpoint=checkpoint)
            self.witness.record(done, op)
            model = self.sim.checkers.restored(self.task, checkpoint)
            self._train_from(standing.generation, model.copy())

    def _train_from(self, generation: int, model: Model) -> None:
        standing = self.standing
        if standing is None or self.generation != generation or standing.generation != generation:
            return
        if DATASET not in standing.lanes:
            return self._attach(generation, model)
        model.attempt, model.generation = standing.attempt, generation
        self.model = model
        self.lanes = list(standing.lanes[DATASET].lanes)
        self.world_size = standing.world_size
        self.training = True
        self._report("training")
        self._next_step()

    def _attach(self, generation: int, model: Model) -> None:
        """Attach the dataset; the message with its lanes comes before the answer."""
        lanes = self.sim.lanes
        wanted = pb.AttachDataset(
            dataset_id=DATASET, unit="lane", global_batch=lanes, lanes=lanes, epochs=1
        )

        def then(answer: pb.CoordinatorMessage | None, error: StrataError | None) -> None:
            if error is None:
                self._train_from(generation, model)
            else:
                self.later(1.0, self._train_from, generation, model)

        self.ask("attach", wanted, then)

    def _next_step(self) -> None:
        model, scenario = self.model, self.sim.scenario
        assert model is not None
        if model.steps >= scenario.steps:
            return self._finish()
        if model.steps and model.steps % scenario.barrier_every == 0 and not self.waits_at:
            self.waits_at = f"step-{model.steps}"
            return self._arrive()
        self.waits_at = ""
        self.witness.begun("step")
        self.witness.record(TrainingStarted(batch=f"{model.steps}", step=model.steps))
        computing_s = self.sim.world.about(scenario.step_s) * self.slowness
        self.later(computing_s + self.data_s, self._computed, self.generation)

    def _arrive(self) -> None:
        self.arrivals += 1
        self.waiting = True
        self.witness.begun("barrier")
        self.arrived_at.add((self.generation, self.waits_at))
        arrive = pb.Arrive(
            barrier_id=self.waits_at,
            step=self.model.steps if self.model else 0,
            arrival=self.arrivals,
            generation=self.generation,
            after=self.left.round_of(self.waits_at),
        )
        self._arrival = request = self.ask("arrive", arrive, self._met)
        asked = RequestSubmitted(request=request, type="arrive", barrier=self.waits_at)
        self.witness.record(asked, f"request-{request}")

    def _met(self, answer: pb.CoordinatorMessage | None, error: StrataError | None) -> None:
        """Continue after a barrier; retry one that failed."""
        request, self._arrival = self._arrival, 0
        if not self.waits_at or not self.training or self.model is None:
            return
        if answer is not None and answer.barrier.outcome.released:
            self.waiting = False
            self.left.note(self.waits_at, self.model.steps, answer.barrier.outcome)
            self.sim.met(self)
            met = RequestCompleted(request=request, type="arrive", ok=True, barrier=self.waits_at)
            self.witness.record(met, f"request-{request}")
            self._next_step()
        else:
            self.later(self.sim.world.about(2.0), self._arrive_again, self.generation)

    def _arrive_again(self, generation: int) -> None:
        if self.waits_at and self.generation == generation and not self._arrival:
            self._arrive()

    def _give_up_barrier(self) -> None:
        self.forget(self._arrival)
        self.waits_at, self._arrival = "", 0

    def _computed(self, generation: int) -> None:
        """Join the all-reduce after computing its share, unless it hangs."""
        if self.training and self.generation == generation and not self.hung:
            assert self.model is not None
            self.waiting = True
            self.witness.begun("reduce")
            self.witness.record(
                TrainingFinished(batch=f"{self.model.steps}", step=self.model.steps)
            )
            self.witness.announce(generation, self.model.steps)
            self.sim.all_reduce(self, generation, self.model.steps)

    def applied(self, generation: int, step: int) -> None:
        """Apply the result of a step."""
        model = self.model
        if not self.training or self.generation != generation or model is None:
            return
        if model.steps != step:
            return
        self.waiting = False
        model.train()
        wait_s = self.witness.took_s("reduce")
        compute_s = self.witness.took_s("step") - wait_s - self.data_s
        self.witness.record(
            StepFinished(
                step=step,
                data_s=self.data_s,
                compute_s=compute_s,
                communication_s=0.0,
                wait_s=wait_s,
                generation=generation,
            )
        )
        scheduled = self.standing.save_at if self.standing is not None else 0
        if model.steps % self.sim.scenario.save_every == 0 or model.steps == scheduled:
            self._save(model.copy())
        self._next_step()

    @property
    def place(self) -> str:
        """The function that it is in."""
        if self.waits_at:
            return "barrier"
        return "all_reduce" if self.waiting else "compute"

    def request_save(self) -> None:
        """Request a checkpoint."""
        if self.incarnation:
            wanted = pb.RequestSave(reason=named_reason(self.incarnation, "is asked to end"))
            self.ask("request_save", wanted, _ignore)

    def _save(self, model: Model) -> None:
        begin = pb.BeginCheckpoint(
            generation=self.generation, step=model.steps, path=f"sim://{self.task}"
        )

        def then(answer: pb.CoordinatorMessage | None, error: StrataError | None) -> None:
            if answer is not None:
                self._write(model, answer.checkpoint.checkpoint.checkpoint_id)

        self.ask("begin_checkpoint", begin, then)

    def _write(self, model: Model, checkpoint: str) -> None:
        self.saving += 1
        seconds = self.sim.world.about(self.sim.scenario.save_s, 0.5)
        started = CheckpointWriteStarted(
            checkpoint=checkpoint, size_bytes=PART_BYTES, step=model.steps
        )
        self.witness.record(started, checkpoint)
        self.later(seconds, self._written, model, checkpoint, self.incarnation)

    def _written(self, model: Model, checkpoint: str, incarnation: int) -> None:
        if incarnation != self.incarnation or self.standing is None:
            return
        self.saving -= 1
        if self.cannot_write:
            self.cannot_write = False
            return self._fail(checkpoint)
        self.witness.record(CheckpointWriteCompleted(ok=True, checkpoint=checkpoint), checkpoint)
        rank = self.standing.rank
        self.sim.coordinator.storages.of(self.task).save(checkpoint, rank, self.world_size, model)
        part = pb.AckPart(
            checkpoint_id=checkpoint,
            path=f"sim://{checkpoint}/{rank}",
            size_bytes=PART_BYTES,
            checksum=model.checksum,
        )
        self.ask("ack_part", part, _ignore)

    def _fail(self, checkpoint: str) -> None:
        reason = named_reason(self.incarnation, "cannot write its part")
        failed = CheckpointWriteCompleted(ok=False, error=reason, checkpoint=checkpoint)
        self.witness.record(failed, checkpoint)
        self.ask("fail_part", pb.FailPart(checkpoint_id=checkpoint, reason=reason), _ignore)

    def _finish(self) -> None:
        assert self.model is not None
        self.sim.checkers.finished(self.task, self.model)
        self._leave("done")

    def _leave(self, outcome: Literal["done", "stopped"]) -> None:
        self._pause_training()
        if self.leaving:
            return
        self.leaving = outcome
        steps = self.model.steps if self.model else 0
        self.witness.record(RunEnded(outcome=outcome, reason="", steps=steps))
        if self.connected:
            self.witness.send()
        self.ask("leave", pb.Leave(outcome=outcome, steps=steps), self._left)

    def _left(self, answer: pb.CoordinatorMessage | None, error: StrataError | None) -> None:
        self.finished = error is None
        self.exit(0)


def _ignore(answer: pb.CoordinatorMessage | None, error: StrataError | None) -> None:
    """Ignore an answer."""
