"""The metrics on GET /metrics as tables: name, help text, source of the value.

Names begin with `strata_` and end with their unit. Known label values are shown with 0 from the
start, so that the first loss is an increase and not a new series.

Each worker has series of its own up to a limit, in the order of registration, so that the same
workers keep their series from one scrape to the next. The sums cover all workers.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from strata.coordinator.metrics.exposition import Exposition, Kind, Number, labels, with_zeros
from strata.coordinator.metrics.host_series import add_hosts
from strata.coordinator.metrics.task_series import add_tasks
from strata.coordinator.sessions.last_heartbeats import LastHeartbeat
from strata.core.metrics.figures import MB, Counts, Reading
from strata.core.metrics.sliding_windows import Histogram
from strata.core.state import REPORTED, Worker
from strata.core.tasks.task_lifecycle import LIFECYCLE as TASK_LIFECYCLE
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics

if TYPE_CHECKING:
    from strata.coordinator.metrics.coordinator_metrics import Metrics

REQUEST_KINDS = ("grpc", "http")
SIGNALS = ("exit", "connection", "heartbeat", "hang", "agent", "absent")
SOURCES = ("peer", "checkpoint", "fresh")
TASK_STATES = tuple(sorted({state for move in TASK_LIFECYCLE.moves for state in move[:2]}))

Gauge: TypeAlias = tuple[str, str, "Callable[[Metrics], Number | None]"]

READINGS: tuple[tuple[str, str, Callable[[Reading], Number | None]], ...] = (
    (
        "active_workers",
        "Workers that are training or checkpointing.",
        lambda r: r.active_workers,
    ),
    (
        "checkpoint_throughput_bytes_per_second",
        "Acknowledged checkpoint bytes per second of saving, over the last minute.",
        lambda r: scaled(r.checkpoint_throughput_mb_s, MB),
    ),
    (
        "barrier_latency_p99_seconds",
        "Time from a barrier's first arrival to its release, 99th percentile over five minutes.",
        lambda r: scaled(r.barrier_latency_p99_ms, 1e-3),
    ),
)

HISTOGRAMS: tuple[tuple[str, str, "Callable[[Metrics], Histogram]"], ...] = (
    (
        "barrier_wait",
        "Time from a barrier's first arrival to its release.",
        lambda m: m.figures.barrier_wait_s,
    ),
    (
        "barrier_release",
        "Time from a barrier's last arrival to its release on disk.",
        lambda m: m.release_s,
    ),
    (
        "checkpoint_duration",
        "Time from a checkpoint's start to its commit.",
        lambda m: m.figures.checkpoint_s,
    ),
    (
        "recovery_duration",
        "Time from the loss that stopped a task until its next generation trains.",
        lambda m: m.figures.recovery_s,
    ),
    (
        "shard_assignment",
        "Time to decide a change that moves lanes or shards between workers.",
        lambda m: m.timings.assignment_s,
    ),
    ("decide", "Time to decide the commands of one turn.", lambda m: m.timings.decide_s),
    ("append", "Time to store the facts of one turn.", lambda m: m.timings.append_s),
)

COUNTERS: tuple[tuple[str, str, Callable[[Counts], int]], ...] = (
    ("facts", "Facts recorded.", lambda c: c.facts),
    ("worker_registrations", "Worker registrations accepted.", lambda c: c.registrations),
    ("worker_rejections", "Worker registrations refused.", lambda c: c.rejections),
    ("generations", "Generations formed.", lambda c: c.generations),
    ("rollbacks", "Rollbacks of a task to an earlier step.", lambda c: c.rollbacks),
    ("steps_committed", "Committed training steps.", lambda c: c.steps_committed),
    ("steps_rolled_back", "Committed steps that were rolled back.", lambda c: c.steps_rolled_back),
    ("checkpoint_bytes", "Bytes of acknowledged checkpoint parts.", lambda c: c.checkpoint_bytes),
    ("shard_assignments", "Changes of the assignment of lanes or shards.", lambda c: c.assignments),
    ("shards_moved", "Lanes and shards that moved to another worker.", lambda c: c.moved),
)

LABELLED: tuple[tuple[str, str, str, tuple[str, ...], Callable[[Counts], dict[str, int]]], ...] = (
    ("worker_losses", "Workers declared lost.", "signal", SIGNALS, lambda c: c.losses),
    (
        "recoveries",
        "Generations that started to train, by the source of their model.",
        "source",
        SOURCES,
        lambda c: c.recoveries,
    ),
    (
        "barriers",
        "Barriers that ended, by outcome.",
        "outcome",
        ("released", "failed"),
        lambda c: c.barriers,
    ),
    (
        "checkpoints",
        "Checkpoints by outcome.",
        "outcome",
        ("started", "committed", "failed"),
        lambda c: c.checkpoints,
    ),
    (
        "limits_hit",
        "Requests refused because of a limit.",
        "limit",
        ("max_workers",),
        lambda c: c.limits,
    ),
)

GAUGES: tuple[Gauge, ...] = (
    (
        "requests_per_second",
        "gRPC requests and stream messages per second, over ten seconds.",
        lambda m: m.requests_per_s,
    ),
    ("log_position", "Number of durable facts.", lambda m: m.engine.position),
    (
        "coordinator_incarnation",
        "Number of coordinator starts on this log.",
        lambda m: m.engine.kernel.state.coordinator_incarnation,
    ),
    (
        "inbox_depth",
        "Requests in the queue.",
        lambda m: m.probes.inbox_depth and m.probes.inbox_depth(),
    ),
    (
        "inbox_limit",
        "Queue length at which new requests are refused.",
        lambda m: m.engine.inbox.limit,
    ),
    (
        "sessions",
        "Open worker streams.",
        lambda m: m.probes.sessions and m.probes.sessions(),
    ),
)

OfGpu = Callable[[GpuMetrics], Number | None]

PER_WORKER: dict[str, tuple[Kind, str, str]] = {
    "cpu_percent": ("gauge", "cpu_ratio", "CPU use; 1 is one core."),
    "memory_used_bytes": ("gauge", "memory_used_bytes", "Memory in use."),
    "disk_free_bytes": ("gauge", "disk_free_bytes", "Free disk space."),
    "disk_read_bytes": ("counter", "disk_read_bytes_total", "Bytes read from disk."),
    "disk_write_bytes": ("counter", "disk_written_bytes_total", "Bytes written to disk."),
    "network_rx_bytes": ("counter", "network_received_bytes_total", "TCP bytes received."),
    "network_tx_bytes": ("counter", "network_sent_bytes_total", "TCP bytes sent."),
}
"""Type, name and help text of the metric for each field of `ResourceMetrics`."""

PER_GPU: tuple[tuple[str, str, OfGpu], ...] = (
    ("utilization_ratio", "GPU utilization, 0 to 1.", lambda g: ratio(g.utilization)),
    ("memory_used_bytes", "GPU memory in use.", lambda g: g.memory_used_bytes),
    ("memory_total_bytes", "GPU memory.", lambda g: g.memory_total_bytes),
)
STEP_TEXT = "Last reported step, by worker."


def expose(metrics: "Metrics") -> str:
    """Render the page of GET /metrics."""
    page = Exposition()
    _add_figures(page, metrics)
    for name, text, histogram in HISTOGRAMS:
        page.histogram(f"strata_{name}_seconds", text, histogram(metrics))
    page.by(
        "counter",
        "strata_requests_total",
        "Requests and stream messages handled.",
        "kind",
        with_zeros(metrics.requests, REQUEST_KINDS),
    )
    for name, text, gauge in GAUGES:
        page.one("gauge", f"strata_{name}", text, gauge(metrics))
    _add_process(page, metrics)
    _add_logs(page, metrics)
    state = metrics.engine.kernel.state
    add_tasks(page, state, metrics.heartbeats.workers)
    _add_workers(page, state.workers, metrics.heartbeats.workers, metrics.max_worker_series)
    add_hosts(page, state, metrics.max_worker_series)
    return page.text()


def _add_figures(page: Exposition, metrics: "Metrics") -> None:
    reading = metrics.read()
    workers, tasks = reading.worker_states, reading.task_states
    text = "Live workers by state."
    page.by("gauge", "strata_workers", text, "state", with_zeros(workers, REPORTED))
    page.by("gauge", "strata_tasks", "Tasks by state.", "state", with_zeros(tasks, TASK_STATES))
    for name, text, figure in READINGS:
        page.one("gauge", f"strata_{name}", text, figure(reading))
    counts = metrics.figures.counts
    for name, text, count in COUNTERS:
        page.one("counter", f"strata_{name}_total", text, count(counts))
    for name, text, label, names, by in LABELLED:
        page.by("counter", f"strata_{name}_total", text, label, with_zeros(by(counts), names))


def _add_process(page: Exposition, metrics: "Metrics") -> None:
    process = metrics.process
    with process.oneshot():
        cpu = process.cpu_times()
        memory_bytes = process.memory_info().rss
        started_s = process.create_time()
    name, text = "strata_process_cpu_seconds_total", "CPU time of the coordinator."
    page.one("counter", name, text, cpu.user + cpu.system)
    name, text = "strata_process_resident_memory_bytes", "Resident memory of the coordinator."
    page.one("gauge", name, text, memory_bytes)
    name, text = (
        "strata_process_start_time_seconds",
        "Start time of the coordinator in Unix seconds.",
    )
    page.one("gauge", name, text, started_s)


def _add_logs(page: Exposition, metrics: "Metrics") -> None:
    if metrics.probes.logs is None:
        return
    logs = metrics.probes.logs()
    page.one("gauge", "strata_logs_lines", "Log lines stored.", logs.lines)
    page.one("gauge", "strata_logs_size_bytes", "Size of the log on disk.", logs.size_bytes)
    page.by(
        "counter",
        "strata_logs_dropped_total",
        "Log lines deleted because of the size limit, or never stored.",
        "reason",
        [("bound", logs.dropped_lines), ("never_stored", logs.lost_lines)],
    )


def _add_workers(
    page: Exposition,
    workers: Mapping[str, Worker],
    heartbeats: Mapping[str, LastHeartbeat],
    limit: int,
) -> None:
    """Add the series of live workers that have reported their resources."""
    reporting = [
        (worker, last.step, last.resources)
        for worker in workers.values()
        if worker.alive and (last := heartbeats.get(worker.id)) and last.resources is not None
    ]
    _add_sums(page, [resources for _, _, resources in reporting])
    shown = [
        (labels(worker=worker.id, task=worker.task), step, resources)
        for worker, step, resources in islice(reporting, limit)
    ]
    page.add("gauge", "strata_worker_step", STEP_TEXT, [(tags, step) for tags, step, _ in shown])
    for field, (kind, name, text) in PER_WORKER.items():
        measured = ((tags, _value(resources, field)) for tags, _, resources in shown)
        samples = [(tags, each) for tags, each in measured if each is not None]
        page.add(kind, f"strata_worker_{name}", f"{text[:-1]}, by worker.", samples)
    cards = [
        (f'{tags[:-1]},gpu="{card.index}"}}', card)
        for tags, _, resources in shown
        for card in resources.gpu_metrics
    ]
    for name, text, measure in PER_GPU:
        readings = [(tags, measure(card)) for tags, card in cards]
        page.add("gauge", f"strata_worker_gpu_{name}", f"{text[:-1]}, by worker.", readings)
    page.one(
        "gauge",
        "strata_worker_series_omitted",
        "Workers without series of their own; the sums include them.",
        len(reporting) - len(shown),
    )


def _value(resources: ResourceMetrics, field: str) -> Number | None:
    """The value of a field; a percentage is exposed as a ratio, as Prometheus recommends."""
    value: Number | None = getattr(resources, field)
    return value / 100 if value is not None and field.endswith("_percent") else value


def _add_sums(page: Exposition, resources: list[ResourceMetrics]) -> None:
    cards = [card for each in resources for card in each.gpu_metrics]
    used = [c.utilization for c in cards if c.utilization is not None]
    for name, text, value in (
        (
            "cpu_ratio",
            "CPU use of all workers; 1 is one core.",
            sum(each.cpu_percent for each in resources) / 100,
        ),
        (
            "memory_used_bytes",
            "Memory in use by all workers.",
            sum(each.memory_used_bytes for each in resources),
        ),
        ("gpus", "GPUs that workers report.", len(cards)),
        (
            "gpu_utilization_ratio",
            "Mean utilization of the GPUs that report it.",
            sum(used) / 100 / len(used) if used else None,
        ),
        (
            "gpu_memory_used_bytes",
            "Memory in use on all GPUs.",
            sum(card.memory_used_bytes for card in cards),
        ),
    ):
        page.one("gauge", f"strata_cluster_{name}", text, value)


def ratio(percent: float | None) -> float | None:
    """A percentage as a ratio."""
    return None if percent is None else percent / 100


def scaled(value: float | None, factor: float) -> float | None:
    """The value times a factor; None stays None."""
    return None if value is None else value * factor
