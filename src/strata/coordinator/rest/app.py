"""The HTTP application: `/api`, the dashboard at `/`, the documentation, access control for all.

The OpenAPI document is generated from the endpoints.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from litestar import HttpMethod, Litestar, Response, Router, get, route
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.params import FromPath

from strata.config import Settings
from strata.coordinator.access.keyring import Keyring
from strata.coordinator.rest import docs_files, page_files
from strata.coordinator.rest.endpoint_roles import check_role
from strata.coordinator.rest.error_responses import HANDLERS
from strata.coordinator.rest.ports import Api, TheApi
from strata.coordinator.rest.request_checks import (
    HttpLimits,
    StrictRequest,
    refuse_unknown_parameters,
)
from strata.coordinator.rest.request_models import CreateTaskRequest, RegisterDatasetRequest
from strata.coordinator.rest.routes import (
    alert_routes,
    audit_routes,
    checkpoint_routes,
    cluster_routes,
    curve_routes,
    dataset_routes,
    event_routes,
    goodput_routes,
    host_routes,
    log_routes,
    media_routes,
    moment_routes,
    node_routes,
    stack_routes,
    task_routes,
    timeline_routes,
    token_routes,
    workdir_routes,
)
from strata.coordinator.rest.security import HEALTH, Access, Guard
from strata.coordinator.rest.views import live_patches, metrics_history
from strata.coordinator.rest.views.past_state import PastReader, past_for
from strata.coordinator.wrong_tokens import WrongTokens

STRICT = (CreateTaskRequest, RegisterDatasetRequest)
"""Bodies that refuse unknown fields; the framework does not document that by itself."""


def describe(routes: Sequence[Router], dependencies: Mapping[str, Provide], version: str) -> bytes:
    """The OpenAPI document of these routes, as JSON."""
    config = OpenAPIConfig(
        title="Strata",
        version=version,
        description=(
            "The coordinator of a Strata cluster. Times are Unix milliseconds. Lists are paged "
            "with `limit` and `cursor`. All errors have the same structure."
        ),
        use_handler_docstrings=True,
        components=Components(
            security_schemes={
                "token": SecurityScheme(
                    type="http", scheme="bearer", description="Required if a token is set."
                )
            }
        ),
        security=[{}, {"token": []}],
    )
    # A separate application, because the serving one would add documentation pages.
    app = Litestar(routes, dependencies=dependencies, openapi_config=config, logging_config=None)
    described: dict[str, Any] = app.openapi_schema.to_schema()
    for body in STRICT:
        described["components"]["schemas"][body.__name__]["additionalProperties"] = False
    return msgspec.json.encode(described)


@route(
    ["/datasets", "/tasks", "/tokens"],
    http_method=[HttpMethod.OPTIONS],
    status_code=204,
    include_in_schema=False,
)
async def list_methods() -> Response[None]:
    """Defined here because the framework omits the second method of a path with two."""
    return Response(None, headers={"Allow": "GET, OPTIONS, POST"})


@route(
    "/tasks/{task_id:str}/stacks",
    http_method=[HttpMethod.OPTIONS],
    status_code=204,
    include_in_schema=False,
)
async def list_methods_of_stacks(task_id: FromPath[str]) -> Response[None]:
    """The same for the stacks of a task."""
    return Response(None, headers={"Allow": "GET, OPTIONS, POST"})


@route(
    "/checkpoints/{checkpoint_id:str}",
    http_method=[HttpMethod.OPTIONS],
    status_code=204,
    include_in_schema=False,
)
async def list_methods_of_one(checkpoint_id: FromPath[str]) -> Response[None]:
    """The same for a checkpoint, which has DELETE."""
    return Response(None, headers={"Allow": "DELETE, GET, OPTIONS"})


@route(
    "/checkpoints/{checkpoint_id:str}/pin",
    http_method=[HttpMethod.OPTIONS],
    status_code=204,
    include_in_schema=False,
)
async def list_methods_of_pin(checkpoint_id: FromPath[str]) -> Response[None]:
    """The same for the pin of a checkpoint, which has DELETE and no GET."""
    return Response(None, headers={"Allow": "DELETE, OPTIONS, POST"})


ENDPOINTS = [
    list_methods,
    list_methods_of_one,
    list_methods_of_pin,
    list_methods_of_stacks,
    cluster_routes.get_health,
    cluster_routes.get_status,
    cluster_routes.get_dashboard,
    cluster_routes.get_metrics,
    metrics_history.get_history,
    live_patches.stream_live,
    alert_routes.list_alerts,
    alert_routes.test_channels,
    node_routes.list_agents,
    node_routes.give_up_agent,
    cluster_routes.get_settings,
    node_routes.list_workers,
    node_routes.get_worker,
    dataset_routes.list_datasets,
    dataset_routes.register_dataset,
    dataset_routes.list_shards,
    dataset_routes.preview_dataset,
    checkpoint_routes.list_checkpoints,
    checkpoint_routes.get_checkpoint,
    checkpoint_routes.verify_checkpoint,
    checkpoint_routes.delete_checkpoint,
    checkpoint_routes.pin_checkpoint,
    checkpoint_routes.unpin_checkpoint,
    checkpoint_routes.list_barriers,
    task_routes.list_tasks,
    task_routes.create_task,
    task_routes.get_task,
    task_routes.stop_task,
    task_routes.continue_task,
    task_routes.fork_task,
    task_routes.restart_task,
    task_routes.resize_task,
    task_routes.request_checkpoint,
    log_routes.list_logs,
    log_routes.list_task_logs,
    event_routes.list_events,
    event_routes.stream_facts,
    event_routes.stream_logs,
    *timeline_routes.ENDPOINTS,
    *media_routes.ENDPOINTS,
    *curve_routes.ENDPOINTS,
    *goodput_routes.ENDPOINTS,
    *moment_routes.ENDPOINTS,
    *host_routes.ENDPOINTS,
    *stack_routes.ENDPOINTS,
    *audit_routes.ENDPOINTS,
    *workdir_routes.ENDPOINTS,
    *token_routes.ENDPOINTS,
]


def create_app(
    api: Api,
    settings: Settings,
    limits: HttpLimits | None = None,
    past: PastReader | None = None,
    wrong_tokens: WrongTokens | None = None,
) -> Guard:
    """The application with access control; raises if it would be reachable without a token."""
    limits = limits or HttpLimits()
    pages = page_files.page_urls(settings.standby_pages)
    files = page_files.load(api_url=settings.page_api_url, standby_pages=",".join(pages))
    documents = docs_files.listed()
    closing = asyncio.Event()
    recent = metrics_history.History(api.metrics)
    past = past or PastReader(api.engine, settings)
    app = Litestar(
        [
            *routes(),
            get_description,
            docs_files.serving_docs(documents),
            *(page_files.serving(path, file) for path, file in files.items()),
        ],
        dependencies=provided(api, closing, limits, recent, live_patches.Live(api), past, settings),
        lifespan=[recent.sampling],
        on_shutdown=[past.close, api.log_reads.close],
        exception_handlers=HANDLERS,
        guards=[check_role],
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
        standby_pages=pages,
        open_paths=frozenset({HEALTH, docs_files.PREFIX, *files, *documents}),
        streams=event_routes.PATHS,
        keyring=api.keyring or Keyring(lambda: api.engine.kernel.state, settings.token),
    )
    counted = partial(api.metrics.count_request, "http")
    return Guard(app, access, limits, closing, counted, wrong_tokens)


def routes() -> list[Router]:
    """The endpoints with their path prefixes."""
    check = refuse_unknown_parameters
    return [
        Router("/api", route_handlers=ENDPOINTS, before_request=check),
        Router("/", route_handlers=[cluster_routes.get_prometheus], before_request=check),
    ]


def provided(
    api: Api | None = None,
    closing: asyncio.Event | None = None,
    limits: HttpLimits | None = None,
    recent: metrics_history.History | None = None,
    patches: live_patches.Live | None = None,
    past: PastReader | None = None,
    settings: Settings | None = None,
) -> dict[str, Provide]:
    """Dependencies of the endpoints by name; None values are enough for the OpenAPI document."""
    heartbeat_s = (limits or HttpLimits()).heartbeat_s
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
    """Generated at the first request, because it takes a third of the coordinator's start time."""
    return Response(document(api.version), media_type="application/json")


@cache
def document(version: str) -> bytes:
    """The OpenAPI document."""
    return describe(routes(), provided(), version)
