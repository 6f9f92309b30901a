"""The worker behind a `TrainingOrchestrator`: its session, its heartbeats and its record.

The beats carry what was last reported and what the process uses. A worker that was declared lost is
registered again under the same id by itself; its next request simply works. If the caller sends the
heartbeats, the session sends one only when it is told to, and a loss is final: the following calls
raise `Fenced`, until the caller registers again.
"""

from strata.config import Settings
from strata.core.worker_facts import RunEnded
from strata.core.workers import Outcome, Reported
from strata.errors import Fenced, StrataError
from strata.sdk.enrolment import Enrolment
from strata.sdk.hello import Identity
from strata.sdk.recorded_worker import REJOIN_PATIENCE_S, RecordedWorker
from strata.sdk.request_log import LAST_KINDS
from strata.sdk.resources import ResourceSampler
from strata.sdk.session import Session
from strata.wire.v1 import coordinator_pb2 as pb

FLUSH_TIMEOUT_S = 10.0


class BeatingWorker(RecordedWorker):
    """Owns the session of a worker that reports its state and step itself."""

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
        self.session = Session(
            enrolment.connection,
            self,
            enrolment.identity(answer),
            answer.heartbeat_interval_ms / 1000,
            recorder=self.recorder,
        )
        self.session.pulse.automatic = automatic
        self.begin_record(answer)
        self.session.start()

    def report(self, state: Reported, step: int, epoch: int) -> None:
        """Say in this heartbeat and the following ones what the worker does."""
        self.state, self.step, self.epoch = state, step, epoch
        self.session.pulse.beat_soon()

    def beat(self) -> pb.Beat:
        """What to say of ourselves now."""
        return pb.Beat(
            state=f"WORKER_STATE_{self.state.upper()}",
            step=self.step,
            epoch=self.epoch,
            resources=self.resources(),
        )

    def told(self, standing: pb.Standing) -> None:
        """Notes the place in the group."""
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

    def rejoin(self, error: StrataError) -> Identity:
        """Registers as a new incarnation."""
        if not self._automatic:
            raise error
        over = self.session.identity.incarnation
        answer = self._enrolment.register(REJOIN_PATIENCE_S, after=over)
        self.rank, self.world_size = answer.rank, answer.world_size
        self._seen = ()
        self.begin_record(answer)
        return self._enrolment.identity(answer)

    def leave(self, outcome: Outcome, reason: str, timeout_s: float | None) -> None:
        """Deliver what was recorded, say how this worker ended, and end the session."""
        self.recorder.emit(RunEnded(outcome, reason, self.step))
        self.recorder.seal(but=LAST_KINDS)
        try:
            self.session.flush(FLUSH_TIMEOUT_S)
            self.session.leave(pb.Leave(outcome=outcome, reason=reason), timeout_s)
        except Fenced:
            pass  # the coordinator had declared it lost already
        finally:
            self.session.close()
            self.recorder.close()
