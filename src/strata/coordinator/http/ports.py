"""What the endpoints need from the rest of the coordinator.

The engine, and what workers last said and showed, are used as they are. Logs and metrics are kept
elsewhere; here is only what is asked of them. All times are Unix milliseconds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from strata.coordinator.engine import Engine
from strata.coordinator.logs import LogEntry, Page, Query, Skipped
from strata.coordinator.metrics import MetricsSnapshot
from strata.coordinator.observed import Observed
from strata.coordinator.places import CheckpointPlaces
from strata.coordinator.previews import Previews
from strata.coordinator.vault import Vault
from strata.core.step_rates import Drop

Mode: TypeAlias = Literal["live", "demo"]


class Logs(Protocol):
    """The lines of the coordinator and of all workers, also of dead ones.

    `recent` may read files and is called from a thread; `follow` is read in the event loop and
    tells a reader that falls behind how many lines it missed.
    """

    def recent(
        self, query: Query | None = None, limit: int = 100, cursor: str = "", budget_s: float = 1.0
    ) -> Page:
        """Matching lines, newest first; a cursor that makes no sense raises `InvalidArgument`."""

    def follow(
        self, query: Query | None = None, backlog: int = 0
    ) -> AsyncIterator[LogEntry | Skipped]:
        """Matching lines as they come, after up to `backlog` that are there already."""


class Metrics(Protocol):
    """Figures derived from facts, and measured on the coordinator itself."""

    def snapshot(self) -> MetricsSnapshot:
        """The figures of this moment."""

    def drops(self) -> list[Drop]:
        """The tasks that train much slower than usual."""

    def prometheus(self) -> str:
        """The same, and more, in Prometheus' text format."""

    def count_request(self, kind: str, count: int = 1) -> None:
        """Counts requests that were handled; those of this room are of the kind `http`."""


@dataclass(frozen=True)
class Api:
    """Everything the endpoints reach. `address` is where workers find the coordinator, `places`
    where checkpoints lie; simulated ones lie nowhere. `agent_connected` tells whether an agent has
    a session now."""

    engine: Engine
    observed: Observed
    logs: Logs
    metrics: Metrics
    vault: Vault
    version: str
    started_ms: int
    address: str
    mode: Mode = "live"
    previews: Previews = field(default_factory=Previews)
    places: CheckpointPlaces | None = None
    agent_connected: Callable[[str], bool] = lambda agent: False


TheApi = NamedDependency[SkipValidation[Api]]
Closing = NamedDependency[SkipValidation[asyncio.Event]]
HeartbeatSeconds = NamedDependency[float]
"""What an endpoint may ask for by these names: `api`, `closing`, `heartbeat_s`."""
