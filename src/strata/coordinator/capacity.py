"""How many connections the coordinator takes, as the system's limit of open files allows.

The connections of workers and agents come on top of those of the HTTP side and of the files of the
log. When the limit is too small for all of them, fewer connections are taken than `max_workers`
needs, and the coordinator says so at its start: that is better than to find out at the thousandth
worker. Beyond that number a newcomer takes the place of an unauthenticated connection, or is
refused; connections that are there are never affected.
"""

from msgspec import Struct

from strata.coordinator.http.limits import Limits
from strata.wire.connection_budget import Bounds

MIN_CONNECTIONS = 20_000
CONNECTIONS_PER_WORKER = 2
"""One for the worker, and one for what it may leave behind when it connects again."""

OWN_FILES = 128
"""The log, its snapshots, log lines, listening sockets, and what requests open for a moment."""

HTTP_SHARE = 4
TOTAL_BYTES = 2 << 30


class Capacity(Struct, frozen=True, kw_only=True):
    """How many connections are accepted; `files_wanted` open files would allow the most."""

    workers: int
    files: int
    files_wanted: int
    bounds: Bounds
    http: Limits


def wanted_files(max_workers: int) -> int:
    """The limit of open files that the coordinator needs for so many workers."""
    return _wanted_connections(max_workers) + Limits().connections + OWN_FILES


def capacity(max_workers: int, files: int) -> Capacity:
    """What can be taken on with a limit of open files."""
    http = min(Limits().connections, files // HTTP_SHARE)
    room = max(files - OWN_FILES - http, 1)
    connections = min(_wanted_connections(max_workers), room)
    return Capacity(
        workers=min(max_workers, connections),
        files=files,
        files_wanted=wanted_files(max_workers),
        bounds=Bounds(
            max_connections=connections,
            max_total_bytes=TOTAL_BYTES,
            max_unauthenticated=min(max(max_workers, MIN_CONNECTIONS // 2), connections),
        ),
        http=Limits(connections=http),
    )


def shortage(found: Capacity, max_workers: int) -> str:
    """A sentence that says how many workers the limit of open files allows; empty if enough."""
    if found.workers >= max_workers:
        return ""
    return (
        f"this process may open {found.files} files, which is enough for {found.workers} workers "
        f"and not for max_workers = {max_workers}: raise the hard limit to {found.files_wanted} "
        "(ulimit -Hn, or LimitNOFILE= of the service)"
    )


def _wanted_connections(max_workers: int) -> int:
    return max(MIN_CONNECTIONS, CONNECTIONS_PER_WORKER * max_workers)
