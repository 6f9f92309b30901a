"""What Ray starts on a host: one actor that is a Strata agent. Ray never restarts it by itself."""

import asyncio
from pathlib import Path

from strata.agent.host import Host, Leaving, hosting
from strata.config import Settings
from strata.launch.local import AGENTS
from strata.launch.ray_library import ray
from strata.logsetup import configure


class RayHost:
    """An agent in an actor. Its workers are processes of its own, as everywhere."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._host: Host | None = None
        configure(settings, "agent")

    async def node(self) -> str:
        """The Ray node that it runs on."""
        return ray.get_runtime_context().get_node_id()

    async def serve(self, name: str, slots: int) -> None:
        """Offers slots until it is stopped.

        What it remembers belongs to the node: an actor that takes this one's place there goes on
        with the workers that run; one on another node must not take them for its own.
        """
        folder = Path(self._settings.data_dir) / AGENTS / f"{name}@{await self.node()}"
        async with hosting(self._settings, name, slots, folder) as self._host:
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([stopping, self._host.linked], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._host.linked.done():
                self._host.linked.result()

    async def stop(self, leaving: Leaving) -> None:
        """Begins to end it, or hurries it."""
        if self._host is not None:
            self._host.leaving = leaving
            if leaving == "kill":
                self._host.supervisor.kill_all()
        self._stopping.set()
