"""Metrics of the last 15 minutes, so that the charts of a newly opened page are filled.

One sample per second of `/api/metrics`, by column. Kept in memory only; older metrics are derived
from facts (`past_metrics`).
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
from strata.coordinator.rest.error_responses import READS
from strata.coordinator.rest.ports import MetricsSource
from strata.coordinator.rest.response_models import MetricsSnapshot

SAMPLES = 900
INTERVAL_S = 1.0


class MetricsHistory(Struct, frozen=True):
    """Metrics by column, oldest first; null where nothing was measured."""

    at: list[int]
    checkpoint_throughput: list[float | None]
    coordinator_rps: list[float | None]
    active_workers: list[int]
    total_workers: list[int]
    barrier_latency_p99: list[float | None]
    shard_assignment_time: list[float | None]


class History:
    """The newest samples of the metrics."""

    def __init__(self, metrics: MetricsSource) -> None:
        self._metrics = metrics
        self._samples: deque[tuple[int, MetricsSnapshot]] = deque(maxlen=SAMPLES)

    def sampling(self, *_: object) -> AbstractAsyncContextManager[None]:
        """Take samples while the context is open."""
        return background(self._run(), "strata-history")

    async def _run(self) -> None:
        while True:
            self._samples.append((time.time_ns() // 1_000_000, self._metrics.snapshot()))
            await asyncio.sleep(INTERVAL_S)

    def columns(self) -> MetricsHistory:
        """The samples by column."""
        samples = [snapshot for _, snapshot in self._samples]
        return MetricsHistory(
            at=[at_ms for at_ms, _ in self._samples],
            checkpoint_throughput=[each.checkpoint_throughput for each in samples],
            coordinator_rps=[each.coordinator_rps for each in samples],
            active_workers=[each.active_workers for each in samples],
            total_workers=[each.total_workers for each in samples],
            barrier_latency_p99=[each.barrier_latency_p99 for each in samples],
            shard_assignment_time=[each.shard_assignment_time for each in samples],
        )


TheHistory = NamedDependency[SkipValidation[History]]


@get("/metrics/history", responses=READS)
async def get_history(history: TheHistory) -> MetricsHistory:
    """Metrics of the last 15 minutes, one sample per second."""
    return history.columns()
