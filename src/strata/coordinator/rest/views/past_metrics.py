"""Metrics of past moments, derived from facts in the same way as the present ones.

Metrics that are measured and not recorded (requests, time to assign shards) are null.
"""

from collections.abc import Sequence

from strata.coordinator.rest.response_models import MetricsSnapshot
from strata.coordinator.rest.views.metrics_history import MetricsHistory
from strata.core.metrics.figures import Figures, Reading
from strata.core.workers.heartbeats import GpuMetrics
from strata.core.workers.worker_facts import ResourceSnapshot, StepFinished
from strata.store.event_store import Window
from strata.timeline.answers import UsageAnswer
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import MS_NS, SECOND_NS
from strata.timeline.read.run_timeline import Timeline

WARM_UP_NS = 300 * SECOND_NS
"""The longest window of a metric: latencies are those of the last five minutes."""

SPAN_NS = 900 * SECOND_NS
SAMPLES = 180
USAGE_WINDOWS_NS = (SPAN_NS, SPAN_NS // 5, SPAN_NS // 30)
USAGE_EVENTS = 20_000
USAGE_POINTS = 300


def metrics_at(timeline: Timeline, at_ns: int) -> MetricsSnapshot:
    """Metrics at one moment."""
    [reading] = read_at(timeline, [at_ns])
    return MetricsSnapshot(
        checkpoint_throughput=reading.checkpoint_throughput_mb_s,
        coordinator_rps=None,
        active_workers=reading.active_workers,
        total_workers=reading.total_workers,
        barrier_latency_p99=reading.barrier_latency_p99_ms,
        shard_assignment_time=None,
    )


def history_before(timeline: Timeline, at_ns: int) -> MetricsHistory:
    """Metrics of the 15 minutes before a moment, or since the start of the log."""
    from_ns = max(at_ns - SPAN_NS, timeline.extent().from_ns)
    step_ns = max((at_ns - from_ns) // SAMPLES, 1)
    moments = [at_ns - step_ns * back for back in range(SAMPLES - 1, -1, -1)]
    readings = read_at(timeline, moments)
    nothing = [None] * len(moments)
    return MetricsHistory(
        at=[moment // MS_NS for moment in moments],
        checkpoint_throughput=[each.checkpoint_throughput_mb_s for each in readings],
        coordinator_rps=[*nothing],
        active_workers=[each.active_workers for each in readings],
        total_workers=[each.total_workers for each in readings],
        barrier_latency_p99=[each.barrier_latency_p99_ms for each in readings],
        shard_assignment_time=[*nothing],
    )


def read_at(timeline: Timeline, moments: Sequence[int]) -> list[Reading]:
    """Metrics at ascending moments."""
    start = timeline.position_at(moments[0] - WARM_UP_NS)
    stop = timeline.position_at(moments[-1])
    base_ns = timeline.clocks.era(start).base_ns if timeline.clocks.eras else 0
    figures = Figures()
    figures.adopt(state_at(timeline, start).state, moments[0] - WARM_UP_NS - base_ns)
    found: list[Reading] = []
    for record in timeline.facts(start, stop):
        while record.at_ns > moments[len(found)]:
            found.append(figures.read(moments[len(found)] - base_ns))
        base_ns = record.at_ns - record.event.mono_ns
        figures.observe(record.event)
    return found + [figures.read(moment - base_ns) for moment in moments[len(found) :]]


def usage_before(timeline: Timeline, node: str, at_ns: int) -> UsageAnswer:
    """A worker's resources before a moment, from its records; a value holds until the next."""
    from_ns = at_ns - _usage_window_ns(timeline, node, at_ns)
    kinds = {ResourceSnapshot.__name__, StepFinished.__name__}
    slot_ns = max((at_ns - from_ns) // USAGE_POINTS, 1)
    rows: dict[int, Row] = {}
    used: ResourceSnapshot | None = None
    step: int | None = None
    for record in timeline.records(from_ns, at_ns + 1, node=node, kinds=kinds):
        body = record.event.body
        if isinstance(body, ResourceSnapshot):
            used = body
        elif isinstance(body, StepFinished):
            step = body.step
        rows[record.at_ns // slot_ns] = (record.at_ns // MS_NS, used, step)
    return _by_column(list(rows.values()))


Row = tuple[int, ResourceSnapshot | None, int | None]


def _by_column(rows: Sequence[Row]) -> UsageAnswer:
    return UsageAnswer(
        at=[at_ms for at_ms, _, _ in rows],
        cpu_percent=[used.cpu_percent if used else None for _, used, _ in rows],
        gpu_percent=[_gpu_percent(used.gpus) if used else None for _, used, _ in rows],
        memory_used_bytes=[used.memory_used_bytes if used else None for _, used, _ in rows],
        step=[step for _, _, step in rows],
    )


def _usage_window_ns(timeline: Timeline, node: str, at_ns: int) -> int:
    """The longest window with at most `USAGE_EVENTS` events of a worker."""
    for window_ns in USAGE_WINDOWS_NS:
        headers = timeline.reader.headers(
            Window(since_ns=at_ns - window_ns, until_ns=at_ns, node=node)
        )
        if sum(header.count for header in headers) <= USAGE_EVENTS:
            return window_ns
    return USAGE_WINDOWS_NS[-1]


def _gpu_percent(cards: Sequence[GpuMetrics]) -> float | None:
    """Mean utilization of the GPUs that report it."""
    used = [c.utilization for c in cards if c.utilization is not None]
    return sum(used) / len(used) if used else None
