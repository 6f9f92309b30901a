"""The worker behind a run: what its session asks of it.

It beats with the state, the progress and the resources of this process, follows the standing, and
when it was declared lost registers as a new incarnation: whatever it held counts for nothing
then, so the script finds that the membership changed and enters like a newcomer.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from strata.config import Settings
from strata.core.worker_facts import CoordinatorStateSeen, ResourceSnapshot
from strata.core.workers import Reported
from strata.errors import StrataError
from strata.sdk.due import Due
from strata.sdk.enrolment import Enrolment
from strata.sdk.events import Recorder
from strata.sdk.hello import Identity
from strata.sdk.lines import LineBuffer
from strata.sdk.meeting import MeetingPlace
from strata.sdk.membership import Membership
from strata.sdk.resources import ResourceSampler
from strata.sdk.session import Session
from strata.sdk.spool import default_folder
from strata.wire import convert
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

REJOIN_PATIENCE_S = 5.0


class Worker:
    """Owns the session and everything that feeds it."""

    def __init__(
        self,
        enrolment: Enrolment,
        answer: pb.RegisterWorkerResponse,
        sampler: ResourceSampler,
        settings: Settings,
        reconnect_limit_s: float | None = None,
    ) -> None:
        connection = self.connection = enrolment.connection
        self.recorder = Recorder(progress_interval_s=settings.progress_interval_s)
        self.lines = LineBuffer(least_level=settings.capture_level)
        self.meeting = MeetingPlace(connection.address)
        self.membership = Membership(self.meeting.address)
        self.state: Reported = "initializing"
        self.waiting = False
        self.epoch = 0
        self.loss: float | None = None
        self.busy_s = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self._enrolment = enrolment
        self._settings = settings
        self.sampler = sampler
        self._next_snapshot_s = 0.0
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
        self._begin(answer)

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
            resources=convert.resources_message(self.sampler.sample()),
            loss=self.loss,
            busy_s=self.busy_s,
        )

    def tick(self) -> None:
        """Records what is used, now and then, and does what others want done."""
        for each in self.on_tick:
            each()
        now_s = time.monotonic()
        if now_s >= self._next_snapshot_s:
            self._next_snapshot_s = now_s + self._settings.resource_interval_s
            used = self.sampler.sample()
            self.recorder.emit(
                ResourceSnapshot(
                    used.cpu_percent,
                    used.memory_used_bytes,
                    used.gpu_metrics,
                    used.disk_read_bytes,
                    used.disk_write_bytes,
                    used.disk_free_bytes,
                    used.network_rx_bytes,
                    used.network_tx_bytes,
                )
            )

    def told(self, standing: pb.Standing) -> None:
        """Takes the standing in; a request for a checkpoint is echoed at once."""
        self.due.told(standing)
        if self.due.request:
            self.session.pulse.beat_soon()
        if self.membership.told(standing):
            self.recorder.emit(
                CoordinatorStateSeen(
                    standing.task_id,
                    standing.task_state,
                    standing.generation,
                    standing.phase,
                    standing.rank,
                    standing.world_size,
                    standing.attempt,
                    standing.committed,
                )
            )

    def rejoin(self, error: StrataError) -> Identity:
        """Registers as a new incarnation."""
        log.warning("rejoining as a new incarnation: %s", error.message)
        over = self.session.identity.incarnation
        answer = self._enrolment.register(REJOIN_PATIENCE_S, after=over)
        with self.session.news:
            self.membership.begin_again()
            self.state = "initializing"
            self.session.news.notify_all()
        self._begin(answer)
        return self._enrolment.identity(answer)

    def close(self) -> None:
        """Ends the recording and lets go of the network; the session was closed before."""
        self.recorder.close()
        self.connection.close()
        self.meeting.close()

    def _begin(self, answer: pb.RegisterWorkerResponse) -> None:
        settings = self._settings
        folder = Path(settings.spool_dir) if settings.spool_dir else default_folder()
        self.recorder.begin(
            folder, answer.assigned_id, answer.incarnation, settings.spool_max_bytes
        )
        self.recorder.emit(self._enrolment.started(answer))
