"""The worker of a run, as its session sees it.

Its heartbeats contain the state, the progress and the resources of this process. It applies each
standing, and registers as a new incarnation after it was declared lost: its model is void then, so
the script sees a membership change and enters like a new worker.
"""

import logging
from collections.abc import Callable

from strata.config import Settings
from strata.core.state import Reported
from strata.core.workers.stack_reports import PendingExchange, StackReport
from strata.errors import StrataError
from strata.sdk.record.line_buffer import LineBuffer
from strata.sdk.record.own_stacks import own_report
from strata.sdk.record.resource_sampler import ResourceSampler
from strata.sdk.session.channel import MeetingPlace
from strata.sdk.session.membership import Membership
from strata.sdk.session.recorded_worker import REJOIN_TIMEOUT_S, RecordedWorker
from strata.sdk.session.registration import Enrolment, WorkerIdentity
from strata.sdk.session.worker_session import WorkerSession
from strata.sdk.state.save_policy import SaveSchedule
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

SMOOTHED = 0.8
"""The weight of the earlier steps in the mean time of a step."""


class RunWorker(RecordedWorker):
    """The worker of a run: owns the session, the membership and the recorder."""

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
        self.peer_timeout_s = settings.peer_timeout_s
        self.epoch = 0
        self.loss: float | None = None
        self.busy_s = self.data_s = 0.0
        self._busy_generation = 0
        self.on_tick: list[Callable[[], None]] = []
        self.session = WorkerSession(
            connection,
            self,
            enrolment.identity(answer),
            answer.heartbeat_interval_ms / 1000,
            recorder=self.recorder,
            lines=self.lines,
            give_up_after_s=reconnect_limit_s,
        )
        self.due = SaveSchedule(self.membership, self.session)
        self.saving: Callable[[], pb.Saving | None] = lambda: None
        self.exchange: Callable[[bool], PendingExchange | None] = lambda waiting: None
        self.begin_record(answer)

    def beat(self) -> pb.Beat:
        """The heartbeat to send now."""
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
            host=self.host(),
            loss=self.loss,
            busy_s=self.busy_s,
            data_s=self.data_s,
        )

    def stepped(self, generation: int, data_s: float, compute_s: float) -> None:
        """Take the time of this worker's part of a step into the means that heartbeats report.

        They begin again in each generation, because the time depends on the lanes.
        """
        busy_s = data_s + compute_s
        if generation == self._busy_generation:
            busy_s += SMOOTHED * (self.busy_s - busy_s)
            data_s += SMOOTHED * (self.data_s - data_s)
        self.busy_s, self.data_s, self._busy_generation = busy_s, data_s, generation

    def stack_report(self, waits_for: list[str]) -> StackReport:
        """The stacks of this process, its progress, and what it waits for."""
        model = self.membership.model
        return own_report(
            waits_for,
            lambda: self.exchange(self.waiting),
            state=self.state,
            step=model.step,
            generation=model.generation,
        )

    def tick(self) -> None:
        """Record resources from time to time, and call the registered callbacks."""
        for each in self.on_tick:
            each()
        super().tick()

    def apply_standing(self, standing: pb.Standing) -> None:
        """Apply a standing; a requested checkpoint is acknowledged by a heartbeat at once."""
        self.due.apply_standing(standing)
        if self.due.request:
            self.session.heartbeat.beat_soon()
        if self.membership.apply_standing(standing):
            self.state_seen(standing)

    def rejoin(self, error: StrataError) -> WorkerIdentity:
        """Register as a new incarnation."""
        log.warning("registering as a new incarnation: %s", error.message)
        over = self.session.identity.incarnation
        answer = self._enrolment.register(REJOIN_TIMEOUT_S, after=over)
        with self.session.updated:
            self.membership.begin_again()
            self.state = "initializing"
            self.session.updated.notify_all()
        self.begin_record(answer)
        return self._enrolment.identity(answer)

    def close(self) -> None:
        """Close the recorder and the sockets; the session was closed before."""
        self.end_record()
        self.connection.close()
        self.meeting.close()
