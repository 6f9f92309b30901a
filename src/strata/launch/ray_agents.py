"""Agents on a Ray cluster: one placement group, a bundle per host, an actor with an agent in each.

Ray only provides placement and processes. It restarts nothing (`max_restarts=0`): the coordinator,
which runs outside of Ray, handles losses. When an actor dies, another one is started in the same
bundle. If it starts soon on the same node, it adopts the workers that are still running. Otherwise
the host is declared lost to the coordinator, with Ray's reason, and the task recovers by its policy
on the remaining hosts; the bundle waits until Ray has a node for it.

All other modules import Ray from here: without its usage statistics, and with a hint if it is not
installed.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from strata import config
from strata.agent.agent_host import AGENTS, AgentHost, Leaving, hosting
from strata.config import Settings
from strata.errors import SettingError, Unavailable
from strata.logsetup import configure

config.export({"RAY_USAGE_STATS_ENABLED": "0"})

try:
    import ray
    from ray.exceptions import ActorUnavailableError, RayActorError, RayError
    from ray.util import get_node_ip_address
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as missing:
    raise SettingError(
        f"Ray is not installed: {missing}", hint="run `pip install 'strata-runtime[ray]'`"
    ) from None

__all__ = [
    "ActorUnavailableError",
    "PlacementGroup",
    "PlacementGroupSchedulingStrategy",
    "RayActorError",
    "RayError",
    "get_node_ip_address",
    "placement_group",
    "ray",
    "remove_placement_group",
]


class RayHost:
    """An agent in a Ray actor. Its workers are ordinary child processes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._host: AgentHost | None = None
        configure(settings, "agent")

    async def node(self) -> str:
        """The Ray node on which it runs."""
        return ray.get_runtime_context().get_node_id()

    async def serve(self, name: str, slots: int) -> None:
        """Offer slots until it is stopped.

        The agent's records belong to the node: an actor that replaces this one on the same node
        adopts its workers; an actor on another node must not.
        """
        folder = Path(self._settings.data_dir) / AGENTS / f"{name}@{await self.node()}"
        async with hosting(self._settings, name, slots, folder) as self._host:
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([stopping, self._host.linked], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._host.linked.done():
                self._host.linked.result()

    async def stop(self, leaving: Leaving) -> None:
        """Start to end the agent, or hurry it."""
        if self._host is not None:
            self._host.leaving = leaving
            if leaving == "kill":
                self._host.supervisor.kill_all()
        self._stopping.set()


log = logging.getLogger(__name__)

ADOPT_S = 30.0
"""How long another actor may take to start on the same node before its workers are lost."""

MISSING_S = 5.0
"""The same if Ray cannot reach the actor's node, where workers have probably ended."""

RETRY_S = 1.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Lost = Callable[[str, str], None]
"""Reports to the coordinator that an agent is lost, and why."""


class HostRequest(msgspec.Struct, frozen=True):
    """The number of hosts, and the slots and GPUs of each."""

    hosts: int
    slots: int
    gpus: int = 0

    @property
    def bundle(self) -> dict[str, float]:
        """The Ray resources of one host."""
        cards = {"GPU": float(self.gpus)} if self.gpus else {}
        return {"CPU": float(self.slots)} | cards


class Fleet:
    """The agents of one placement group; a thread with an event loop keeps them running."""

    def __init__(self, settings: Settings, wanted: HostRequest, prefix: str, on_lost: Lost) -> None:
        self._settings = settings
        self._wanted = wanted
        self._prefix = prefix
        self._on_lost = on_lost
        self._group: PlacementGroup = placement_group([wanted.bundle] * wanted.hosts, "SPREAD")
        self._actors: dict[int, Any] = {}
        self._stopping = False

    async def run(self, ready: "Future[Fleet]") -> None:
        """Keep an agent running in every bundle until all are stopped."""
        self._loop = asyncio.get_running_loop()
        ready.set_result(self)
        try:
            await asyncio.gather(*(self._keep(bundle) for bundle in range(self._wanted.hosts)))
        finally:
            remove_placement_group(self._group)

    def stop(self, leaving: Leaving) -> None:
        """Start to end the agents, or hurry it; thread-safe."""
        self._stopping = True
        for actor in list(self._actors.values()):
            actor.stop.remote(leaving)

    async def _keep(self, bundle: int) -> None:
        """Run one agent after the other in a bundle."""
        name, home = f"{self._prefix}-{bundle}", ""
        giving_up: asyncio.Task[None] | None = None
        while not self._stopping:
            actor = self._actors[bundle] = self._start(bundle)
            try:
                node = await actor.node.remote()
                if giving_up is not None:
                    giving_up.cancel()
                    if node != home:
                        await self._give_up(name, f"Ray moved it from node {home} to {node}")
                log.info("agent %s is on Ray node %s", name, node)
                home, giving_up = node, None
                await actor.serve.remote(name, self._wanted.slots)
            except RayActorError as error:
                reason = f"Ray says: {_cause(error)}"
                log.warning("agent %s: %s", name, reason)
                if giving_up is None and home:
                    missing = isinstance(error, ActorUnavailableError)
                    timeout_s = MISSING_S if missing else ADOPT_S
                    giving_up = asyncio.create_task(self._give_up(name, reason, timeout_s))
                ray.kill(actor)
                await asyncio.sleep(RETRY_S)

    def _start(self, bundle: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle
        )
        options = {
            "num_cpus": self._wanted.slots,
            "num_gpus": self._wanted.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": strategy,
        }
        return ray.remote(RayHost).options(**options).remote(self._settings)

    async def _give_up(self, name: str, reason: str, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        await asyncio.to_thread(self._on_lost, name, reason)


@contextmanager
def ray_agents(
    settings: Settings, wanted: HostRequest, prefix: str, on_lost: Lost
) -> Iterator[Fleet]:
    """Run agents on Ray until the block ends; `settings` contain the coordinator's address.

    Use it inside `connected`.
    """
    fleet_ready: Future[Fleet] = Future()
    there = msgspec.structs.replace(settings, data_dir=str(Path(settings.data_dir).resolve()))
    fleet = Fleet(there, wanted, prefix, on_lost)
    thread = threading.Thread(target=asyncio.run, args=(fleet.run(fleet_ready),), name="strata-ray")
    thread.start()
    try:
        yield fleet_ready.result()
    except BaseException:
        _end(fleet, thread, "kill")
        raise
    else:
        _end(fleet, thread, "end")


def _end(fleet: Fleet, thread: threading.Thread, leaving: Leaving) -> None:
    fleet.stop(leaving)
    thread.join()


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to Ray: the given cluster, the one that Ray finds, or a new one on this host."""
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (RayError, ConnectionError, ValueError) as error:
        raise Unavailable(
            f"Ray cannot be reached: {_cause(error)}", hint="run `ray status`"
        ) from error
    try:
        yield
    finally:
        with suppress(RayError):
            ray.shutdown()


def reachable(settings: Settings) -> Settings:
    """The settings for a coordinator that every node of the cluster can reach."""
    own = get_node_ip_address()  # type: ignore[no-untyped-call]
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    elsewhere = any(node["Alive"] and node["NodeManagerAddress"] != own for node in nodes)
    if not elsewhere or settings.grpc_host not in LOOPBACK:
        return settings
    return msgspec.structs.replace(settings, grpc_host=own)


def _cause(error: Exception) -> str:
    """The line of Ray's error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "because" in line or "unavailable" in line]
    return (telling or lines or [type(error).__name__])[0]
