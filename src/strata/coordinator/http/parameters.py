"""Refuses query parameters that an endpoint does not have, and bodies of endpoints that take none.

A misspelt filter or a flag in the wrong place must not be ignored. It runs before every endpoint of
the API, and learns the names from the endpoints themselves. The fields of a body are checked where
it is decoded.
"""

from functools import lru_cache
from typing import Any

from litestar import Litestar, Request
from litestar.routes import HTTPRoute

from strata.errors import InvalidArgument

CHECKED_BY_ENDPOINT = "checks_its_parameters"
"""In an endpoint's `opt`: it refuses unknown parameters itself, since their names vary."""


NOTHING = (b"", b"{}", b"null")
WRITES = ("POST", "PUT", "PATCH", "DELETE")


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> None:
    """Raise if the request has a query parameter or a body that the endpoint does not have."""
    await _refuse_body(request)
    if not request.scope["query_string"] or request.method == "OPTIONS":
        return
    if request.route_handler.opt.get(CHECKED_BY_ENDPOINT):
        return
    known = known_parameters(request.app)[request.scope["path_template"], request.method]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise InvalidArgument(
            f"{request.url.path} has no parameter {unknown[0][:100]!r}",
            hint=f"its parameters are {', '.join(known)}" if known else "it has no parameters",
        )


async def _refuse_body(request: Request[Any, Any, Any]) -> None:
    takes_body = "data" in request.route_handler.parsed_fn_signature.parameters
    if request.method not in WRITES or takes_body:
        return
    if (await request.body()).strip() not in NOTHING:
        raise InvalidArgument(
            f"{request.method} {request.url.path} takes no body",
            hint="send it without a body, or with {}; GET /api/openapi.json describes every call",
        )


@lru_cache(4)
def known_parameters(app: Litestar) -> dict[tuple[str, str], list[str]]:
    """The names of the query parameters of each endpoint, by path and method."""
    return {
        (route.path_format, method): sorted(
            each.field_alias for each in model.expected_query_params
        )
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (_, model) in route.route_handler_map.items()
    }
