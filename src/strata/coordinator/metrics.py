"""The coordinator's figures: derived from facts, and measured on itself.

Two sources, kept apart. What happened to the cluster is derived from its facts (`core.derive`), so
it can be had for any time in the past. What it costs to run (requests, turns, the disk, memory) is
measured here, and is known only of this process.

`snapshot` is what GET /api/metrics answers, `prometheus` what GET /metrics does. Series by worker
are bounded: a thousand cards would otherwise be tens of thousands of series in somebody's
Prometheus. Workers beyond `max_worker_series` are in the sums, and `strata_worker_series_omitted`
says how many they are.
"""

from collections.abc import Callable, Sequence

import psutil
from msgspec import Struct

from strata.coordinator.engine import Engine
from strata.coordinator.logs.store import LogStats
from strata.coordinator.measured import MeasuredKernel, Timings
from strata.coordinator.observed import Observed
from strata.coordinator.series import REQUEST_KINDS, expose
from strata.core.barriers import BarrierReleased
from strata.core.derive import Figures, Reading
from strata.core.events import Event, Now
from strata.core.step_rates import Drop
from strata.core.windows import LATENCY_BOUNDS_S, SECOND_NS, Histogram, Tally

RATE_WINDOW_S = 10
MAX_WORKER_SERIES = 500


class MetricsSnapshot(Struct, frozen=True):
    """GET /api/metrics. Throughput in MB/s, times in ms; null where nothing was measured yet.

    `coordinator_rps` counts gRPC requests and messages on streams, not those who look at figures.
    In a view of the past it and `shard_assignment_time` are null: they are not recorded.
    """

    checkpoint_throughput: float | None
    coordinator_rps: float | None
    active_workers: int
    total_workers: int
    barrier_latency_p99: float | None
    shard_assignment_time: float | None


class Probes(Struct, frozen=True, kw_only=True):
    """What only the server knows: asked for at each reading, left out where there is none."""

    inbox_depth: Callable[[], int] | None = None
    sessions: Callable[[], int] | None = None
    logs: Callable[[], LogStats] | None = None


class Metrics:
    """Watches an engine from now on."""

    def __init__(
        self,
        engine: Engine,
        observed: Observed,
        probes: Probes | None = None,
        max_worker_series: int = MAX_WORKER_SERIES,
    ) -> None:
        self.figures: Figures = Figures()
        self.timings: Timings = (
            engine.kernel.timings if isinstance(engine.kernel, MeasuredKernel) else Timings()
        )
        self.release_s: Histogram = Histogram(LATENCY_BOUNDS_S)
        self.engine: Engine = engine
        self.observed: Observed = observed
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
        """Takes in facts that were just stored."""
        for event in events:
            self.figures.observe(event)
            if type(event.body) is BarrierReleased:
                # The last arrival and the release are decided at one moment, the event's.
                waited_ns = self._clock().mono_ns - event.mono_ns
                self.release_s.add(waited_ns / SECOND_NS)

    def count_request(self, kind: str, count: int = 1) -> None:
        """Counts requests that were handled; a message on a worker's stream is one."""
        self.requests[kind] += count
        if kind == "grpc":
            self._rate.add(self._clock().mono_ns, count)

    @property
    def requests_per_s(self) -> float:
        """gRPC requests per second over the last seconds."""
        return self._rate.rate(self._clock().mono_ns, self._began_ns)

    def read(self) -> Reading:
        """The figures derived from facts, now."""
        return self.figures.read(self._clock().mono_ns)

    def drops(self) -> list[Drop]:
        """The tasks that train much slower than usual, now."""
        return self.figures.step_rates.drops(self.engine.kernel.state, self._clock().mono_ns)

    def snapshot(self) -> MetricsSnapshot:
        """The six figures of the contract."""
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
        """Everything, in Prometheus' text format."""
        return expose(self)
