"""Who may ask: checked before a request reaches an endpoint.

Submitting a task runs code, and any page in a browser can reach a port on this machine. So:

- Without a token the API listens on loopback only. There the Host header must name this machine:
  a foreign name that was made to resolve to it (DNS rebinding) is refused.
- With a token, everything but health and the page's files needs it: as `Authorization: Bearer`,
  or as a cookie. Opening the page with `?token=` sets the cookie and leads to the plain address.
  The cookie holds a value made from the token, since other ports of this host can see it.
- A request that changes something, and a stream, must come from the page itself or from something
  that is no browser: the Origin must be the host that is asked, or the one that is set
  (`elsewhere`); no other is ever sent a CORS header.
- Requests that change something are paced per client; bodies must arrive in time.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
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

from strata.coordinator.http.elsewhere import (
    Headers,
    api_origin,
    check_api_url,
    check_page_origin,
    permission,
)
from strata.coordinator.http.faults import send_refusal
from strata.coordinator.http.limits import Limits, Pace
from strata.errors import (
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    PermissionDenied,
    SettingError,
    StrataError,
    Unauthenticated,
)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
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


def security_headers(page_api_url: str = "") -> Headers:
    """The headers of every answer; the page may also connect to the API that it was given."""
    origin = api_origin(page_api_url)
    policy = HEADERS["Content-Security-Policy"]
    if origin:
        policy = policy.replace("connect-src 'self'", f"connect-src 'self' {origin}")
    headers = HEADERS | {"Content-Security-Policy": policy}
    return [(name.lower().encode(), text.encode()) for name, text in headers.items()]


class Head(Struct, frozen=True):
    """What is known of a request before its body; a header that is not there is empty."""

    method: str
    path: str
    query: str
    client: str
    headers: Mapping[str, str]

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in SAFE_METHODS

    @property
    def host(self) -> str:
        """Host and port that were asked."""
        return self.headers.get("host", "").lower()


def head_of(scope: HTTPScope) -> Head:
    """The head of a request."""
    client = scope.get("client")
    return Head(
        method=scope["method"],
        path=normalize_path(scope["path"]),
        query=scope["query_string"].decode("latin-1"),
        client=client[0] if client else "",
        headers={name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]},
    )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Access(Struct, frozen=True, kw_only=True):
    """Where the API listens, and what it asks for."""

    host: str
    token: str = ""
    page_origin: str = ""
    page_api_url: str = ""
    open_paths: frozenset[str] = frozenset()
    streams: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise SettingError(
                f"http_host is {self.host}, which others can reach, and there is no token",
                hint="set a token, or listen on 127.0.0.1",
            )
        if self.page_origin:
            check_page_origin(self.page_origin)
        if self.page_api_url:
            check_api_url(self.page_api_url)

    @property
    def session(self) -> str:
        """What the cookie holds: it proves the token without telling it."""
        return hmac.digest(self.token.encode(), b"strata session", "sha256").hex()

    @property
    def cookie(self) -> str:
        """Named after the token: cookies of a host are shared by its ports."""
        return f"strata_{self.session[:8]}"

    def check(self, head: Head) -> None:
        """Refuses a request that may not be made."""
        self.check_host(head)
        if (head.changes or head.path in self.streams) and not self.is_page(head):
            check_origin(head)
        if self.token and head.path not in self.open_paths and not self._knows_token(head):
            raise Unauthenticated(
                "a valid token is needed",
                hint="send 'Authorization: Bearer <token>', or open the page with ?token=<token>",
            )

    def is_page(self, head: Head) -> bool:
        """Whether the dashboard asks that is served elsewhere."""
        return bool(self.page_origin) and head.headers.get("origin") == self.page_origin

    def check_login(self, head: Head) -> bool:
        """Whether the page was opened with the token; refuses a wrong one."""
        if head.path != "/" or not self.token or "token=" not in head.query:
            return False
        given = parse_qs(head.query, max_num_fields=16).get("token", [""])[0]
        if not same(given, self.token):
            raise Unauthenticated("the token is not valid", hint="copy it from where it was made")
        return True

    def check_host(self, head: Head) -> None:
        if not head.host:
            raise InvalidArgument("there is no Host header", hint="HTTP/1.1 asks for one")
        if is_loopback(self.host) and hostname(head.host) not in LOOPBACK_NAMES | {self.host}:
            raise PermissionDenied(
                f"this coordinator is not {head.host[:100]!r}",
                hint="it listens on this machine only: ask for localhost",
            )

    def _knows_token(self, head: Head) -> bool:
        scheme, _, given = head.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(given.strip(), self.token):
            return True
        return same(cookie_of(head, self.cookie), self.session)


def hostname(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def netloc(origin: str) -> str:
    """Host and port of an origin; none for one that has none, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def check_origin(head: Head) -> None:
    """Refuses what another site's page asks for; what is no browser sends no such header."""
    origin = head.headers.get("origin")
    foreign = origin is not None and netloc(origin) != head.host
    if foreign or head.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise PermissionDenied(
            f"a page of {(origin or 'another site')[:100]!r} may not ask this",
            hint="use the coordinator's own page, the CLI or the API from a program",
        )


def same(given: str, wanted: str) -> bool:
    """Compares secrets in a time that tells nothing about them."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def cookie_of(head: Head, name: str) -> str:
    """A cookie's value, or nothing."""
    try:
        found = SimpleCookie(head.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


class Guard:
    """Wraps the application: lets in what may enter, and adds headers to what goes out."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        closing: asyncio.Event,
        count_request: Callable[[], None],
    ) -> None:
        self.app = app
        self.access = access
        self.limits = limits
        self.closing = closing
        self._count_request = count_request
        self._pace = Pace(limits, time.monotonic)
        self._headers = security_headers(access.page_api_url)
        self.open_streams = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        self._count_request()
        head = head_of(scope)
        elsewhere = self.access.is_page(head)
        more = permission(self.access.page_origin) if elsewhere else []
        send = with_headers(send, head, [*self._headers, *more])
        try:
            if elsewhere and head.method == "OPTIONS":
                self.access.check_host(head)
                await send_nothing(send, 200, [])
                return
            self.access.check(head)
            login = self.access.check_login(head)
            self._admit(head)
        except StrataError as error:
            await send_refusal(send, error)
            return
        if login:
            await self._log_in(scope, send)
        elif head.path in self.access.streams:
            await self._stream(scope, receive, send)
        else:
            await self.app(scope, in_time(receive, self.limits.body_timeout_s), send)

    def _admit(self, head: Head) -> None:
        if head.changes:
            self._pace.take(head.client)
        if head.path in self.access.streams and self.open_streams >= self.limits.streams:
            raise Overloaded(
                f"{self.open_streams} streams are open",
                hint="close one, or poll /api/events instead",
                retry_after_s=5.0,
            )

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open_streams += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.open_streams -= 1

    async def _log_in(self, scope: HTTPScope, send: Send) -> None:
        cookie = (
            f"{self.access.cookie}={self.access.session}; Path=/; HttpOnly; SameSite=Lax; "
            f"Max-Age={COOKIE_AGE_S}{'; Secure' if scope['scheme'] == 'https' else ''}"
        )
        await send_nothing(send, 303, [(b"location", b"/"), (b"set-cookie", cookie.encode())])


async def send_nothing(send: Send, status: int, headers: Headers) -> None:
    """An answer without a body."""
    headers = [*headers, (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def with_headers(send: Send, head: Head, added: Headers) -> Send:
    """Adds the security headers; what the API says is not for a cache to keep.

    A file of the page that was let through says itself how long it may be kept.
    """
    caching = [(b"cache-control", b"no-store" if head.path.startswith("/api") else b"no-cache")]

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            told = any(name.lower() == b"cache-control" for name, _ in headers)
            message["headers"] = [*headers, *added, *([] if told else caching)]
        await send(message)

    return wrapped


def in_time(receive: Receive, seconds: float) -> Receive:
    """Lets a body take so long to arrive, and no longer."""
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
