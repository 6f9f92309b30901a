"""Metrics of the coordinator.

There are two sources. Metrics of the cluster are derived from its facts (`core/metrics/figures`),
so they are available for any time in the past. Metrics of the process (requests, turns, disk,
memory) are measured here and known for this process only.

`snapshot` answers GET /api/metrics, `prometheus` GET /metrics. At most `max_worker_series` workers
have series of their own, because 1,000 workers with 8 GPUs would be 32,000 series in Prometheus.
The others are in the sums, and `strata_worker_series_omitted` counts them.
"""

from collections.abc import Callable, Sequence

import psutil
from msgspec import Struct

from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.turn_timings import Timings
from strata.coordinator.logs.log_store import LogStats
from strata.coordinator.metrics.series import REQUEST_KINDS, expose
from strata.coordinator.rest.response_models import MetricsSnapshot
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.barriers.barrier_rules import BarrierReleased
from strata.core.events import Event, Now
from strata.core.metrics.figures import Figures, Reading
from strata.core.metrics.sliding_windows import LATENCY_BOUNDS_S, SECOND_NS, Histogram, Tally

RATE_WINDOW_S = 10
MAX_WORKER_SERIES = 500


class Probes(Struct, frozen=True, kw_only=True):
    """Values that only the server can read; series without a probe are omitted."""

    inbox_depth: Callable[[], int] | None = None
    sessions: Callable[[], int] | None = None
    logs: Callable[[], LogStats] | None = None


class Metrics:
    """Metrics of one engine, from now on."""

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        probes: Probes | None = None,
        max_worker_series: int = MAX_WORKER_SERIES,
    ) -> None:
        self.figures: Figures = Figures()
        self.timings: Timings = engine.kernel.timings
        self.release_s: Histogram = Histogram(LATENCY_BOUNDS_S)
        self.engine: Engine = engine
        self.heartbeats: Heartbeats = heartbeats
        self.probes: Probes = probes or Probes()
        self.max_worker_series: int = max_worker_series
        self.process: psutil.Process = psutil.Process()
        self.requests: dict[str, int] = dict.fromkeys(REQUEST_KINDS, 0)
        self._clock: Callable[[], Now] = engine.kernel.clock
        self._rate = Tally(RATE_WINDOW_S)
        self._began_ns = self._clock().mono_ns
        self.figures.adopt(engine.kernel.state, self._began_ns)
        engine.follow(self.observe)

    def observe(self, events: Sequence[Event]) -> None:
        """Update the metrics with facts that were just stored."""
        for event in events:
            self.figures.observe(event)
            if type(event.body) is BarrierReleased:
                # The last arrival and the release are decided at the same moment.
                waited_ns = self._clock().mono_ns - event.mono_ns
                self.release_s.add(waited_ns / SECOND_NS)

    def count_request(self, kind: str, count: int = 1) -> None:
        """Count handled requests; a message on a worker's stream is one request."""
        self.requests[kind] += count
        if kind == "grpc":
            self._rate.add(self._clock().mono_ns, count)

    @property
    def requests_per_s(self) -> float:
        """gRPC requests and stream messages per second over `RATE_WINDOW_S`."""
        return self._rate.rate(self._clock().mono_ns, self._began_ns)

    def read(self) -> Reading:
        """The metrics derived from facts, now."""
        return self.figures.read(self._clock().mono_ns)

    def snapshot(self) -> MetricsSnapshot:
        """The answer of GET /api/metrics."""
        reading = self.read()
        return MetricsSnapshot(
            checkpoint_throughput=reading.checkpoint_throughput_mb_s,
            coordinator_rps=self.requests_per_s,
            active_workers=reading.active_workers,
            total_workers=reading.total_workers,
            barrier_latency_p99=reading.barrier_latency_p99_ms,
            shard_assignment_time=self.timings.assignment_ms,
        )

    def prometheus(self) -> str:
        """The answer of GET /metrics, in Prometheus' text format."""
        return expose(self)
