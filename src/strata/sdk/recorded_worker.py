"""What every worker records about itself, joined by `strata.join` or by `TrainingOrchestrator`.

It owns the recorder and the session. Each incarnation begins with the registration and
`RunStarted`; resources are recorded at the interval of the settings; what the coordinator tells
about the worker's place is `CoordinatorStateSeen`. Events lie in the spool until they are stored.
"""

import time
from pathlib import Path

from strata.config import Settings
from strata.core.worker_facts import CoordinatorStateSeen, ResourceSnapshot
from strata.sdk.enrolment import Enrolment
from strata.sdk.events import Recorder
from strata.sdk.resources import ResourceSampler
from strata.sdk.spool import default_folder
from strata.wire import convert
from strata.wire.v1 import coordinator_pb2 as pb

REJOIN_PATIENCE_S = 5.0


class RecordedWorker:
    """The recorder of a worker, and what goes into it by itself."""

    def __init__(self, enrolment: Enrolment, sampler: ResourceSampler, settings: Settings) -> None:
        self.recorder = Recorder(progress_interval_s=settings.progress_interval_s)
        self.sampler = sampler
        self._enrolment = enrolment
        self._settings = settings
        self._next_snapshot_s = 0.0

    def resources(self) -> pb.ResourceMetrics:
        """What is used now, for a beat."""
        return convert.resources_message(self.sampler.sample())

    def tick(self) -> None:
        """Record what is used, now and then."""
        self.sampler.watch_network()
        now_s = time.monotonic()
        if now_s < self._next_snapshot_s:
            return
        self._next_snapshot_s = now_s + self._settings.resource_interval_s
        used = self.sampler.sample()
        self.recorder.emit(
            ResourceSnapshot(
                cpu_percent=used.cpu_percent,
                memory_used_bytes=used.memory_used_bytes,
                gpus=used.gpu_metrics,
                disk_read_bytes=used.disk_read_bytes,
                disk_write_bytes=used.disk_write_bytes,
                disk_free_bytes=used.disk_free_bytes,
                network_rx_bytes=used.network_rx_bytes or 0,
                network_tx_bytes=used.network_tx_bytes or 0,
                network_own=used.network_rx_bytes is not None,
            )
        )

    def state_seen(self, standing: pb.Standing) -> None:
        """Record the place that the coordinator told."""
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

    def begin_record(self, answer: pb.RegisterWorkerResponse) -> None:
        """Begin the log of a new incarnation."""
        settings = self._settings
        folder = Path(settings.spool_dir) if settings.spool_dir else default_folder()
        self.recorder.begin(
            folder, answer.assigned_id, answer.incarnation, settings.spool_max_bytes
        )
        self._enrolment.record(self.recorder, answer)
