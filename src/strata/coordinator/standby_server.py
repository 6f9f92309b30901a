"""A standby: a coordinator that follows the log of the leader and waits to take over.

It answers the reading requests of the REST API and serves the page; what changes something is
refused with the name of the leader. Workers and agents cannot connect to it: its gRPC port is
closed until it leads.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from strata.config import Settings
from strata.coordinator.checkpoint_files import CheckpointPlaces
from strata.coordinator.coordinator_store import WatchedStore, data_folder, watch_store
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.following_engine import FollowingEngine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.rest.ports import Api
from strata.coordinator.server import http_serving, log_store, taking_turns
from strata.coordinator.server_certificates import renewing, server_certificates
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.coordinator.sessions.task_environments import Vault
from strata.errors import Unavailable
from strata.store.event_store import EventStore

log = logging.getLogger(__name__)

LOOK_S = 0.2


class Standby:
    """A running standby."""

    engine: FollowingEngine

    def __init__(self, store: WatchedStore) -> None:
        self.http_url = ""
        self.leader = store.leader()
        self._store = store

    async def until_vacant(self) -> None:
        """Wait until the store has no leader."""
        while True:
            try:
                leader = await asyncio.to_thread(self._store.leader)
            except Unavailable as error:
                log.warning("the leader of the store cannot be read, trying again: %s", error)
            else:
                if not leader:
                    return
                self.leader = leader
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def standing_by(settings: Settings, release: str) -> AsyncIterator[Standby]:
    """Run a standby while the context is open."""
    tls = server_certificates(settings)
    store = watch_store(settings)
    folder = data_folder(settings) / "standby"  # the leader may use the same data folder
    with (
        store.reader,
        log_store(folder / "logs", settings.log_max_bytes) as logs,
    ):
        standby = Standby(store)
        # The engine of a standby writes nothing.
        kernel = Kernel(cast(EventStore, store.reader), read_clock)
        engine = standby.engine = FollowingEngine(kernel, lambda: standby.leader)
        heartbeats = Heartbeats()
        api = Api(
            engine=engine,
            heartbeats=heartbeats,
            logs=logs,
            metrics=Metrics(engine, heartbeats),
            vault=Vault(folder / "vault"),
            places=CheckpointPlaces(settings, kernel.state.cluster),
            version=release,
            started_ms=read_clock().wall_ns // 1_000_000,
            address="",
            mode="standby",
        )
        serving = http_serving(api, settings, tls=tls)
        async with taking_turns(engine), renewing(tls), serving as standby.http_url:
            yield standby
