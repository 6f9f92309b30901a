"""The record of a worker, common to `strata.join` and `TrainingOrchestrator`.

Each incarnation starts with the registration and `RunStarted`. Resources are recorded at the
interval of the settings, and each changed standing as `CoordinatorStateSeen`. Events stay in the
spool until they are stored.
"""

import logging
import time
from pathlib import Path

from strata.config import Settings
from strata.core.workers.stack_reports import StackReport
from strata.core.workers.worker_facts import CoordinatorStateSeen, resource_snapshot
from strata.sdk.record.host_reporter import LOOK_S, BackgroundReporter, HostReporter
from strata.sdk.record.own_stacks import own_report, register_signal
from strata.sdk.record.recorder import Recorder
from strata.sdk.record.resource_sampler import ResourceSampler
from strata.sdk.record.spool import default_folder
from strata.sdk.session.registration import Enrolment
from strata.wire.messages import worker_messages
from strata.wire.messages.host_messages import host_health_message
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

REJOIN_TIMEOUT_S = 5.0


class RecordedWorker:
    """A worker with a recorder, and the events that it records automatically."""

    def __init__(self, enrolment: Enrolment, sampler: ResourceSampler, settings: Settings) -> None:
        self.recorder = Recorder(progress_interval_s=settings.progress_interval_s)
        self.sampler = sampler
        self._enrolment = enrolment
        self._settings = settings
        self._next_snapshot_s = 0.0
        self._host: BackgroundReporter | None = None

    def resources(self) -> pb.ResourceMetrics:
        """The current resources, for a heartbeat."""
        return worker_messages.resources_message(self.sampler.sample())

    def host(self) -> pb.HostHealth | None:
        """The health of this host, for a heartbeat, if it is due and this worker reports it."""
        health = self._host.take() if self._host is not None else None
        return None if health is None else host_health_message(health)

    def stack_report(self, waits_for: list[str]) -> StackReport:
        """The stacks of this process, and what it waits for."""
        return own_report(waits_for)

    def tick(self) -> None:
        """Record the resources at the configured interval."""
        self.sampler.watch_network()
        now_s = time.monotonic()
        if now_s < self._next_snapshot_s:
            return
        self._next_snapshot_s = now_s + self._settings.resource_interval_s
        self.recorder.emit(resource_snapshot(self.sampler.sample()))

    def state_seen(self, standing: pb.Standing) -> None:
        """Record a changed standing."""
        self.recorder.emit(
            CoordinatorStateSeen(
                task=standing.task_id,
                state=standing.task_state,
                generation=standing.generation,
                phase=standing.phase,
                rank=standing.rank,
                world_size=standing.world_size,
                attempt=standing.attempt,
                committed=standing.committed,
            )
        )

    def end_record(self) -> None:
        """Close the recorder, and let another worker report the host."""
        self.recorder.close()
        if self._host is not None:
            self._host.close()
            self._host = None

    def begin_record(self, answer: pb.RegisterWorkerResponse) -> None:
        """Start the record of a new incarnation."""
        settings = self._settings
        if not settings.start and self._host is None:
            # Without an agent: that reports the host of the workers that it starts.
            interval_s = settings.resource_interval_s
            reporter = HostReporter(interval_s, lock_folder=default_folder())
            self._host = BackgroundReporter(reporter, min(LOOK_S, interval_s))
        folder = Path(settings.spool_dir) if settings.spool_dir else default_folder()
        if settings.spool_dir:
            register_signal(folder)
        self.recorder.begin(
            folder, answer.assigned_id, answer.incarnation, settings.spool_max_bytes
        )
        self._enrolment.record(self.recorder, answer)
