"""Endpoints of the whole cluster: health, status, metrics, dashboard, settings.

The dashboard's answer stays below `DASHBOARD_BYTES` however large the cluster is: each list has
only its first items, `totals` has the full counts, and the lists are halved until the answer fits.
Settings are shown without secrets.
"""

import time

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct, field

from strata.config import Settings, shown
from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.rest.alert_responses import AlertResponse
from strata.coordinator.rest.error_responses import READS
from strata.coordinator.rest.paging import by_id, page
from strata.coordinator.rest.ports import Api, TheApi
from strata.coordinator.rest.response_models import (
    Attention,
    BarrierResponse,
    CheckpointResponse,
    DatasetResponse,
    Health,
    MetricsSnapshot,
    StatusResponse,
    TaskResponse,
    Totals,
    WorkerResponse,
)
from strata.coordinator.rest.routes.event_routes import look_back
from strata.coordinator.rest.routes.log_routes import recent, shortened
from strata.coordinator.rest.routes.task_routes import tails
from strata.coordinator.rest.views import state_views
from strata.coordinator.rest.views.alert_views import alerts, shown_alerts
from strata.coordinator.rest.views.attention import attention
from strata.coordinator.rest.views.live_history import HAPPENED, NOTABLE, happening
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.state import Cluster
from strata.core.tasks.task_queue import Queue
from strata.timeline.answers import EventAnswer

DASHBOARD_BYTES = 256 * 1024
DASHBOARD_ITEMS = 96
DASHBOARD_NAMES = 8
PROMETHEUS = "text/plain; version=0.0.4"


class DashboardResponse(Struct, frozen=True):
    """The whole cluster in one answer of bounded size: first items of each list, and totals."""

    coordinator: StatusResponse
    workers: list[WorkerResponse]
    datasets: list[DatasetResponse]
    checkpoints: list[CheckpointResponse]
    barriers: list[BarrierResponse]
    metrics: MetricsSnapshot
    tasks: list[TaskResponse]
    logs: list[LogEntry]
    totals: Totals
    attention: list[Attention] = field(default_factory=list)
    alerts: list[AlertResponse] = field(default_factory=list)
    happened: list[EventAnswer] = field(default_factory=list)


@get("/health", responses=READS)
async def get_health(api: TheApi) -> Health:
    """Health check; needs no token."""
    return Health(mode=api.mode)


@get("/status", responses=READS)
async def get_status(api: TheApi) -> StatusResponse:
    """Status of the coordinator."""
    async with api.engine.settled() as state:
        return status(api, state)


@get("/metrics", responses=READS)
async def get_metrics(api: TheApi) -> MetricsSnapshot:
    """Present metrics: MB/s, requests per second, workers, milliseconds.

    A metric without a measurement is null.
    """
    return api.metrics.snapshot()


@get("/metrics", media_type=PROMETHEUS, responses=READS)
async def get_prometheus(api: TheApi) -> str:
    """Metrics in Prometheus' text format."""
    return api.metrics.prometheus()


@get("/dashboard", responses=READS)
async def get_dashboard(api: TheApi) -> DashboardResponse:
    """The whole cluster in one answer of bounded size."""
    newest = await recent(api, LogQuery(), DASHBOARD_ITEMS)
    logs = [shortened(entry) for entry in newest.entries]
    notable = await look_back(api.engine, NOTABLE, HAPPENED)
    happened = [happening(event) for event in notable]
    async with api.engine.settled() as state:
        items = DASHBOARD_ITEMS
        while True:
            shown = dashboard(
                status(api, state),
                state,
                api.heartbeats,
                api.metrics.snapshot(),
                logs,
                happened,
                items,
            )
            if items == 0 or len(msgspec.json.encode(shown)) <= DASHBOARD_BYTES:
                return shown
            items //= 2


def status(api: Api, state: Cluster) -> StatusResponse:
    """Status of the coordinator."""
    return StatusResponse(
        connected=True,
        address=api.address,
        uptime=max(0, int(time.time()) - api.started_ms // 1000),
        version=api.version,
        mode=api.mode,
        cluster=state.cluster,
        incarnation=state.coordinator_incarnation,
        position=state.position,
        started_at=api.started_ms,
    )


def dashboard(
    coordinator: StatusResponse,
    state: Cluster,
    heartbeats: Heartbeats,
    metrics: MetricsSnapshot,
    logs: list[LogEntry],
    happened: list[EventAnswer],
    items: int,
    now_ns: int | None = None,
) -> DashboardResponse:
    """The cluster at one moment, present or past, with at most `items` items in each list."""
    workers = page(state_views.shown_workers(state), by_id, items, "")
    datasets = page(state.datasets.values(), by_id, items, "")
    checkpoints = page(
        state_views.shown_checkpoints(state), state_views.checkpoint_order, items, ""
    )
    barriers = page(state_views.shown_barriers(state), state_views.barrier_order, items, "")
    tasks = page(state.tasks.values(), state_views.task_order, items, "")
    tail, queue = tails(logs), Queue(state)
    return DashboardResponse(
        coordinator=coordinator,
        workers=state_views.workers(state, heartbeats, workers.items),
        datasets=[state_views.dataset(dataset) for dataset in datasets.items],
        checkpoints=state_views.checkpoints(heartbeats, checkpoints.items),
        barriers=[state_views.barrier(*each, names=DASHBOARD_NAMES) for each in barriers.items],
        metrics=metrics,
        tasks=[
            state_views.task(state, queue, task, tail.get(task.id, []), DASHBOARD_NAMES)
            for task in tasks.items
        ],
        logs=logs[:items],
        happened=happened,
        totals=totals(state),
        attention=attention(state, time.time_ns() if now_ns is None else now_ns),
        alerts=alerts(shown_alerts(state, items)),
    )


def totals(state: Cluster) -> Totals:
    """Full counts of each list."""
    by_status = state_views.count_workers(state)
    return Totals(
        workers=sum(by_status.values()),
        workers_by_status=by_status,
        datasets=len(state.datasets),
        checkpoints=sum(1 for _ in state_views.shown_checkpoints(state)),
        barriers=sum(len(task.barriers) for task in state.tasks.values()),
        tasks=len(state.tasks),
        agents=len(state.agents),
        alerts=sum(alert.open for alert in state.alerts.values()),
    )


TheSettings = NamedDependency[SkipValidation[Settings]]


class SettingsResponse(Struct, frozen=True):
    """Every setting by name; a secret that is set is `***`."""

    token_needed: bool
    encrypted: bool
    storage: str
    values: dict[str, str | float | bool | None]


@get("/settings", responses=READS)
async def get_settings(settings: TheSettings) -> SettingsResponse:
    """Settings of this coordinator, without secrets."""
    return SettingsResponse(
        token_needed=bool(settings.token),
        encrypted=bool(settings.tls_cert),
        storage=storage(settings),
        values={
            name: shown(name, getattr(settings, name))  # type: ignore[misc]  # plain values all
            for name in settings.__struct_fields__
        },
    )


def storage(settings: Settings) -> str:
    """The storage of checkpoints."""
    if settings.storage_backend == "s3":
        return f"s3://{settings.checkpoint_bucket}"
    return settings.checkpoint_dir or f"{settings.data_dir}/checkpoints"
