"""Checks of the coordinator: REST API, token, release, gRPC address, clock; and of its ports.

No coordinator is no fault unless one was named: `strata run` starts its own.
"""

import socket
import time
from email.utils import parsedate_to_datetime

from strata import __version__, extras
from strata.cli.support.doctor.certificate_checks import served_check
from strata.cli.support.doctor.check_result import Check, fix, ok, unchecked
from strata.cli.support.rest_client import WILDCARDS, Api, url_of
from strata.config import Settings
from strata.coordinator.rest.response_models import StatusResponse
from strata.errors import PermissionDenied, StrataError, Unauthenticated
from strata.wire.client_certificates import client_certificates
from strata.wire.port_holders import port_holder

LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONNECT_S = 5.0
SAMPLES = 12
PAUSE_S = 0.1
DATE_LAG_S = 2.0
"""A Date header has whole seconds, and the server renews it about once a second."""

ALLOWED_S = 3.0
"""A smaller offset is not reported: a busy server renews the date later."""

DEPENDENT = ("token", "release", "gRPC address", "clock")


def coordinator_checks(settings: Settings, url: str | None) -> tuple[list[Check], set[int]]:
    """The checks of a coordinator, and its ports if it is on this host."""
    where = url or (url_of(settings) if settings.http_port else "")
    if not where:
        return [unchecked("coordinator", "http_port is 0: name a coordinator with --url")], set()
    try:
        api = Api(where, settings.token, client_certificates(settings))
        status = api.decode(api.get("/api/status").body, StatusResponse)
    except (Unauthenticated, PermissionDenied) as error:
        found = [ok("coordinator", f"answers at {where}"), fix("token", error.message, error.hint)]
        return found + [unchecked(name, "the token is not valid") for name in DEPENDENT[1:]], {
            api.port
        }
    except StrataError as error:
        if url or settings.coordinator_addr:
            first = fix("coordinator", error.message, error.hint)
        else:
            first = unchecked(
                "coordinator", f"none answers at {where}; `strata run` starts one of its own"
            )
        return [first, *(unchecked(name, "no coordinator") for name in DEPENDENT)], set()
    kind = "accepted" if api.token else "none is set"
    address = status.address or ""
    checks = [
        ok("coordinator", f"answers at {api.url}, up for {status.uptime} s"),
        ok("token", f"{kind}, and the coordinator answers"),
        _release(status),
        _grpc(settings, api, address),
        _clock(api),
        *([served_check(api)] if api.secure else []),
    ]
    port = address.rpartition(":")[2]
    here = {api.port, int(port) if port.isdecimal() else 0}
    return checks, here if api.host in LOOPBACK else set()


def port_checks(settings: Settings, coordinator: set[int]) -> list[Check]:
    """Whether the ports in the settings are free, or used by the coordinator."""
    return [
        _port("grpc", settings.grpc_host, settings.grpc_port, coordinator),
        _port("http", settings.http_host, settings.http_port, coordinator),
    ]


def _release(status: StatusResponse) -> Check:
    if status.version == __version__:
        return ok("release", f"{__version__} here and there")
    return fix(
        "release",
        f"the coordinator has {status.version}, this is {__version__}",
        f"pip install strata-runtime=={status.version}",
    )


def _grpc(settings: Settings, api: Api, reported: str) -> Check:
    """Whether workers can connect: to the address that is set, else the one that is reported."""
    address = settings.coordinator_addr.rpartition("://")[2] or reported
    host, _, port = address.rpartition(":")
    host = api.host if host.strip("[]") in WILDCARDS else host.strip("[]")
    if not port.isdecimal():
        return unchecked("gRPC address", f"{address!r} is no HOST:PORT")
    began_s = time.monotonic()
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        return fix(
            "gRPC address",
            f"cannot connect to {host}:{port}: {error}",
            "open this port in the firewall; on the coordinator's host, set its address with "
            "strata up --grpc-host",
        )
    return ok(
        "gRPC address", f"{host}:{port} connects in {(time.monotonic() - began_s) * 1000:.1f} ms"
    )


def _clock(api: Api) -> Check:
    """The offset of this clock to the coordinator's, from the Date headers of several answers."""
    least_s, most_s = float("-inf"), float("inf")
    for _ in range(SAMPLES):
        sent_s = time.time()
        with api.open("/api/status", {}) as response:
            date, received_s = response.headers.get("Date"), time.time()
            response.read()
        try:
            theirs_s = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return unchecked("clock", "the coordinator's answer has no date")
        least_s = max(least_s, theirs_s - received_s)
        most_s = min(most_s, theirs_s + DATE_LAG_S - sent_s)
        time.sleep(PAUSE_S)
    if least_s <= ALLOWED_S and most_s >= -ALLOWED_S:
        return ok("clock", f"within {max(-least_s, most_s):.1f} s of the coordinator's")
    off_s = least_s if least_s > 0 else most_s
    side = "behind" if off_s > 0 else "ahead of"
    return fix(
        "clock",
        f"this clock is at least {abs(off_s):.1f} s {side} the coordinator's",
        "timedatectl set-ntp true (on both hosts)",
    )


def _port(name: str, host: str, port: int, coordinator: set[int]) -> Check:
    title = f"{name}_port {port}"
    if port == 0:
        return ok(f"{name}_port", "0: any free port")
    if not extras.installed("uvicorn"):
        return unchecked(title, "no coordinator can run here without 'strata-runtime[server]'")
    # Imported here: a host of workers has no libraries of a coordinator.
    from strata.coordinator.rest.http_server import listen

    try:
        listen(host, port).close()
    except StrataError as error:
        used_by = port_holder(port)
        if port in coordinator:
            return ok(title, f"used by the coordinator{f', {used_by}' if used_by else ''}")
        stop = f"kill {used_by.rpartition(' ')[2].rstrip(')')}" if used_by else "stop its user"
        return fix(title, error.message, f"{stop}, or set {name}_port in strata.toml")
    return ok(title, f"free on {host}")
