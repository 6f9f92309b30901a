"""Error answers: one JSON structure, with the status from the table in `strata.errors`.

Errors of the framework (unknown path, parameter of a wrong type, body too large) have the same
structure. Only status 405 is not in the table, because only HTTP has methods.
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

from strata.coordinator.rest.response_models import ErrorDetail, ErrorResponse
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
    400: "The request is invalid.",
    401: "The request has no valid token.",
    403: "The Host or the Origin is not allowed.",
    404: "The requested object does not exist.",
    409: "The state of the cluster does not allow it.",
    413: "The body or a field is larger than its limit.",
    429: "Too many requests; try again after a moment.",
    500: "The coordinator failed to answer.",
    503: "The coordinator is stopping, or could not record the change.",
    504: "The request took too long to arrive.",
}


def documented(*statuses: int) -> dict[int, ResponseSpec]:
    """Error answers of an endpoint, including those that every endpoint may give."""
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
    """HTTP status of an error; a subclass without a row has the status of its parent."""
    return next(STATUS[kind].http for kind in type(error).__mro__ if kind in STATUS)


def headers_of(error: StrataError) -> dict[str, str]:
    """Response headers of an error."""
    if isinstance(error, Overloaded):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    return {}


def answer_of(error: StrataError) -> ErrorResponse:
    """An error as a JSON structure."""
    return ErrorResponse(ErrorDetail(error.code, error.message, error.hint))


def on_refusal(_: AnyRequest, error: StrataError) -> Response[ErrorResponse]:
    """Answer with a typed error; log it if it is not the caller's fault."""
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("answered %d: %s", status, error)
    return Response(answer_of(error), status_code=status, headers=headers_of(error))


def on_http_exception(request: AnyRequest, error: HTTPException) -> Response[ErrorResponse]:
    """Answer with an error of the framework, reworded."""
    kind = BY_STATUS.get(error.status_code, StrataError)
    message, hint = _worded(request, error)
    refusal = kind(message, hint=hint)
    return Response(
        answer_of(refusal),
        status_code=error.status_code,
        headers=headers_of(refusal) | (error.headers or {}),
    )


def _worded(request: AnyRequest, error: HTTPException) -> tuple[str, str]:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return (
            f"there is no endpoint {request.url.path}",
            "GET /api/openapi.json lists all endpoints",
        )
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("allow", "another method")
        return f"{request.url.path} does not allow {request.method}", f"use {allowed}"
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return "the body is too large", "send a smaller config or metadata"
    details = error.extra if isinstance(error.extra, list) else []
    faults = [f"{each.get('key', 'the request')}: {each.get('message')}" for each in details]
    return "; ".join(faults) or error.detail, "GET /api/openapi.json describes every request"


def on_bug(request: AnyRequest, error: Exception) -> Response[ErrorResponse]:
    """Answer an unexpected exception with status 500, and log its traceback."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    refusal = StrataError(
        "the coordinator failed to answer", hint="its log has the traceback; please report it"
    )
    return Response(answer_of(refusal), status_code=HTTPStatus.INTERNAL_SERVER_ERROR)


HANDLERS: ExceptionHandlersMap = {
    StrataError: on_refusal,
    HTTPException: on_http_exception,
    Exception: on_bug,
}


async def send_refusal(send: Send, error: StrataError) -> None:
    """Send an error answer without the framework."""
    body = msgspec.json.encode(answer_of(error))
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
