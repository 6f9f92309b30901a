"""Every series that GET /metrics shows, as tables: its name, what it means, where it comes from.

Names begin with `strata_` and end with their unit. Known labels are shown from the beginning, with
0, so that the first loss is a rise and not a new series.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from strata.coordinator.exposition import Exposition, Number, known
from strata.coordinator.worker_series import add_workers
from strata.core.derive import MB, Counts, Reading
from strata.core.tasks import LIFECYCLE as TASK_LIFECYCLE
from strata.core.windows import Histogram
from strata.core.workers import REPORTED

if TYPE_CHECKING:
    from strata.coordinator.metrics import Metrics

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
        "From a barrier's first arrival to its release, 99th percentile of five minutes.",
        lambda r: scaled(r.barrier_latency_p99_ms, 1e-3),
    ),
)

HISTOGRAMS: tuple[tuple[str, str, "Callable[[Metrics], Histogram]"], ...] = (
    (
        "barrier_wait",
        "From a barrier's first arrival to its release.",
        lambda m: m.figures.barrier_wait_s,
    ),
    (
        "barrier_release",
        "From a barrier's last arrival to its release on disk.",
        lambda m: m.release_s,
    ),
    (
        "checkpoint_duration",
        "From a checkpoint's start to its commit.",
        lambda m: m.figures.checkpoint_s,
    ),
    (
        "recovery_duration",
        "From the loss that stopped a task to its next generation training.",
        lambda m: m.figures.recovery_s,
    ),
    (
        "shard_assignment",
        "Deciding a change that moves lanes or shards between workers.",
        lambda m: m.timings.assignment_s,
    ),
    ("decide", "Deciding the commands of one turn.", lambda m: m.timings.decide_s),
    ("append", "Storing the facts of one turn.", lambda m: m.timings.append_s),
)

COUNTERS: tuple[tuple[str, str, Callable[[Counts], int]], ...] = (
    ("facts", "Facts recorded.", lambda c: c.facts),
    ("worker_registrations", "Workers that registered.", lambda c: c.registrations),
    ("worker_rejections", "Workers that were not let in.", lambda c: c.rejections),
    ("generations", "Changes of a task's membership.", lambda c: c.generations),
    ("rollbacks", "Returns of a task to an earlier step.", lambda c: c.rollbacks),
    ("steps_committed", "Training steps that count.", lambda c: c.steps_committed),
    ("steps_rolled_back", "Steps that no longer count.", lambda c: c.steps_rolled_back),
    ("checkpoint_bytes", "Bytes of acknowledged parts.", lambda c: c.checkpoint_bytes),
    ("shard_assignments", "Changes of who holds what.", lambda c: c.assignments),
    ("shards_moved", "Lanes and shards that changed hands.", lambda c: c.moved),
)

LABELLED: tuple[tuple[str, str, str, tuple[str, ...], Callable[[Counts], dict[str, int]]], ...] = (
    ("worker_losses", "Workers declared lost.", "signal", SIGNALS, lambda c: c.losses),
    (
        "recoveries",
        "Generations that began to train, by where they went on from.",
        "source",
        SOURCES,
        lambda c: c.recoveries,
    ),
    (
        "barriers",
        "Barriers that ended.",
        "outcome",
        ("released", "failed"),
        lambda c: c.barriers,
    ),
    (
        "checkpoints",
        "Checkpoints by what became of them.",
        "outcome",
        ("started", "committed", "failed"),
        lambda c: c.checkpoints,
    ),
    ("limits_hit", "Refusals because of a limit.", "limit", ("max_workers",), lambda c: c.limits),
)

GAUGES: tuple[Gauge, ...] = (
    (
        "requests_per_second",
        "gRPC requests and stream messages per second, over ten seconds.",
        lambda m: m.requests_per_s,
    ),
    ("log_position", "Position up to which facts are durable.", lambda m: m.engine.position),
    (
        "coordinator_incarnation",
        "How often a coordinator took this log over.",
        lambda m: m.engine.kernel.state.coordinator_incarnation,
    ),
    (
        "inbox_depth",
        "Requests that wait to be decided.",
        lambda m: m.probes.inbox_depth and m.probes.inbox_depth(),
    ),
    (
        "inbox_limit",
        "Waiting requests at which new ones are refused.",
        lambda m: m.engine.inbox.limit,
    ),
    (
        "sessions",
        "Workers' streams that are open.",
        lambda m: m.probes.sessions and m.probes.sessions(),
    ),
)


def expose(metrics: "Metrics") -> str:
    """The page that GET /metrics answers with."""
    page = Exposition()
    _add_figures(page, metrics)
    for name, text, histogram in HISTOGRAMS:
        page.histogram(f"strata_{name}_seconds", text, histogram(metrics))
    page.by(
        "counter",
        "strata_requests_total",
        "Requests handled, and messages on workers' streams.",
        "kind",
        known(metrics.requests, REQUEST_KINDS),
    )
    for name, text, gauge in GAUGES:
        page.one("gauge", f"strata_{name}", text, gauge(metrics))
    _add_process(page, metrics)
    _add_logs(page, metrics)
    state = metrics.engine.kernel.state
    add_workers(page, state.workers, metrics.observed.workers, metrics.max_worker_series)
    return page.text()


def _add_figures(page: Exposition, metrics: "Metrics") -> None:
    reading = metrics.read()
    workers, tasks = reading.worker_states, reading.task_states
    text = "Registered workers that are neither lost nor gone, by state."
    page.by("gauge", "strata_workers", text, "state", known(workers, REPORTED))
    page.by("gauge", "strata_tasks", "Tasks by state.", "state", known(tasks, TASK_STATES))
    for name, text, figure in READINGS:
        page.one("gauge", f"strata_{name}", text, figure(reading))
    counts = metrics.figures.counts
    for name, text, count in COUNTERS:
        page.one("counter", f"strata_{name}_total", text, count(counts))
    for name, text, label, names, by in LABELLED:
        page.by("counter", f"strata_{name}_total", text, label, known(by(counts), names))


def _add_process(page: Exposition, metrics: "Metrics") -> None:
    process = metrics.process
    with process.oneshot():
        cpu = process.cpu_times()
        memory_bytes = process.memory_info().rss
        started_s = process.create_time()
    name, text = "strata_process_cpu_seconds_total", "CPU time of the coordinator."
    page.one("counter", name, text, cpu.user + cpu.system)
    name, text = "strata_process_resident_memory_bytes", "Memory of the coordinator."
    page.one("gauge", name, text, memory_bytes)
    name, text = "strata_process_start_time_seconds", "When the coordinator started, in Unix time."
    page.one("gauge", name, text, started_s)


def _add_logs(page: Exposition, metrics: "Metrics") -> None:
    if metrics.probes.logs is None:
        return
    logs = metrics.probes.logs()
    page.one("gauge", "strata_logs_lines", "Log lines that are kept.", logs.lines)
    page.one("gauge", "strata_logs_size_bytes", "Size of the log on disk.", logs.size_bytes)
    page.by(
        "counter",
        "strata_logs_dropped_total",
        "Log lines that are gone: older than the bound allows, or never stored.",
        "reason",
        [("bound", logs.dropped_lines), ("never_stored", logs.lost_lines)],
    )


def scaled(value: float | None, factor: float) -> float | None:
    """The value in another unit, if there is one."""
    return None if value is None else value * factor
