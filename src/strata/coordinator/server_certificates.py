"""TLS of the coordinator's servers, with certificates that are renewed when their files change.

A server keeps one context for its life. At the start of each handshake that context is replaced by
the newest one, so new connections get the new certificate and open ones go on. Files are loaded
when they have not changed between two looks, because certificate and key are written one after the
other. New files that cannot be used are refused, and the old ones stay in use.

With `tls_client_ca` a client needs a certificate of that authority. gRPC requires it in the
handshake. The HTTP server asks for it in the handshake, where a certificate of another authority
fails, and answers a client that has none with a refusal that says so: a browser would otherwise
show only a closed connection.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from strata import extras
from strata.config import Settings
from strata.coordinator.background import background
from strata.errors import SettingError, StrataError
from strata.wire.certificate_files import Pair, load_authorities, versions
from strata.wire.certificates import date_problem, shown_date, validity_of

log = logging.getLogger(__name__)

LOOK_S = 1.0
WARN_S = timedelta(days=1).total_seconds()
GRPC, HTTP = "h2", "http/1.1"


class ServerCertificates:
    """The contexts of the servers, and what the files contained when they were loaded."""

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        self.client_ca = client_ca
        self._pair = Pair(cert, key, ("--tls-cert", "--tls-key"))
        self._files = (cert, key, client_ca)
        self._loaded = self._seen = versions(*self._files)
        self._newest = self._load()
        self._warned_s = 0.0
        self._warn()

    def context(self, protocol: str) -> ssl.SSLContext:
        """The context of the `GRPC` or `HTTP` server; handshakes use the newest certificate."""
        served = self._context(protocol)

        def choose(handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            handshake.context = self._newest[protocol]

        served.sni_callback = choose
        return served

    def look(self) -> None:
        """Load the files if they have changed and are no longer being written."""
        found, before = versions(*self._files), self._seen
        self._seen = found
        if found != before or found == self._loaded:
            return
        self._loaded = found
        try:
            self._newest = self._load(renewed=True)
        except StrataError as error:
            log.error(
                "the changed certificate files are refused, the old ones stay in use: %s", error
            )
            return
        until = validity_of(self._pair.cert)
        log.info(
            "new connections use the changed certificate %s, which is valid until %s",
            self._pair.cert,
            shown_date(until.until) if until is not None else "an unknown date",
        )
        self._warn()

    async def watch(self) -> None:
        """Look for changed files every second, and at the dates every day."""
        loop = asyncio.get_running_loop()
        self._warned_s = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()
            if loop.time() - self._warned_s > WARN_S:
                self._warned_s = loop.time()
                self._warn()

    def _load(self, *, renewed: bool = False) -> dict[str, ssl.SSLContext]:
        """Contexts from the files as they are now; a renewed certificate must be valid now."""
        contexts = {protocol: self._context(protocol) for protocol in (GRPC, HTTP)}
        valid = validity_of(self._pair.cert)
        if renewed and valid is not None and not valid.since <= datetime.now(UTC) <= valid.until:
            raise SettingError(
                f"the certificate {self._pair.cert} is valid only from {shown_date(valid.since)} "
                f"until {shown_date(valid.until)}",
                hint="write a certificate that is valid now, or check the clock of this machine",
            )
        return contexts

    def _context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session would not check the client's certificate again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_alpn_protocols([protocol])
        self._pair.load(context)
        if self.client_ca:
            load_authorities(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if protocol == GRPC else ssl.CERT_OPTIONAL
        return context

    def _warn(self) -> None:
        for problem in (date_problem(self._pair.cert), date_problem(self.client_ca, whole=True)):
            if problem:
                log.warning("%s", problem)


def server_certificates(settings: Settings) -> ServerCertificates | None:
    """The certificates of the settings; None without TLS."""
    if settings.tls_cert or settings.tls_key:
        extras.check("cryptography")  # for the certificates of tasks (sessions/peer_certificates)
        return ServerCertificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if settings.tls_client_ca:
        raise SettingError(
            "tls_client_ca is set, but the coordinator has no certificate of its own",
            hint="set --tls-cert and --tls-key, too: client certificates need TLS",
        )
    return None


@asynccontextmanager
async def renewing(certificates: ServerCertificates | None) -> AsyncIterator[None]:
    """Load changed files while the context is open."""
    if certificates is None:
        yield
        return
    async with background(certificates.watch(), "strata-certificates"):
        yield
