"""The application: the endpoints under `/api`, the page at `/`, and the guard before both."""

import asyncio
from functools import cache

from litestar import HttpMethod, Litestar, Response, Router, get, route
from litestar.di import Provide
from litestar.params import FromPath

from strata.config import Settings
from strata.coordinator.http import (
    agents,
    audit,
    checkpoints,
    cluster,
    configured,
    datasets,
    events,
    history,
    live,
    logs,
    moments,
    page,
    saved,
    stream,
    tasks,
    timeline,
    workers,
)
from strata.coordinator.http.bodies import StrictRequest
from strata.coordinator.http.faults import HANDLERS
from strata.coordinator.http.limits import Limits
from strata.coordinator.http.openapi import describe
from strata.coordinator.http.parameters import refuse_unknown_parameters
from strata.coordinator.http.past import PastReader, past_for
from strata.coordinator.http.ports import Api, TheApi
from strata.coordinator.http.security import Access, Guard


@route(
    ["/datasets", "/tasks"],
    http_method=[HttpMethod.OPTIONS],
    status_code=204,
    include_in_schema=False,
)
async def list_methods() -> Response[None]:
    """Said here because the framework forgets the second method of a path that has two."""
    return Response(None, headers={"Allow": "GET, OPTIONS, POST"})


@route(
    "/checkpoints/{checkpoint_id:str}",
    http_method=[HttpMethod.OPTIONS],
    status_code=204,
    include_in_schema=False,
)
async def list_methods_of_one(checkpoint_id: FromPath[str]) -> Response[None]:
    """The same for one that can be deleted."""
    return Response(None, headers={"Allow": "DELETE, GET, OPTIONS"})


ENDPOINTS = [
    list_methods,
    list_methods_of_one,
    cluster.get_health,
    cluster.get_status,
    cluster.get_dashboard,
    cluster.get_metrics,
    history.get_history,
    live.stream_live,
    agents.list_agents,
    agents.give_up_agent,
    configured.get_settings,
    workers.list_workers,
    workers.get_worker,
    datasets.list_datasets,
    datasets.register_dataset,
    datasets.list_shards,
    datasets.preview_dataset,
    checkpoints.list_checkpoints,
    checkpoints.get_checkpoint,
    saved.verify_checkpoint,
    saved.delete_checkpoint,
    checkpoints.list_barriers,
    tasks.list_tasks,
    tasks.create_task,
    tasks.get_task,
    tasks.stop_task,
    tasks.restart_task,
    tasks.request_checkpoint,
    logs.list_logs,
    logs.list_task_logs,
    events.list_events,
    stream.stream_facts,
    stream.stream_logs,
    *timeline.ENDPOINTS,
    *moments.ENDPOINTS,
    *audit.ENDPOINTS,
]


def create_app(api: Api, settings: Settings, limits: Limits | None = None) -> Guard:
    """The guarded application; refuses settings that would leave it open to strangers."""
    limits = limits or Limits()
    files = page.load(api_url=settings.page_api_url)
    closing = asyncio.Event()
    recent = history.History(api.metrics)
    past = PastReader(api.engine, settings)
    app = Litestar(
        [*routes(), get_description, *(page.serving(path, file) for path, file in files.items())],
        dependencies=provided(api, closing, limits, recent, live.Live(api), past, settings),
        lifespan=[recent.sampling],
        on_shutdown=[past.close],
        exception_handlers=HANDLERS,
        request_class=StrictRequest,
        request_max_body_size=limits.body_bytes,
        openapi_config=None,
        logging_config=None,
    )
    access = Access(
        host=settings.http_host,
        token=settings.token,
        page_origin=settings.page_origin,
        page_api_url=settings.page_api_url,
        open_paths=frozenset({"/api/health", *files}),
        streams=stream.PATHS,
    )
    return Guard(app, access, limits, closing, lambda: api.metrics.count_request("http"))


def routes() -> list[Router]:
    """The endpoints, each where it belongs."""
    check = refuse_unknown_parameters
    return [
        Router("/api", route_handlers=ENDPOINTS, before_request=check),
        Router("/", route_handlers=[cluster.get_prometheus], before_request=check),
    ]


def provided(
    api: Api | None = None,
    closing: asyncio.Event | None = None,
    limits: Limits | None = None,
    recent: history.History | None = None,
    patches: live.Live | None = None,
    past: PastReader | None = None,
    settings: Settings | None = None,
) -> dict[str, Provide]:
    """What endpoints may ask for, by name; nothing at all where they are only described."""
    heartbeat_s = (limits or Limits()).heartbeat_s
    return {
        "api": Provide(lambda: api, sync_to_thread=False),
        "closing": Provide(lambda: closing, sync_to_thread=False),
        "heartbeat_s": Provide(lambda: heartbeat_s, sync_to_thread=False),
        "history": Provide(lambda: recent, sync_to_thread=False),
        "archive": Provide(lambda: past, sync_to_thread=False),
        "past": Provide(past_for, sync_to_thread=False),
        "live": Provide(lambda: patches, sync_to_thread=False),
        "settings": Provide(lambda: settings, sync_to_thread=False),
    }


@get(
    "/api/openapi.json",
    include_in_schema=False,
    sync_to_thread=True,
    before_request=refuse_unknown_parameters,
)
def get_description(api: TheApi) -> Response[bytes]:
    """Made when it is first asked for: it takes as long as a third of the coordinator's start."""
    return Response(document(api.version), media_type="application/json")


@cache
def document(version: str) -> bytes:
    """The OpenAPI document; the same for every application of this release."""
    return describe(routes(), provided(), version)
