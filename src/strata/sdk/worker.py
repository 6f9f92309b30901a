"""The worker behind a run: what its session asks of it.

It beats with the state, the progress and the resources of this process, follows the standing, and
when it was declared lost registers as a new incarnation: whatever it held counts for nothing
then, so the script finds that the membership changed and enters like a newcomer.
"""

import logging
from collections.abc import Callable

from strata.config import Settings
from strata.core.workers import Reported
from strata.errors import StrataError
from strata.sdk.due import Due
from strata.sdk.enrolment import Enrolment
from strata.sdk.hello import Identity
from strata.sdk.lines import LineBuffer
from strata.sdk.meeting import MeetingPlace
from strata.sdk.membership import Membership
from strata.sdk.recorded_worker import REJOIN_PATIENCE_S, RecordedWorker
from strata.sdk.resources import ResourceSampler
from strata.sdk.session import Session
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


class Worker(RecordedWorker):
    """Owns the session and everything that feeds it."""

    def __init__(
        self,
        enrolment: Enrolment,
        answer: pb.RegisterWorkerResponse,
        sampler: ResourceSampler,
        settings: Settings,
        reconnect_limit_s: float | None = None,
    ) -> None:
        super().__init__(enrolment, sampler, settings)
        connection = self.connection = enrolment.connection
        self.lines = LineBuffer(least_level=settings.capture_level)
        self.meeting = MeetingPlace(connection.address)
        self.membership = Membership(self.meeting.address)
        self.state: Reported = "initializing"
        self.waiting = False
        self.epoch = 0
        self.loss: float | None = None
        self.busy_s = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self.session = Session(
            connection,
            self,
            enrolment.identity(answer),
            answer.heartbeat_interval_ms / 1000,
            recorder=self.recorder,
            lines=self.lines,
            give_up_after_s=reconnect_limit_s,
        )
        self.due = Due(self.membership, self.session)
        self.saving: Callable[[], pb.Saving | None] = lambda: None
        self.begin_record(answer)

    def beat(self) -> pb.Beat:
        """What to say of ourselves now."""
        model = self.membership.model
        return pb.Beat(
            state=f"WORKER_STATE_{self.state.upper()}",
            attempt=model.attempt,
            generation=model.generation,
            step=model.step,
            epoch=self.epoch,
            waiting=self.waiting,
            save_request=self.due.request,
            saving=self.saving(),
            resources=self.resources(),
            loss=self.loss,
            busy_s=self.busy_s,
        )

    def tick(self) -> None:
        """Records what is used, now and then, and does what others want done."""
        for each in self.on_tick:
            each()
        super().tick()

    def told(self, standing: pb.Standing) -> None:
        """Takes the standing in; a request for a checkpoint is echoed at once."""
        self.due.told(standing)
        if self.due.request:
            self.session.pulse.beat_soon()
        if self.membership.told(standing):
            self.state_seen(standing)

    def rejoin(self, error: StrataError) -> Identity:
        """Registers as a new incarnation."""
        log.warning("rejoining as a new incarnation: %s", error.message)
        over = self.session.identity.incarnation
        answer = self._enrolment.register(REJOIN_PATIENCE_S, after=over)
        with self.session.news:
            self.membership.begin_again()
            self.state = "initializing"
            self.session.news.notify_all()
        self.begin_record(answer)
        return self._enrolment.identity(answer)

    def close(self) -> None:
        """Ends the recording and lets go of the network; the session was closed before."""
        self.recorder.close()
        self.connection.close()
        self.meeting.close()
