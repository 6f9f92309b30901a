"""Endpoints of hosts: list them, exclude and include them; their past and the history of their
health."""

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody

from strata.coordinator.rest.error_responses import READS, READS_ONE, WRITES
from strata.coordinator.rest.host_responses import (
    ExcludeHostRequest,
    GpuChangedResponse,
    HostChangedResponse,
    HostResponse,
    IncludeHostRequest,
)
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    by_id,
    page,
    paged,
)
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.routes.moment_routes import Moment, Named, moment_of
from strata.coordinator.rest.views import host_views
from strata.coordinator.rest.views.past_state import ThePast
from strata.core.hosts.gpu_exclusion import ExcludeGpu, IncludeGpu
from strata.core.hosts.host_exclusion import ExcludeHost, IncludeHost
from strata.timeline.answers import HostHistory


@get("/hosts", responses=READS, response_headers=HEADERS)
async def list_hosts(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[HostResponse]]:
    """Hosts with an agent or with measured health, by name."""
    async with api.engine.settled() as state:
        found = page(host_views.known_hosts(state), by_id, limit, cursor)
        shown = host_views.hosts(state, api.heartbeats, found.items)
        return paged(shown, found.total, found.next_cursor)


@post("/hosts/{host_id:str}/exclude", status_code=200, responses=WRITES)
async def exclude_host(
    api: TheApi, host_id: FromPath[str], data: JSONBody[ExcludeHostRequest]
) -> HostChangedResponse:
    """Place no worker on a host from now on; running ones go on."""
    await api.engine.submit(ExcludeHost(host=host_id, reason=data.reason))
    return HostChangedResponse(host_id)


@post("/hosts/{host_id:str}/include", status_code=200, responses=WRITES)
async def include_host(
    api: TheApi, host_id: FromPath[str], data: JSONBody[IncludeHostRequest]
) -> HostChangedResponse:
    """Place workers on an excluded host again."""
    await api.engine.submit(IncludeHost(host=host_id, reason=data.reason))
    return HostChangedResponse(host_id)


@post("/hosts/{host_id:str}/gpus/{gpu:str}/exclude", status_code=200, responses=WRITES)
async def exclude_gpu(
    api: TheApi, host_id: FromPath[str], gpu: FromPath[str], data: JSONBody[ExcludeHostRequest]
) -> GpuChangedResponse:
    """Give a GPU, by its index or UUID, to no worker from now on; running ones go on."""
    await api.engine.submit(ExcludeGpu(host=host_id, gpu=gpu, reason=data.reason))
    return GpuChangedResponse(host_id, gpu)


@post("/hosts/{host_id:str}/gpus/{gpu:str}/include", status_code=200, responses=WRITES)
async def include_gpu(
    api: TheApi, host_id: FromPath[str], gpu: FromPath[str], data: JSONBody[IncludeHostRequest]
) -> GpuChangedResponse:
    """Give an excluded GPU to workers again."""
    await api.engine.submit(IncludeGpu(host=host_id, gpu=gpu, reason=data.reason))
    return GpuChangedResponse(host_id, gpu)


@get("/timeline/hosts", responses=READS_ONE)
async def list_hosts_then(past: ThePast, time_ms: Moment = None) -> list[HostResponse]:
    """Hosts at a moment, by name, at most 500."""
    return await past.ask(
        lambda queries: host_views.hosts_at(queries.timeline, moment_of(queries, time_ms))
    )


@get("/timeline/host-health", responses=READS_ONE)
async def get_host_history(past: ThePast, host: Named, time_ms: Moment = None) -> HostHistory:
    """The recorded health of a host and its GPUs in the hour before a moment."""
    return await past.ask(
        lambda queries: host_views.history_of(queries.timeline, host, moment_of(queries, time_ms))
    )


ENDPOINTS = [
    list_hosts,
    exclude_host,
    include_host,
    exclude_gpu,
    include_gpu,
    list_hosts_then,
    get_host_history,
]
