"""REST client of the terminal verbs.

It uses `http.client`: importing httpx takes 116 ms, `http.client` 28 ms, and the verbs must start
fast. Proxies are not used.

Every failure is an error with a hint: no coordinator, another server, a rejected token, or the
coordinator's own error.
"""

import http.client
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct

from strata.cli.support.terminal import note
from strata.config import Settings, load_process
from strata.coordinator.rest.response_models import ErrorResponse
from strata.errors import (
    STATUS,
    UNDECODABLE,
    DeadlineExceeded,
    InvalidArgument,
    NotLeading,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.logsetup import printable
from strata.wire.certificates import dates_in, shown_date
from strata.wire.client_certificates import ClientCertificates, client_certificates

TIMEOUT_S = 10.0
READING_TIMEOUT_S = 600.0
"""For questions that read the whole log, once the coordinator has answered a quick one."""

PAGE_ITEMS = 1000
SUCCESS = (http.client.OK, http.client.CREATED, http.client.ACCEPTED)
SKEW_MS = 2000
KINDS = {kind.code: kind for kind in STATUS}
CUT_OFF = (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected, ssl.SSLEOFError)
OUT_OF_DATE = (9, 10)  # of X509_verify_cert: not yet valid, has expired
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

Wanted = TypeVar("Wanted")
Param = str | int | list[str] | None


class Unreachable(Unavailable):
    """Nothing listens at the address of a coordinator: the request was not sent."""


class Answer(Struct, frozen=True):
    """A response with values of its headers; `now_ms` is the coordinator's time."""

    body: bytes
    total: int
    cursor: str
    now_ms: int


class Listing(Struct, frozen=True):
    """Items of a list as raw JSON, and the total number of items."""

    items: list[Raw]
    total: int
    now_ms: int


class Api:
    """REST client for a coordinator; each request uses its own connection.

    Of several URLs, separated by commas, the one that answered last is in use. A coordinator that
    does not answer, or refuses because it does not lead, is left for the next one.
    """

    def __init__(self, url: str, token: str = "", tls: ClientCertificates | None = None) -> None:
        self._urls = [part.strip() for part in url.split(",") if part.strip()] or [url]
        self._given_token = token
        self.tls = tls or ClientCertificates()
        self._use(self._urls[0])

    def _use(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"{'https' if self.tls.used else 'http'}://{url}")
        try:
            self.host, port = parts.hostname or "", parts.port
        except ValueError:
            self.host, port = "", None
        if parts.scheme not in ("http", "https") or not self.host:
            raise InvalidArgument(
                f"{printable(url)!r} is not the address of a coordinator",
                hint="use a URL such as http://127.0.0.1:3000",
            )
        self.secure = parts.scheme == "https"
        if not self.secure and self.tls.encrypts(url):
            raise InvalidArgument(
                f"{printable(url)!r} would send the token in clear text to another machine, "
                "although certificates are set",
                hint="use https://, or unset STRATA_TLS_CA, STRATA_TLS_CERT and "
                "STRATA_TLS_CLIENT_CERT",
            )
        self.port = port or (443 if self.secure else 80)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        # The dashboard URL that `strata up` prints contains the token.
        self.token = parse_qs(parts.query).get("token", [self._given_token])[0]

    def get(self, path: str, **params: Param) -> Answer:
        """Send a GET request; empty parameters are omitted."""
        timeout_s = TIMEOUT_S
        if reads_the_log(path):
            self.open("/api/status", {}).close()
            timeout_s = READING_TIMEOUT_S
        response = self.open(path, params, timeout_s=timeout_s)
        try:
            with response:
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.explained(error) from error
        total = response.headers.get("X-Total-Count", "")
        return Answer(
            body=body,
            total=int(total) if total.isdecimal() else 0,
            cursor=response.headers.get("X-Next-Cursor", ""),
            now_ms=now_ms(response.headers.get("Date")),
        )

    def post(self, path: str, body: object = None, **params: Param) -> bytes:
        """Send a POST request and return the response body."""
        return self._done(self.open(path, params, body=body if body is not None else {}))

    def delete(self, path: str, **params: Param) -> bytes:
        """Send a DELETE request and return the response body."""
        return self._done(self.open(path, params, method="DELETE"))

    def _done(self, response: http.client.HTTPResponse) -> bytes:
        try:
            with response:
                return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.explained(error) from error

    def listing(self, path: str, limit: int, **params: Param) -> Listing:
        """The first `limit` items of a list, from as many pages as needed."""
        found: list[Raw] = []
        cursor = ""
        while True:
            size = min(limit - len(found), PAGE_ITEMS)
            answer = self.get(path, limit=size, cursor=cursor, **params)
            found += self.decode(answer.body, list[Raw])
            cursor = answer.cursor
            if not cursor or len(found) >= limit:
                return Listing(found, answer.total, answer.now_ms)

    def decode(self, body: bytes | Raw, wanted: type[Wanted]) -> Wanted:
        """Decode a response body."""
        try:
            return msgspec.json.decode(body, type=wanted)
        except UNDECODABLE as error:
            raise Unavailable(
                f"invalid response from {self.url}: {error}",
                hint="check that the URL is a coordinator's, of the same version as this command",
            ) from error

    def open(
        self,
        path: str,
        params: dict[str, Param],
        last_id: str = "",
        timeout_s: float = TIMEOUT_S,
        body: object = None,
        method: str = "GET",
    ) -> http.client.HTTPResponse:
        """Send a request and return the open response; raises if the status is an error."""
        for _ in self._urls[1:]:
            try:
                return self._open(path, params, last_id, timeout_s, body, method)
            except (NotLeading, Unreachable):
                self._urls.append(self._urls.pop(0))
                self._use(self._urls[0])
        return self._open(path, params, last_id, timeout_s, body, method)

    def _open(
        self,
        path: str,
        params: dict[str, Param],
        last_id: str,
        timeout_s: float,
        body: object,
        method: str,
    ) -> http.client.HTTPResponse:
        headers = {"Connection": "close"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if last_id:
            headers["Last-Event-ID"] = last_id
        query = urlencode(
            {name: value for name, value in params.items() if value not in (None, "")}, doseq=True
        )
        encoded = None
        if body is not None:
            method, encoded = "POST", msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        target = f"{quote(path)}?{query}" if query else quote(path)
        connection = self._connection(min(timeout_s, TIMEOUT_S))
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request(method, target, encoded, headers)
            response = connection.getresponse()
            if response.status in SUCCESS:
                return response
            raise self._refused(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self.explained(error) from error

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if not self.secure:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        context = self.tls.https_context()
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    def _refused(self, status: int, body: bytes) -> StrataError:
        try:
            detail = msgspec.json.decode(body, type=ErrorResponse).error
        except UNDECODABLE:
            return self._not_a_coordinator(f"unexpected status {status}")
        if detail.code == Unauthenticated.code and "expired" not in detail.message:
            problem = "rejected the token" if self.token else "requires a token"
            return Unauthenticated(
                f"the coordinator at {self.url} {problem}",
                hint="set STRATA_TOKEN to the token that `strata up` printed, or one that was made",
            )
        kind = KINDS.get(detail.code, StrataError)
        return kind(printable(detail.message), hint=printable(detail.hint))

    def explained(self, error: OSError | http.client.HTTPException) -> StrataError:
        """The error for a failed connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            if error.verify_code in OUT_OF_DATE:
                return self._out_of_date(error)
            return Unavailable(
                f"the certificate of {self.url} cannot be trusted: {error.verify_message}",
                hint="set STRATA_TLS_CA to the certificate of the authority that signed it, or "
                "STRATA_TLS_CERT to the coordinator's own, and use a host name in --url that it "
                "was issued for",
            )
        if self.secure and self.tls.cert and isinstance(error, CUT_OFF):
            return Unavailable(
                f"{self.url} ended the TLS handshake: it does not accept the client certificate "
                f"{self.tls.cert}, or it is not a coordinator",
                hint="use a certificate that is valid now and signed by the authority in the "
                "coordinator's tls_client_ca",
            )
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(
                f"the coordinator at {self.url} does not answer",
                hint="check that it is running and that no firewall blocks the port",
            )
        if isinstance(error, socket.gaierror):
            return Unavailable(f"unknown host {self.host!r}", hint="check --url")
        if isinstance(error, ConnectionResetError | ssl.SSLError | http.client.HTTPException):
            return self._not_a_coordinator("invalid HTTP response")
        return Unreachable(
            f"no coordinator answers at {self.url}",
            hint="start one with `strata up`, or set its URL with --url; "
            "to read a finished run, use --data (`strata runs` lists them)",
        )

    def _out_of_date(self, error: ssl.SSLCertVerificationError) -> StrataError:
        """The error for a certificate that has expired or is not valid yet, with its dates."""
        try:
            address = (self.host, self.port)
            (valid, *_) = dates_in(ssl.get_server_certificate(address, timeout=TIMEOUT_S))
            dates = f" (valid from {shown_date(valid.since)} until {shown_date(valid.until)})"
        except (OSError, ValueError):
            dates = ""
        return Unavailable(
            f"the certificate of {self.url} is not valid now: {error.verify_message}{dates}",
            hint="renew the --tls-cert file on the coordinator's host; "
            "if the dates are correct, check the clock of this machine",
        )

    def _not_a_coordinator(self, reason: str) -> StrataError:
        return Unavailable(
            f"{self.url} is not a coordinator's REST API: {reason}",
            hint="check --url: the gRPC port is a different one, and TLS needs https://",
        )


def reads_the_log(path: str) -> bool:
    """Whether the coordinator reads its log to answer, which takes long for a long run."""
    return path.startswith("/api/timeline/") or "/audit" in path


def reach(url: str | None) -> Api:
    """A client for the coordinator at a URL, by default the URL in the settings."""
    settings = load_process({})
    api = Api(url or url_of(settings), settings.token, client_certificates(settings))
    if api.secure:
        for problem in api.tls.problems:
            note(problem)
    return api


def url_of(settings: Settings) -> str:
    """The URL of a coordinator with these settings."""
    if settings.http_port == 0:
        raise InvalidArgument(
            "http_port is 0, which means any free port",
            hint="set the coordinator's URL with --url",
        )
    host = WILDCARDS.get(settings.http_host, settings.http_host)
    scheme = "https" if client_certificates(settings).used else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.http_port}"


def now_ms(date: str | None) -> int:
    """The coordinator's time; the local time if both agree, because the header has only seconds."""
    ours = time.time_ns() // 1_000_000
    try:
        theirs = int(parsedate_to_datetime(date or "").timestamp() * 1000)
    except ValueError:
        return ours
    return ours if abs(ours - theirs) < SKEW_MS else theirs
