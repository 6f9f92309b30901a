"""An agent put together: its folder, its supervisor and its link, for as long as a block lasts."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from strata.agent.link import Link
from strata.agent.records import held
from strata.agent.supervisor import Supervisor
from strata.agent.warm_start import Templates
from strata.config import Settings
from strata.sdk.cards import shares, visible_cards
from strata.wire.v1 import coordinator_pb2 as pb

FLUSH_S = 5.0

Leaving: TypeAlias = Literal["end", "kill", "leave"]
"""What becomes of the workers when the agent ends: ended gracefully, killed, or left running."""


class Host(Struct):
    """An agent that works. `leaving` may be changed until the end."""

    supervisor: Supervisor
    link: Link
    linked: asyncio.Task[None]
    leaving: Leaving = "end"


@asynccontextmanager
async def hosting(settings: Settings, name: str, slots: int, folder: Path) -> AsyncIterator[Host]:
    """Offers this host's slots to the coordinator until the block ends."""
    with held(folder):
        cards = shares(visible_cards(), slots)
        templates = Templates(settings.warm_starts_after_s) if settings.warm_starts else None
        supervisor = Supervisor(folder, told_to_workers(settings), cards, templates)
        supervisor.open()
        hello = pb.AgentHello(
            agent_id=name, hostname=socket.gethostname(), slots=slots, nonce=supervisor.nonce
        )
        link = Link(supervisor, settings, hello)
        host = Host(supervisor, link, asyncio.create_task(link.run(), name="strata-agent"))
        try:
            yield host
        finally:
            await _leave(host)


async def _leave(host: Host) -> None:
    supervisor = host.supervisor
    if host.leaving == "leave":
        supervisor.let_go()
    else:
        if host.leaving == "kill":
            supervisor.kill_all()
        await supervisor.end_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while not (supervisor.quiet or host.linked.done()):
                    await asyncio.sleep(0.01)
    host.linked.cancel()
    await asyncio.wait([host.linked])


def told_to_workers(settings: Settings) -> dict[str, str]:
    """How workers reach the coordinator: the same way as their agent."""
    told = {"COORDINATOR_ADDR": settings.coordinator_addr}
    if settings.token:
        told["STRATA_TOKEN"] = settings.token
    if settings.tls_cert:
        told["STRATA_TLS_CERT"] = settings.tls_cert
    return told
