"""The coordinator's REST API, as the terminal verbs ask it.

It is spoken with `http.client`: importing httpx takes 116 ms, that 28 ms, and a verb that is typed
all day must answer at once. Proxies are not followed: a coordinator is asked where it is.

Whatever goes wrong is one sentence and a hint: nobody there, somebody else there, a token that is
not accepted, or what the coordinator itself says of the request.
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

from strata.cli._terminal import note
from strata.config import Settings, load_process
from strata.errors import (
    STATUS,
    DeadlineExceeded,
    InvalidArgument,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.logsetup import printable
from strata.wire.certificates import date_problem, dates_in, shown_date

TIMEOUT_S = 10.0
PAGE_ITEMS = 1000
SUCCESS = (http.client.OK, http.client.CREATED, http.client.ACCEPTED)
SKEW_MS = 2000
KINDS = {kind.code: kind for kind in STATUS}
OUT_OF_DATE = (9, 10)  # of X509_verify_cert: not yet valid, has expired
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}

Wanted = TypeVar("Wanted")
Param = str | int | None


class Detail(Struct, frozen=True):
    """What a refusal says."""

    code: str
    message: str
    hint: str = ""


class Refusal(Struct, frozen=True):
    """How the coordinator refuses."""

    error: Detail


class Answer(Struct, frozen=True):
    """An answer with what its headers say; `now_ms` is the coordinator's time."""

    body: bytes
    total: int
    cursor: str
    now_ms: int


class Listing(Struct, frozen=True):
    """Items of a list as they came, and how many there are in all."""

    items: list[Raw]
    total: int
    now_ms: int


class Api:
    """One coordinator, asked over connections that last one request each."""

    def __init__(self, url: str, token: str = "", certificate: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            self.host, port = parts.hostname or "", parts.port
        except ValueError:
            self.host, port = "", None
        if parts.scheme not in ("http", "https") or not self.host:
            raise InvalidArgument(
                f"{printable(url)!r} is not the address of a coordinator",
                hint="it looks like http://127.0.0.1:3000",
            )
        self.secure = parts.scheme == "https"
        self.port = port or (443 if self.secure else 80)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        # The address of the page that `strata up` prints carries the token.
        self.token = parse_qs(parts.query).get("token", [token])[0]
        self.certificate = certificate

    def get(self, path: str, **params: Param) -> Answer:
        """What the coordinator answers; a parameter that is empty is left out."""
        response = self.open(path, params)
        try:
            with response:
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.explained(error) from error
        total = response.headers.get("X-Total-Count", "")
        return Answer(
            body,
            int(total) if total.isdecimal() else 0,
            response.headers.get("X-Next-Cursor", ""),
            now_ms(response.headers.get("Date")),
        )

    def post(self, path: str, body: object = None, **params: Param) -> bytes:
        """What the coordinator answers to something it is asked to do."""
        return self._done(self.open(path, params, body=body if body is not None else {}))

    def delete(self, path: str, **params: Param) -> bytes:
        """What the coordinator answers when something is to go."""
        return self._done(self.open(path, params, method="DELETE"))

    def _done(self, response: http.client.HTTPResponse) -> bytes:
        try:
            with response:
                return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.explained(error) from error

    def listing(self, path: str, limit: int, **params: Param) -> Listing:
        """The first so many items of a list, however many pages that takes."""
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
        """An answer as what it should be."""
        try:
            return msgspec.json.decode(body, type=wanted)
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"{self.url} answered what this version of strata cannot read: {error}",
                hint="check that the address is a coordinator's, and of the same version",
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
        """The beginning of an answer, to be read on; a refusal is raised."""
        headers = {"Connection": "close"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if last_id:
            headers["Last-Event-ID"] = last_id
        query = urlencode(
            {name: value for name, value in params.items() if value not in (None, "")}
        )
        encoded = None
        if body is not None:
            method, encoded = "POST", msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        target = f"{quote(path)}?{query}" if query else quote(path)
        connection = self._connection(timeout_s)
        try:
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
        context = ssl.create_default_context()
        # The coordinator's own certificate is enough, without those that signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            if self.certificate:
                context.load_verify_locations(self.certificate)
        except OSError as error:
            raise InvalidArgument(
                f"the certificate {self.certificate} cannot be read: {error}",
                hint="set STRATA_TLS_CERT to the coordinator's certificate, a PEM file",
            ) from error
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    def _refused(self, status: int, body: bytes) -> StrataError:
        try:
            detail = msgspec.json.decode(body, type=Refusal).error
        except msgspec.DecodeError:
            return self._stranger(f"it answered with status {status}")
        if detail.code == Unauthenticated.code:
            problem = "does not accept this token" if self.token else "asks for a token"
            return Unauthenticated(
                f"the coordinator at {self.url} {problem}",
                hint="set STRATA_TOKEN to the token that `strata up` printed",
            )
        kind = KINDS.get(detail.code, StrataError)
        return kind(printable(detail.message), hint=printable(detail.hint))

    def explained(self, error: OSError | http.client.HTTPException) -> StrataError:
        """What a failed connection means."""
        if isinstance(error, ssl.SSLCertVerificationError):
            if error.verify_code in OUT_OF_DATE:
                return self._out_of_date(error)
            return Unavailable(
                f"the certificate of {self.url} cannot be trusted: {error.verify_message}",
                hint="set STRATA_TLS_CERT to the coordinator's certificate, and use a host name in "
                "--url that it was issued for",
            )
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(
                f"the coordinator at {self.url} does not answer",
                hint="check that it runs and that nothing between blocks the port",
            )
        if isinstance(error, socket.gaierror):
            return Unavailable(f"there is no host {self.host!r}", hint="check --url")
        if isinstance(error, ConnectionResetError | ssl.SSLError | http.client.HTTPException):
            return self._stranger("invalid HTTP response")
        return Unavailable(
            f"no coordinator answers at {self.url}",
            hint="start one with `strata up`, or say where it is with --url; "
            "a run that has ended is read with --data (`strata runs` lists them)",
        )

    def _out_of_date(self, error: ssl.SSLCertVerificationError) -> StrataError:
        """That the coordinator's certificate has expired or is not valid yet, with its dates."""
        try:
            address = (self.host, self.port)
            (valid, *_) = dates_in(ssl.get_server_certificate(address, timeout=TIMEOUT_S))
            dates = f" (valid from {shown_date(valid.since)} until {shown_date(valid.until)})"
        except (OSError, ValueError):
            dates = ""
        return Unavailable(
            f"the certificate of {self.url} is not valid now: {error.verify_message}{dates}",
            hint="renew the file of --tls-cert on the coordinator's host and start it again; "
            "if the dates are right, check the clock of this machine",
        )

    def _stranger(self, reason: str) -> StrataError:
        return Unavailable(
            f"what is at {self.url} is not a coordinator's API: {reason}",
            hint="check --url: the port for workers is another one (gRPC), and TLS needs https://",
        )


def reach(url: str | None) -> Api:
    """The coordinator at an address, or where the settings say it is."""
    settings = load_process({})
    api = Api(url or url_of(settings), settings.token, settings.tls_cert)
    if api.secure and (problem := date_problem(api.certificate)):
        note(problem)
    return api


def url_of(settings: Settings) -> str:
    """Where a coordinator with these settings is asked."""
    if settings.http_port == 0:
        raise InvalidArgument(
            "http_port is 0, which means any free port",
            hint="say where the coordinator is with --url",
        )
    host = EVERYWHERE.get(settings.http_host, settings.http_host)
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.http_port}"


def now_ms(date: str | None) -> int:
    """The coordinator's time: ours where they agree, since its header knows only seconds."""
    ours = time.time_ns() // 1_000_000
    try:
        theirs = int(parsedate_to_datetime(date or "").timestamp() * 1000)
    except ValueError:
        return ours
    return ours if abs(ours - theirs) < SKEW_MS else theirs
