"""Refuses query parameters that an endpoint does not have: a misspelt filter must not be ignored.

It runs before every endpoint of the API, and learns the names from the endpoints themselves.
"""

from functools import lru_cache
from typing import Any

from litestar import Litestar, Request
from litestar.routes import HTTPRoute

from strata.errors import InvalidArgument

CHECKED_BY_ENDPOINT = "checks_its_parameters"
"""In an endpoint's `opt`: it refuses unknown parameters itself, since their names vary."""


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> None:
    """Raise if the request has a query parameter that the endpoint does not have."""
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
