"""A real coordinator with engine, store and logs, served on loopback."""

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import AsyncExitStack

import httpx
import uvloop

from strata.config import Settings
from strata.coordinator.checkpoint_files import CheckpointPlaces
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.logs.log_store import LogStore
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.rest.app import create_app
from strata.coordinator.rest.http_server import serve
from strata.coordinator.rest.ports import Api
from strata.coordinator.rest.request_checks import HttpLimits
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.coordinator.sessions.task_environments import Vault
from strata.core.cluster import CODEC
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.state import DatasetSpec
from strata.core.workers.worker_lifecycle import RegisterWorker, ReportState
from strata.store.memory_store import MemoryStore
from strata.store.sqlite import SqliteStore

WAIT_S = 20.0


class Coordinator:
    """A coordinator in a thread while the context is open; tests use it over HTTP."""

    def __init__(self, folder, *, memory=False, token="", page_origin="", limits=None):
        self.folder = folder
        self.memory = memory
        self.settings = Settings(token=token, page_origin=page_origin)
        self.limits = limits or HttpLimits(writes_burst=100_000)
        self.url = ""
        self._ready: Future = Future()
        self._thread = threading.Thread(target=self._run, name="coordinator")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                if self._ready.done():
                    raise
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.heartbeats = Heartbeats()
        self.agents_connected: set[str] = set()
        async with AsyncExitStack() as stack:
            store = MemoryStore(CODEC) if self.memory else SqliteStore(self.folder / "log", CODEC)
            stack.callback(store.close)
            self.logs = LogStore(self.folder / "lines")
            stack.callback(self.logs.close)
            kernel = Kernel(store, read_clock)
            kernel.start("tests", "1.2.3")
            self.engine = Engine(kernel)
            self.engine.start()
            stack.push_async_callback(self.engine.stop)
            self.api = Api(
                engine=self.engine,
                heartbeats=self.heartbeats,
                logs=self.logs,
                metrics=Metrics(self.engine, self.heartbeats),
                vault=Vault(self.folder / "vault"),
                places=CheckpointPlaces(Settings(data_dir=str(self.folder)), "tests"),
                version="1.2.3",
                started_ms=time.time_ns() // 1_000_000,
                address="127.0.0.1:50051",
                agent_connected=self.agents_connected.__contains__,
            )
            self.guard = create_app(self.api, self.settings, self.limits)
            served = await stack.enter_async_context(serve(self.guard, "127.0.0.1", 0))
            self.url, self.port = served.url, served.port
            self._ready.set_result(None)
            await self.stopping.wait()

    def __enter__(self) -> "Coordinator":
        self._thread.start()
        self._ready.result(WAIT_S)
        return self

    def __exit__(self, *_) -> None:
        if self._ready.exception() is None:
            self.loop.call_soon_threadsafe(self.stopping.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the coordinator did not stop"

    def run(self, coroutine):
        """Run a coroutine in the coordinator's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def submit(self, *commands):
        """Submit commands together; returns the answers or raises the first refusal."""

        async def all_of_them():
            return await asyncio.gather(*(self.engine.submit(command) for command in commands))

        return self.run(all_of_them())

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S, trust_env=False, **options)

    def position(self) -> int:
        return self.engine.position

    def train(self, count=2, *, shards=10):
        """Register workers that train on a dataset with this many shards; returns the workers."""
        registered = self.submit(
            *(
                RegisterWorker(
                    worker=f"w{rank}",
                    world_size=count,
                    hostname="node",
                    address="10.0.0.1",
                    port=7000 + rank,
                    gpu_count=1,
                    syncs=False,
                )
                for rank in range(count)
            )
        )
        self.submit(
            RegisterDataset(
                dataset="digits", spec=DatasetSpec(total_samples=shards * 10 - 5, shard_size=10)
            ),
            AttachDataset(task=registered[0].task, dataset="digits"),
            *(
                ReportState(worker=worker.id, incarnation=worker.incarnation, state="training")
                for worker in registered
            ),
        )
        return registered


def wait_for(condition, what="the condition"):
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come about"
        time.sleep(0.005)
