"""The worker of a `TrainingOrchestrator`: its session, heartbeats and record.

Heartbeats contain the last reported state and the resources. A worker that was declared lost is
registered again automatically under the same id, and its next request succeeds. If the caller sends
the heartbeats itself, a loss is final: the following calls raise `Fenced` until the caller
registers again.
"""

from strata.config import Settings
from strata.core.state import Outcome, Reported
from strata.core.workers.worker_facts import RunEnded
from strata.errors import Fenced, StrataError
from strata.sdk.record.resource_sampler import ResourceSampler
from strata.sdk.session.recorded_worker import REJOIN_TIMEOUT_S, RecordedWorker
from strata.sdk.session.registration import Enrolment, WorkerIdentity
from strata.sdk.session.requests import LAST_KINDS
from strata.sdk.session.worker_session import WorkerSession
from strata.wire.v1 import coordinator_pb2 as pb

FLUSH_TIMEOUT_S = 10.0


class OrchestratorWorker(RecordedWorker):
    """A worker that reports its state and step explicitly; owns its session."""

    def __init__(
        self,
        enrolment: Enrolment,
        answer: pb.RegisterWorkerResponse,
        sampler: ResourceSampler,
        settings: Settings,
        *,
        automatic: bool,
    ) -> None:
        super().__init__(enrolment, sampler, settings)
        self.state: Reported = "idle"
        self.step = 0
        self.epoch = 0
        self.rank = answer.rank
        self.world_size = answer.world_size
        self._automatic = automatic
        self._seen: tuple[object, ...] = ()
        self.session = WorkerSession(
            enrolment.connection,
            self,
            enrolment.identity(answer),
            answer.heartbeat_interval_ms / 1000,
            recorder=self.recorder,
        )
        self.session.heartbeat.automatic = automatic
        self.begin_record(answer)
        self.session.start()

    def report(self, state: Reported, step: int, epoch: int) -> None:
        """Set the state for this heartbeat and the following ones."""
        self.state, self.step, self.epoch = state, step, epoch
        self.session.heartbeat.beat_soon()

    def beat(self) -> pb.Beat:
        """The heartbeat to send now."""
        return pb.Beat(
            state=f"WORKER_STATE_{self.state.upper()}",
            step=self.step,
            epoch=self.epoch,
            resources=self.resources(),
            host=self.host(),
        )

    def apply_standing(self, standing: pb.Standing) -> None:
        """Apply rank and world size, and record a changed standing."""
        self.rank, self.world_size = standing.rank, standing.world_size
        seen = (
            standing.task_state,
            standing.generation,
            standing.phase,
            standing.rank,
            standing.world_size,
            standing.attempt,
        )
        if seen != self._seen:
            self._seen = seen
            self.state_seen(standing)

    def rejoin(self, error: StrataError) -> WorkerIdentity:
        """Register as a new incarnation."""
        if not self._automatic:
            raise error
        over = self.session.identity.incarnation
        answer = self._enrolment.register(REJOIN_TIMEOUT_S, after=over)
        self.rank, self.world_size = answer.rank, answer.world_size
        self._seen = ()
        self.begin_record(answer)
        return self._enrolment.identity(answer)

    def leave(self, outcome: Outcome, reason: str, timeout_s: float | None) -> None:
        """Deliver the recorded events, report the outcome, and end the session."""
        self.recorder.emit(RunEnded(outcome=outcome, reason=reason, steps=self.step))
        self.recorder.seal(but=LAST_KINDS)
        try:
            self.session.flush(FLUSH_TIMEOUT_S)
            self.session.leave(pb.Leave(outcome=outcome, reason=reason), timeout_s)
        except Fenced:
            pass  # the coordinator had already declared it lost
        finally:
            self.session.close()
            self.end_record()
