"""The coordinator itself, and everything at once.

The dashboard's answer stays below `DASHBOARD_BYTES` however large the cluster is: each list shows
its first few, the totals say how many there are, and the lists are halved until it fits.
"""

import time
from collections.abc import Sequence

import msgspec
from litestar import get

from strata.coordinator.http import views
from strata.coordinator.http.attention import attention
from strata.coordinator.http.events import look_back
from strata.coordinator.http.faults import READS
from strata.coordinator.http.logs import recent, shortened
from strata.coordinator.http.models import (
    DashboardResponse,
    Health,
    StatusResponse,
    Totals,
)
from strata.coordinator.http.newest import HAPPENED, NOTABLE, happening
from strata.coordinator.http.paging import by_id, page
from strata.coordinator.http.ports import Api, TheApi
from strata.coordinator.http.tasks import tails
from strata.coordinator.logs import LogEntry, Query
from strata.coordinator.metrics import MetricsSnapshot
from strata.coordinator.observed import Observed
from strata.core.state import Cluster
from strata.core.step_rates import Drop
from strata.timeline.answers import EventAnswer

DASHBOARD_BYTES = 256 * 1024
DASHBOARD_ITEMS = 96
DASHBOARD_NAMES = 8
PROMETHEUS = "text/plain; version=0.0.4"


@get("/health", responses=READS)
async def get_health() -> Health:
    """That the coordinator answers; needs no token."""
    return Health()


@get("/status", responses=READS)
async def get_status(api: TheApi) -> StatusResponse:
    """The coordinator itself."""
    async with api.engine.settled() as state:
        return status(api, state)


@get("/metrics", responses=READS)
async def get_metrics(api: TheApi) -> MetricsSnapshot:
    """The figures of this moment: MB/s, requests per second, workers, milliseconds.

    One that nothing was measured for yet is null.
    """
    return api.metrics.snapshot()


@get("/metrics", media_type=PROMETHEUS, responses=READS)
async def get_prometheus(api: TheApi) -> str:
    """The figures in Prometheus' text format."""
    return api.metrics.prometheus()


@get("/dashboard", responses=READS)
async def get_dashboard(api: TheApi) -> DashboardResponse:
    """Everything at once, in one answer of bounded size."""
    newest = await recent(api, Query(), DASHBOARD_ITEMS)
    logs = [shortened(entry) for entry in newest.entries]
    notable = await look_back(api.engine, NOTABLE, HAPPENED)
    happened = [happening(event) for event in notable]
    async with api.engine.settled() as state:
        items = DASHBOARD_ITEMS
        while True:
            shown = dashboard(
                status(api, state),
                state,
                api.observed,
                api.metrics.snapshot(),
                logs,
                happened,
                items,
                drops=api.metrics.drops(),
            )
            if items == 0 or len(msgspec.json.encode(shown)) <= DASHBOARD_BYTES:
                return shown
            items //= 2


def status(api: Api, state: Cluster) -> StatusResponse:
    """The coordinator itself."""
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
    observed: Observed,
    metrics: MetricsSnapshot,
    logs: list[LogEntry],
    happened: list[EventAnswer],
    items: int,
    now_ns: int | None = None,
    drops: Sequence[Drop] = (),
) -> DashboardResponse:
    """Everything of one moment, now or past, with at most so many items in each list."""
    workers = page(views.shown_workers(state), by_id, items, "")
    datasets = page(state.datasets.values(), by_id, items, "")
    checkpoints = page(views.shown_checkpoints(state), views.checkpoint_order, items, "")
    barriers = page(views.shown_barriers(state), views.barrier_order, items, "")
    tasks = page(state.tasks.values(), views.task_order, items, "")
    tail = tails(logs)
    return DashboardResponse(
        coordinator=coordinator,
        workers=views.workers(state, observed, workers.items),
        datasets=[views.dataset(dataset) for dataset in datasets.items],
        checkpoints=[views.checkpoint(observed, *each) for each in checkpoints.items],
        barriers=[views.barrier(*each, names=DASHBOARD_NAMES) for each in barriers.items],
        metrics=metrics,
        tasks=[
            views.task(state, task, tail.get(task.id, []), DASHBOARD_NAMES) for task in tasks.items
        ],
        logs=logs[:items],
        happened=happened,
        totals=totals(state),
        attention=attention(state, time.time_ns() if now_ns is None else now_ns, drops),
    )


def totals(state: Cluster) -> Totals:
    """How many there are of each."""
    by_status = views.count_workers(state)
    return Totals(
        workers=sum(by_status.values()),
        workers_by_status=by_status,
        datasets=len(state.datasets),
        checkpoints=sum(1 for _ in views.shown_checkpoints(state)),
        barriers=sum(len(task.barriers) for task in state.tasks.values()),
        tasks=len(state.tasks),
        agents=len(state.agents),
    )
