"""Agents that Ray places: one placement group, a bundle per host, an actor with an agent in each.

Ray is asked for places and processes only. It restarts nothing (`max_restarts=0`): what was lost
and what follows is the coordinator's to decide, which runs outside Ray. When an actor dies another
one is started in the same bundle. If that comes up on the same node soon, it finds the workers
still running and goes on with them. Else the coordinator is told, with Ray's reason, that the host
is gone, and the task heals by its policy on the hosts that are left; the bundle waits until Ray
has a node for it.
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

from strata.agent.host import Leaving
from strata.config import Settings
from strata.errors import Unavailable
from strata.launch.ray_host import RayHost
from strata.launch.ray_library import (
    ActorUnavailableError,
    PlacementGroup,
    PlacementGroupSchedulingStrategy,
    RayActorError,
    RayError,
    get_node_ip_address,
    placement_group,
    ray,
    remove_placement_group,
)

log = logging.getLogger(__name__)

ADOPT_S = 30.0
"""For another actor to come up on the same node before its workers count as lost."""

MISSING_S = 5.0
"""The same, where Ray cannot reach the actor's node: workers hardly run there any more."""

RETRY_S = 1.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Lost = Callable[[str, str], None]
"""Tells the coordinator that an agent is gone, and why."""


class Wanted(msgspec.Struct, frozen=True):
    """How many hosts, and what each has to offer."""

    hosts: int
    slots: int
    gpus: int = 0

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray has to reserve for one host."""
        cards = {"GPU": float(self.gpus)} if self.gpus else {}
        return {"CPU": float(self.slots)} | cards


class Fleet:
    """The agents of one placement group, kept in their bundles by a thread with an event loop."""

    def __init__(self, settings: Settings, wanted: Wanted, prefix: str, on_lost: Lost) -> None:
        self._settings = settings
        self._wanted = wanted
        self._prefix = prefix
        self._on_lost = on_lost
        self._group: PlacementGroup = placement_group([wanted.bundle] * wanted.hosts, "SPREAD")
        self._actors: dict[int, Any] = {}
        self._stopping = False

    async def run(self, ready: "Future[Fleet]") -> None:
        """Keeps an agent in every bundle until all are stopped."""
        self._loop = asyncio.get_running_loop()
        ready.set_result(self)
        try:
            await asyncio.gather(*(self._keep(bundle) for bundle in range(self._wanted.hosts)))
        finally:
            remove_placement_group(self._group)

    def stop(self, leaving: Leaving) -> None:
        """Begins to end the agents, or hurries it; from any thread."""
        self._stopping = True
        for actor in list(self._actors.values()):
            actor.stop.remote(leaving)

    async def _keep(self, bundle: int) -> None:
        """One agent after the other in a bundle."""
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
                reason = f"Ray says: {_words(error)}"
                log.warning("agent %s: %s", name, reason)
                if giving_up is None and home:
                    missing = isinstance(error, ActorUnavailableError)
                    patience_s = MISSING_S if missing else ADOPT_S
                    giving_up = asyncio.create_task(self._give_up(name, reason, patience_s))
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
def ray_agents(settings: Settings, wanted: Wanted, prefix: str, on_lost: Lost) -> Iterator[Fleet]:
    """Agents that Ray placed, until the block ends; `settings` say how they reach the coordinator.

    Without a Ray cluster (named by `connected`) there is nothing to place them on.
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
    """A connection to Ray: the cluster named, the one that Ray finds, or a new one on this host."""
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (RayError, ConnectionError, ValueError) as error:
        raise Unavailable(f"Ray cannot be reached: {_words(error)}", hint="ray status") from error
    try:
        yield
    finally:
        with suppress(RayError):
            ray.shutdown()


def reachable(settings: Settings) -> Settings:
    """The settings of a coordinator that every node of the cluster can reach."""
    own = get_node_ip_address()  # type: ignore[no-untyped-call]
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    elsewhere = any(node["Alive"] and node["NodeManagerAddress"] != own for node in nodes)
    if not elsewhere or settings.grpc_host not in LOOPBACK:
        return settings
    return msgspec.structs.replace(settings, grpc_host=own)


def _words(error: Exception) -> str:
    """What Ray says, on one line: the part that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "because" in line or "unavailable" in line]
    return (telling or lines or [type(error).__name__])[0]
