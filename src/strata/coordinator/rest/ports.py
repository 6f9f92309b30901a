"""The interface between the endpoints and the rest of the coordinator.

Engine, heartbeats and previews are used directly; logs and metrics through the protocols here. All
times are Unix milliseconds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from strata.coordinator.access.keyring import Keyring
from strata.coordinator.alerts.delivery import Delivery
from strata.coordinator.checkpoint_files import CheckpointPlaces
from strata.coordinator.engine.engine import Engine
from strata.coordinator.logs.log_entries import LogEntry, Skipped
from strata.coordinator.logs.log_query import LogPage, LogQuery
from strata.coordinator.rest.read_queue import ReadQueue
from strata.coordinator.rest.response_models import MetricsSnapshot, Mode
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.coordinator.sessions.preview_store import Previews
from strata.coordinator.sessions.task_environments import Vault
from strata.coordinator.sessions.watched_tasks import WatchedTasks
from strata.coordinator.workdir_store import Workdirs


class Logs(Protocol):
    """Log lines of the coordinator and all workers, including dead ones.

    `recent` may read files and is called in a thread; `follow` is read in the event loop and tells
    a slow reader how many lines it missed.
    """

    def recent(
        self,
        query: LogQuery | None = None,
        limit: int = 100,
        cursor: str = "",
        budget_s: float = 1.0,
    ) -> LogPage:
        """Matching lines, newest first; raises `InvalidArgument` for an invalid cursor."""

    def follow(
        self, query: LogQuery | None = None, backlog: int = 0
    ) -> AsyncIterator[LogEntry | Skipped]:
        """New matching lines, after up to `backlog` stored ones."""


class MetricsSource(Protocol):
    """Metrics of the cluster and the coordinator."""

    def snapshot(self) -> MetricsSnapshot:
        """The present metrics."""

    def prometheus(self) -> str:
        """All metrics in Prometheus' text format."""

    def count_request(self, kind: str, count: int = 1) -> None:
        """Count handled requests; those of the REST API have the kind `http`."""


@dataclass(frozen=True)
class Api:
    """What the endpoints can access. `address` is the gRPC address for workers; `places` is None
    for a simulated cluster, and so are `workdirs` and `alerts`, the delivery of messages;
    `keyring` is None where no worker can connect; `agent_connected` tells whether an agent has an
    open session."""

    engine: Engine
    heartbeats: Heartbeats
    logs: Logs
    metrics: MetricsSource
    vault: Vault
    version: str
    started_ms: int
    address: str
    mode: Mode = "live"
    previews: Previews = field(default_factory=Previews)
    watched: WatchedTasks = field(default_factory=WatchedTasks)
    places: CheckpointPlaces | None = None
    workdirs: Workdirs | None = None
    agent_connected: Callable[[str], bool] = lambda agent: False
    alerts: Delivery | None = None
    log_reads: ReadQueue = field(default_factory=lambda: ReadQueue("log"))
    keyring: Keyring | None = None


TheApi = NamedDependency[SkipValidation[Api]]
Closing = NamedDependency[SkipValidation[asyncio.Event]]
HeartbeatSeconds = NamedDependency[float]
"""Types of the endpoint parameters `api`, `closing` and `heartbeat_s`."""
