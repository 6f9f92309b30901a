"""Checks of certificates: the files in the settings, and the one that the coordinator presents."""

import socket
import ssl
from datetime import UTC, datetime

from strata.cli.support.doctor.check_result import Check, fix, ok
from strata.cli.support.rest_client import Api
from strata.config import Settings
from strata.wire.certificates import SOON, date_problem, shown_date, validity_of

FILES = ("tls_cert", "tls_client_ca", "tls_ca", "tls_client_cert")
CONNECT_S = 5.0


def file_checks(settings: Settings) -> list[Check]:
    """The dates of each certificate file in the settings."""
    return [_file(name, path) for name in FILES if (path := getattr(settings, name))]


def served_check(api: Api) -> Check:
    """The date until which the coordinator's certificate is valid, read from a new connection."""
    name = "coordinator's certificate"
    try:
        with (
            socket.create_connection((api.host, api.port), CONNECT_S) as plain,
            api.tls.https_context().wrap_socket(plain, server_hostname=api.host) as encrypted,
        ):
            shown = (encrypted.getpeercert() or {}).get("notAfter")
    except OSError as error:
        return fix(name, f"the TLS handshake failed: {error}", "see the error above")
    until = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown)), UTC)
    if until - datetime.now(UTC) < SOON:
        found = f"expires on {shown_date(until)}"
        return fix(name, found, "replace the --tls-cert file on the coordinator's host")
    return ok(name, f"valid until {shown_date(until)}")


def _file(name: str, path: str) -> Check:
    valid = validity_of(path)
    if valid is None:
        return fix(name, f"no certificate can be read from {path}", f"set {name} to a PEM file")
    problem = date_problem(path, whole=name in ("tls_ca", "tls_client_ca"))
    if problem:
        found, _, advice = problem.partition(": ")
        return fix(name, found, advice.rpartition("; ")[2])
    return ok(name, f"{path} is valid until {shown_date(valid.until)}")
