"""Refusals as answers: one shape, the status from the table in `strata.errors`.

What the framework refuses (no such path, a parameter of a wrong type, a body that is too large)
is told in the same shape. 405 is the one status that the table does not know, since only HTTP has
methods.
"""

import logging
import math
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ExceptionHandlersMap, Send

from strata.coordinator.http.models import ErrorDetail, ErrorResponse
from strata.errors import (
    STATUS,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    Overloaded,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
)

log = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]

BY_STATUS: dict[int, type[StrataError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: InvalidArgument,
    413: LimitExceeded,
    429: Overloaded,
    503: Unavailable,
}

DESCRIPTIONS = {
    400: "The request makes no sense, whatever the state.",
    401: "No token, or not a valid one.",
    403: "The Host or the Origin is not one that may ask.",
    404: "The thing named does not exist.",
    409: "The state of the cluster forbids it.",
    413: "The body or something in it is larger than its limit.",
    429: "Too many at once; try again after a moment.",
    500: "The coordinator failed to answer.",
    503: "The coordinator is stopping, or could not record the change.",
    504: "The request took too long to arrive.",
}


def documented(*statuses: int) -> dict[int, ResponseSpec]:
    """The refusals that an endpoint may answer with, besides those that any may."""
    return {
        status: ResponseSpec(
            ErrorResponse, generate_examples=False, description=DESCRIPTIONS[status]
        )
        for status in sorted({400, 401, 403, 500, *statuses})
    }


READS = documented()
READS_ONE = documented(404)
STREAMS = documented(429)
WRITES = documented(404, 409, 413, 429, 503, 504)


def status_of(error: StrataError) -> int:
    """The status an error travels with; a kind of its own travels like its parent."""
    return next(STATUS[kind].http for kind in type(error).__mro__ if kind in STATUS)


def headers_of(error: StrataError) -> dict[str, str]:
    """The headers that belong to an error."""
    if isinstance(error, Overloaded):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    return {}


def told(error: StrataError) -> ErrorResponse:
    """An error as callers read it."""
    return ErrorResponse(ErrorDetail(error.code, error.message, error.hint))


def on_refusal(_: AnyRequest, error: StrataError) -> Response[ErrorResponse]:
    """A typed error becomes its answer; what is not the caller's fault is also logged."""
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("answered %d: %s", status, error)
    return Response(told(error), status_code=status, headers=headers_of(error))


def on_http_exception(request: AnyRequest, error: HTTPException) -> Response[ErrorResponse]:
    """What the framework refuses, in our words."""
    kind = BY_STATUS.get(error.status_code, StrataError)
    message, hint = _worded(request, error)
    refusal = kind(message, hint=hint)
    return Response(
        told(refusal),
        status_code=error.status_code,
        headers=headers_of(refusal) | (error.headers or {}),
    )


def _worded(request: AnyRequest, error: HTTPException) -> tuple[str, str]:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return (
            f"there is nothing at {request.url.path}",
            "GET /api/openapi.json lists what there is",
        )
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("allow", "another method")
        return f"{request.method} is not possible at {request.url.path}", f"use {allowed}"
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "the body is too large", "send less; config and metadata are meant to be small"
    details = error.extra if isinstance(error.extra, list) else []
    faults = [f"{each.get('key', 'the request')}: {each.get('message')}" for each in details]
    return "; ".join(faults) or error.detail, "GET /api/openapi.json says what is expected"


def on_bug(request: AnyRequest, error: Exception) -> Response[ErrorResponse]:
    """A defect of ours: told as such, and logged with everything."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    refusal = StrataError(
        "the coordinator failed to answer", hint="its log says why; please report it"
    )
    return Response(told(refusal), status_code=HTTPStatus.INTERNAL_SERVER_ERROR)


HANDLERS: ExceptionHandlersMap = {
    StrataError: on_refusal,
    HTTPException: on_http_exception,
    Exception: on_bug,
}


async def send_refusal(send: Send, error: StrataError) -> None:
    """Answers with an error before the framework is reached."""
    body = msgspec.json.encode(told(error))
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers_of(error),
    }
    await send(
        {
            "type": "http.response.start",
            "status": status_of(error),
            "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
