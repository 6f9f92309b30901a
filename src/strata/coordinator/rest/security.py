"""Access control of the HTTP server, checked before a request reaches an endpoint.

Submitting a task runs code, and any web page in a browser can reach a port on this machine. So:

- Without a token the API listens on loopback only, and answers only the user that started the
  coordinator and root. There the Host header must name this machine: a foreign name that resolves
  to it (DNS rebinding) is refused.
- With a token, all but health and the dashboard's files needs one, as `Authorization: Bearer`
  or as a cookie. Opening the dashboard with `?token=` sets the cookie and redirects to the plain
  URL. The cookie has a value derived from the token, because other ports of this host can read it.
- Each endpoint needs a role (`access/required_roles`); a stream ends when its token is revoked.
- A request that changes something, and a stream, must come from the dashboard or from a program
  that is not a browser: the Origin must be the requested host or the configured one
  (`page_origin`); only the configured origin gets CORS headers.
- The rate of changes, the running requests, the streams and the wrong tokens of a client are
  limited; bodies must arrive in time.
"""

import asyncio
import os
import pwd
import time
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from litestar.enums import ScopeType
from litestar.types import (
    ASGIApp,
    HTTPReceiveMessage,
    HTTPScope,
    Message,
    Receive,
    Scope,
    Send,
    WebSocketReceiveMessage,
)
from litestar.utils.path import normalize_path
from msgspec import Struct

from strata.coordinator.access.keyring import Identity, Keyring, is_made, other_user, owner
from strata.coordinator.access.required_roles import READS, SAFE_METHODS, require_role
from strata.coordinator.rest.admission import Admission
from strata.coordinator.rest.endpoint_roles import IDENTITY, HeldStream
from strata.coordinator.rest.error_responses import send_refusal
from strata.coordinator.rest.page_files import (
    Headers,
    api_origin,
    check_api_url,
    check_page_origin,
    cors_headers,
)
from strata.coordinator.rest.read_queue import CLIENT
from strata.coordinator.rest.request_checks import HttpLimits
from strata.coordinator.wrong_tokens import WrongTokens
from strata.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    SettingError,
    StrataError,
    Unauthenticated,
)
from strata.wire.grpc.connection_budget import network_of
from strata.wire.peer_user import ROOT, Address, peer_user

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEALTH = "/api/health"
COOKIE_AGE_S = 30 * 86_400

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def security_headers(page_api_url: str = "", standby_pages: Sequence[str] = ()) -> Headers:
    """The headers of every response; the dashboard may also connect to these origins."""
    origins = " ".join(filter(None, ("'self'", api_origin(page_api_url), *standby_pages)))
    policy = HEADERS["Content-Security-Policy"]
    policy = policy.replace("connect-src 'self'", f"connect-src {origins}")
    headers = HEADERS | {"Content-Security-Policy": policy}
    return [(name.lower().encode(), text.encode()) for name, text in headers.items()]


class Head(Struct, frozen=True):
    """A request without its body."""

    method: str
    path: str
    query: str
    client: str
    headers: Mapping[str, str]
    ends: tuple[Address, Address] | None = None
    """The addresses of the client and of this server."""

    @property
    def changes(self) -> bool:
        """Whether the request may change something."""
        return self.method not in SAFE_METHODS

    @property
    def network(self) -> str:
        """The client's network, for which limits are; empty if the client has disconnected."""
        return network_of(self.client)

    @property
    def carries_token(self) -> bool:
        """Whether the client sent what may be a token, right or wrong."""
        cookie = "strata_" in self.headers.get("cookie", "")
        return "authorization" in self.headers or cookie or "token=" in self.query

    @property
    def host(self) -> str:
        """Requested host and port."""
        return self.headers.get("host", "").lower()


def head_of(scope: HTTPScope) -> Head:
    """The head of an ASGI request."""
    client, server = scope.get("client"), scope.get("server")
    ends = None
    if client is not None and server is not None and server[1] is not None:
        ends = (client[0], client[1]), (server[0], server[1])
    return Head(
        method=scope["method"],
        path=normalize_path(scope["path"]),
        query=scope["query_string"].decode("latin-1"),
        client=client[0] if client else "",
        headers={name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]},
        ends=ends,
    )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Access(Struct, frozen=True, kw_only=True):
    """Access rules: listening address, token, allowed origins, paths without a token."""

    host: str
    token: str = ""
    page_origin: str = ""
    page_api_url: str = ""
    standby_pages: Sequence[str] = ()
    open_paths: frozenset[str] = frozenset()
    streams: frozenset[str] = frozenset()
    keyring: Keyring | None = None

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise SettingError(
                f"http_host is {self.host}, which other machines can reach, but no token is set",
                hint="set a token, or listen on 127.0.0.1",
            )
        if self.page_origin:
            check_page_origin(self.page_origin)
        if self.page_api_url:
            check_api_url(self.page_api_url)

    def check(self, head: Head) -> Identity | None:
        """Raise if the request is not allowed; who sends it, None for a path that is open."""
        self.check_host(head)
        if (head.changes or head.path in self.streams) and not self.is_page(head):
            check_origin(head)
        if head.path in self.open_paths:
            return None
        known = self._known(head)
        if known is not None:
            return known
        if self.token or is_made(bearer(head)):
            raise Unauthenticated(
                "a valid token is needed",
                hint="send 'Authorization: Bearer <token>', or open the page with ?token=<token>",
            )
        user = peer_user(*head.ends) if head.ends else None
        if user not in (ROOT, os.geteuid()):
            raise other_user()
        return owner(user_name(user))

    def is_page(self, head: Head) -> bool:
        """Whether the request comes from the dashboard of another server (`page_origin`)."""
        return bool(self.page_origin) and head.headers.get("origin") == self.page_origin

    def is_probe(self, head: Head) -> bool:
        """Whether the dashboard of another coordinator asks if this one answers."""
        return head.path == HEALTH and head.headers.get("origin") in self.standby_pages

    def check_login(self, head: Head) -> Identity | None:
        """Who opens the dashboard with a token; raises if the token is wrong."""
        if head.path != "/" or "token=" not in head.query or self.keyring is None:
            return None
        given = parse_qs(head.query, max_num_fields=16).get("token", [""])[0]
        if not (self.token or is_made(given)):
            return None
        known = self.keyring.identify(given)
        if known is None:
            raise Unauthenticated(
                "the token is not valid", hint="copy the token that `strata up` printed"
            )
        require_role(known, READS, "the dashboard")
        return known

    def check_host(self, head: Head) -> None:
        if not head.host:
            raise InvalidArgument("there is no Host header", hint="HTTP/1.1 requires one")
        if is_loopback(self.host) and hostname(head.host) not in LOOPBACK_NAMES | {self.host}:
            raise PermissionDenied(
                f"this coordinator is not {head.host[:100]!r}",
                hint="it listens on this machine only: use localhost",
            )

    def _known(self, head: Head) -> Identity | None:
        assert self.keyring is not None, "requests are served with a keyring"
        given = bearer(head)
        known = self.keyring.identify(given) if given else None
        return known or self.keyring.identify_cookie(cookie_of(head, self.keyring.cookie_name()))


def bearer(head: Head) -> str:
    """The token in the Authorization header, or empty."""
    scheme, _, given = head.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def user_name(user: int | None) -> str:
    """The name of a user of this machine; the number if it has none."""
    try:
        return pwd.getpwuid(user or ROOT).pw_name
    except KeyError:
        return str(user)


def hostname(host: str) -> str:
    """The host name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def netloc(origin: str) -> str:
    """Host and port of an origin; empty if it has none, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def check_origin(head: Head) -> None:
    """Raise if a web page of another site sent the request; only browsers send these headers."""
    origin = head.headers.get("origin")
    foreign = origin is not None and netloc(origin) != head.host
    if foreign or head.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise PermissionDenied(
            f"web pages of {(origin or 'another site')[:100]!r} may not send this request",
            hint="use the coordinator's dashboard, the command line or a program",
        )


def cookie_of(head: Head, name: str) -> str:
    """Value of a cookie, or empty."""
    try:
        found = SimpleCookie(head.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


class Guard:
    """ASGI middleware that checks access and adds security headers."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: HttpLimits,
        closing: asyncio.Event,
        count_request: Callable[[], None],
        wrong_tokens: WrongTokens | None = None,
    ) -> None:
        self.app = app
        self.access = access
        self.limits = limits
        self.closing = closing
        self._count_request = count_request
        self._wrong_tokens = wrong_tokens or WrongTokens(time.monotonic)
        self.admission = Admission(limits)
        self._headers = security_headers(access.page_api_url, access.standby_pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        self._count_request()
        head = head_of(scope)
        cross_origin = self.access.is_page(head)
        more = cors_headers(self.access.page_origin) if cross_origin else []
        if self.access.is_probe(head):
            more = [(b"access-control-allow-origin", head.headers["origin"].encode())]
        send = with_headers(send, head, [*self._headers, *more])
        try:
            if cross_origin and head.method == "OPTIONS":
                self.access.check_host(head)
                await send_nothing(send, 200, [])
                return
            identity = self.access.check(head)
            login = self.access.check_login(head)
            await self._answer(head, scope, receive, send, identity, login)
        except Unauthenticated as error:
            answer = self._wrong_tokens.answer(head.network, error) if head.carries_token else error
            await send_refusal(send, answer)
        except StrataError as error:
            await send_refusal(send, error)

    async def _answer(
        self,
        head: Head,
        scope: HTTPScope,
        receive: Receive,
        send: Send,
        identity: Identity | None,
        login: Identity | None,
    ) -> None:
        """Answer a request that passed the checks, if the client has not too many others."""
        CLIENT.set(head.network)
        scope[IDENTITY] = identity  # type: ignore[literal-required]
        streams = head.path in self.access.streams
        with self.admission.admitted(head.network, changes=head.changes, streams=streams):
            if head.path not in self.access.open_paths:
                mark_in_use(scope)
            if login is not None:
                await self._log_in(login, scope, send)
            elif streams:
                held = HeldStream(self.access.keyring, identity)
                await self.app(scope, held.receiving(receive), held.sending(send))
                await held.finish(send)
            else:
                await self.app(scope, in_time(receive, self.limits.body_timeout_s), send)

    async def _log_in(self, identity: Identity, scope: HTTPScope, send: Send) -> None:
        assert self.access.keyring is not None
        name, value = self.access.keyring.cookie_name(), self.access.keyring.cookie_for(identity)
        cookie = (
            f"{name}={value}; Path=/; HttpOnly; SameSite=Lax; "
            f"Max-Age={COOKIE_AGE_S}{'; Secure' if scope['scheme'] == 'https' else ''}"
        )
        await send_nothing(send, 303, [(b"location", b"/"), (b"set-cookie", cookie.encode())])


def mark_in_use(scope: HTTPScope) -> None:
    """Tell the connection, if the server gave one, that it serves a client that is allowed to."""
    if (allow := scope.get("state", {}).get("allow")) is not None:
        allow()


async def send_nothing(send: Send, status: int, headers: Headers) -> None:
    """Send a response without a body."""
    headers = [*headers, (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def with_headers(send: Send, head: Head, added: Headers) -> Send:
    """Add the security headers, and `no-store` to responses of the API.

    Files of the dashboard set their own Cache-Control.
    """
    caching = [(b"cache-control", b"no-store" if head.path.startswith("/api") else b"no-cache")]

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            cached = any(name.lower() == b"cache-control" for name, _ in headers)
            message["headers"] = [*headers, *added, *([] if cached else caching)]
        await send(message)

    return wrapped


def in_time(receive: Receive, seconds: float) -> Receive:
    """Limit the time in which a body must arrive."""
    deadline_s = asyncio.get_running_loop().time() + seconds
    complete = False

    async def wrapped() -> HTTPReceiveMessage | WebSocketReceiveMessage:
        nonlocal complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the body did not arrive within {seconds:g} s", hint="send the request again"
            ) from error
        complete = not message.get("more_body", False)
        return message

    return wrapped
