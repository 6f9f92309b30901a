"""Number of connections that the coordinator accepts within the limit of open files.

Connections of workers and agents, HTTP connections and the files of the log share the limit. If it
is too small for `max_workers`, the coordinator accepts fewer connections and logs a warning at its
start. Above that number a new connection replaces an unauthenticated one or is refused; other
connections are never closed for it.
"""

from msgspec import Struct

from strata.coordinator.rest.request_checks import HttpLimits
from strata.wire.grpc.connection_budget import Bounds

MIN_CONNECTIONS = 20_000
CONNECTIONS_PER_WORKER = 2
"""One for the worker, and one for its old connection while it reconnects."""

OWN_FILES = 128
"""The log, its snapshots, log lines, listening sockets, and files that requests open briefly."""

HTTP_SHARE = 4
TOTAL_BYTES = 2 << 30


class Capacity(Struct, frozen=True, kw_only=True):
    """Numbers of accepted connections; `files_wanted` is the limit of open files for all."""

    workers: int
    files: int
    files_wanted: int
    bounds: Bounds
    http: HttpLimits


def wanted_files(max_workers: int) -> int:
    """The limit of open files that the coordinator needs for this many workers."""
    return _wanted_connections(max_workers) + HttpLimits().connections + OWN_FILES


def capacity(max_workers: int, files: int) -> Capacity:
    """The number of connections that fit a limit of open files."""
    http = min(HttpLimits().connections, files // HTTP_SHARE)
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
        http=HttpLimits(connections=http),
    )


def shortage(found: Capacity, max_workers: int) -> str:
    """A warning if the limit of open files is too small for `max_workers`, else empty."""
    if found.workers >= max_workers:
        return ""
    return (
        f"this process may open {found.files} files, which is enough for {found.workers} workers "
        f"and not for max_workers = {max_workers}: raise the hard limit to {found.files_wanted} "
        "(ulimit -Hn, or LimitNOFILE= of the service)"
    )


def _wanted_connections(max_workers: int) -> int:
    return max(MIN_CONNECTIONS, CONNECTIONS_PER_WORKER * max_workers)
