"""Keeps a registered worker alive: the session of those who only meet and do not sync.

The beats carry what was last reported. A worker that was declared lost is registered again under
the same id by itself; its next request simply works.
"""

from strata.core.workers import Reported
from strata.errors import StrataError
from strata.sdk.channel import Connection
from strata.sdk.enrolment import Enrolment
from strata.sdk.hello import Identity
from strata.sdk.session import Session
from strata.wire.v1 import coordinator_pb2 as pb

REJOIN_PATIENCE_S = 5.0


class BeatingWorker:
    """Owns the session of a worker that records nothing."""

    def __init__(
        self, connection: Connection, enrolment: Enrolment, answer: pb.RegisterWorkerResponse
    ) -> None:
        self.state: Reported = "idle"
        self.step = 0
        self.epoch = 0
        self.rank = answer.rank
        self.world_size = answer.world_size
        self._enrolment = enrolment
        interval_s = answer.heartbeat_interval_ms / 1000
        self.session = Session(connection, self, enrolment.identity(answer), interval_s)
        self.session.start()

    def beat(self) -> pb.Beat:
        """What to say of ourselves now."""
        state = f"WORKER_STATE_{self.state.upper()}"
        return pb.Beat(state=state, step=self.step, epoch=self.epoch)

    def tick(self) -> None:
        """Nothing is recorded here."""

    def told(self, standing: pb.Standing) -> None:
        """Notes the place in the group."""
        self.rank, self.world_size = standing.rank, standing.world_size

    def rejoin(self, error: StrataError) -> Identity:
        """Registers as a new incarnation."""
        over = self.session.identity.incarnation
        answer = self._enrolment.register(REJOIN_PATIENCE_S, after=over)
        self.rank, self.world_size = answer.rank, answer.world_size
        return self._enrolment.identity(answer)
