"""Checks of requests: JSON bodies, query parameters, limits.

JSON bodies are decoded strictly: a quoted number is not a number, an unknown field is an error. The
framework converts leniently, which is right for a query string and wrong for JSON. Error messages
name the field.

Unknown query parameters are refused, because a misspelt filter must not be ignored; so are bodies
of endpoints without a body. The check runs before every endpoint of the API and takes the names
from the endpoints' signatures.

`HttpLimits` has the limits of the HTTP server; `RateLimit` is the token bucket that limits the rate
of changes.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from litestar import Litestar, Request
from litestar.routes import HTTPRoute
from msgspec import Struct

from strata.errors import UNDECODABLE, InvalidArgument, Overloaded

JSON = "application/json"


class StrictRequest(Request[Any, Any, Any]):
    """A request whose JSON body is decoded as the type that the endpoint declares."""

    async def json(self) -> Any:
        """The decoded body."""
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON:
            raise InvalidArgument(
                f"the content type of the body is {media_type or 'not set'}",
                hint=f"send the header Content-Type: {JSON}",
            )
        expected = self.route_handler.parsed_data_field
        assert expected is not None, "only endpoints that declare a body read it"
        try:
            return msgspec.json.decode(await self.body(), type=expected.annotation)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                worded(str(error)), hint="GET /api/openapi.json describes every request"
            ) from error
        except UNDECODABLE as error:
            raise InvalidArgument(
                f"the body is not JSON: {error}", hint="send one JSON object"
            ) from error


def worded(fault: str) -> str:
    """The message with the field in front: `worker_count: Expected `int`, got `str``."""
    text, _, path = fault.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{field}: {text}" if field else text


CHECKED_BY_ENDPOINT = "checks_its_parameters"
"""Key in an endpoint's `opt`: it checks its parameters itself, because their names vary."""


NOTHING = (b"", b"{}", b"null")
WRITES = ("POST", "PUT", "PATCH", "DELETE")


async def refuse_unknown_parameters(request: Request[Any, Any, Any]) -> None:
    """Raise if the endpoint does not take a query parameter or the body of the request."""
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
    """Names of the query parameters of each endpoint, by path and method."""
    return {
        (route.path_format, method): sorted(
            each.field_alias for each in model.expected_query_params
        )
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (_, model) in route.route_handler_map.items()
    }


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Limits of the HTTP server; requests above them are refused. Those of one client (`_each`)
    are for its network: its address, or the /64 of an IPv6 address."""

    body_bytes: int = 1024 * 1024
    body_timeout_s: float = 30.0
    head_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    heartbeat_s: float = 15.0
    connections: int = 2048
    requests_each: int = 256
    streams: int = 128
    streams_each: int = 64
    writes_per_s: float = 50.0
    writes_burst: int = 200
    clients: int = 1024


class RateLimit:
    """A token bucket per client; the least recently used client is evicted for a new one."""

    def __init__(self, limits: HttpLimits, clock: Callable[[], float]) -> None:
        self._rate_per_s = limits.writes_per_s
        self._burst = limits.writes_burst
        self._clients = limits.clients
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count one request of a client; raises `Overloaded` above its rate."""
        now_s = self._clock()
        tokens, at_s = self._buckets.pop(client, (float(self._burst), now_s))
        tokens = min(tokens + (now_s - at_s) * self._rate_per_s, self._burst)
        enough = tokens >= 1.0
        self._buckets[client] = (tokens - 1.0 if enough else tokens, now_s)
        if len(self._buckets) > self._clients:
            self._buckets.popitem(last=False)
        if not enough:
            raise Overloaded(
                f"this client sent more than {self._rate_per_s:g} changes per second",
                hint="wait a moment between requests that change something",
                retry_after_s=(1.0 - tokens) / self._rate_per_s,
            )
