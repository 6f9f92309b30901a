"""The figures of the last minutes, so that a chart is full when the page is opened.

One sample a second of what `/api/metrics` answers, by column as charts take it. It lives in memory
and begins with the process; further back, the facts tell.
"""

import asyncio
import time
from collections import deque
from contextlib import AbstractAsyncContextManager

from litestar import get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct

from strata.coordinator.background import background
from strata.coordinator.http.faults import READS
from strata.coordinator.http.ports import Metrics
from strata.coordinator.metrics import MetricsSnapshot

SAMPLES = 900
INTERVAL_S = 1.0


class MetricsHistory(Struct, frozen=True):
    """Figures by column, oldest first; null where nothing was measured."""

    at: list[int]
    checkpoint_throughput: list[float | None]
    coordinator_rps: list[float | None]
    active_workers: list[int]
    total_workers: list[int]
    barrier_latency_p99: list[float | None]
    shard_assignment_time: list[float | None]


class History:
    """Keeps the newest samples."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples: deque[tuple[int, MetricsSnapshot]] = deque(maxlen=SAMPLES)

    def sampling(self, *_: object) -> AbstractAsyncContextManager[None]:
        """Samples for as long as the context is open."""
        return background(self._run(), "strata-history")

    async def _run(self) -> None:
        while True:
            self._samples.append((time.time_ns() // 1_000_000, self._metrics.snapshot()))
            await asyncio.sleep(INTERVAL_S)

    def columns(self) -> MetricsHistory:
        """The samples, turned to columns."""
        figures = [figure for _, figure in self._samples]
        return MetricsHistory(
            at=[at_ms for at_ms, _ in self._samples],
            checkpoint_throughput=[each.checkpoint_throughput for each in figures],
            coordinator_rps=[each.coordinator_rps for each in figures],
            active_workers=[each.active_workers for each in figures],
            total_workers=[each.total_workers for each in figures],
            barrier_latency_p99=[each.barrier_latency_p99 for each in figures],
            shard_assignment_time=[each.shard_assignment_time for each in figures],
        )


TheHistory = NamedDependency[SkipValidation[History]]


@get("/metrics/history", responses=READS)
async def get_history(history: TheHistory) -> MetricsHistory:
    """The figures of the last quarter of an hour, one sample a second."""
    return history.columns()
