"""Run an agent (folder, supervisor and coordinator link) for the duration of a block."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from strata.agent.agent_records import held
from strata.agent.coordinator_link import CoordinatorLink
from strata.agent.self_test_gate import SelfTestGate
from strata.agent.warm_start import Templates
from strata.agent.worker_supervisor import WorkerSupervisor
from strata.agent.worker_variables import worker_environment
from strata.config import Settings
from strata.sdk.record.gpu_cards import shares, visible_cards
from strata.sdk.session import owner_watch
from strata.sdk.session.channel import parse_addresses
from strata.wire.v1 import coordinator_pb2 as pb

FLUSH_S = 5.0
AGENTS = "agents"
"""The folder of all agents in a data folder."""

Leaving: TypeAlias = Literal["end", "kill", "leave"]
"""What happens to the workers when the agent ends: ended gracefully, killed, or left running."""


class AgentHost(Struct):
    """A running agent. `leaving` may be changed until the end."""

    supervisor: WorkerSupervisor
    link: CoordinatorLink
    linked: asyncio.Task[None]
    leaving: Leaving = "end"


@asynccontextmanager
async def hosting(
    settings: Settings, name: str, slots: int, folder: Path
) -> AsyncIterator[AgentHost]:
    """Offer this host's slots to the coordinator until the block ends."""
    with held(folder):
        cards = shares(visible_cards(), slots)
        templates = Templates(settings.warm_starts_after_s) if settings.warm_starts else None
        target = parse_addresses(settings.coordinator_addr)[0].target
        gate = SelfTestGate(target, folder, always=settings.self_test)
        supervisor = WorkerSupervisor(folder, worker_environment(settings), cards, templates, gate)
        supervisor.open()
        hello = pb.AgentHello(
            agent_id=name,
            hostname=socket.gethostname(),
            slots=slots,
            nonce=supervisor.nonce,
            slot_gpus=supervisor.gpus.offered(),
        )
        link = CoordinatorLink(supervisor, settings, hello)
        host = AgentHost(
            supervisor=supervisor,
            link=link,
            linked=asyncio.create_task(link.run(), name="strata-agent"),
        )
        try:
            yield host
        finally:
            await _leave(host)


async def _leave(host: AgentHost) -> None:
    supervisor = host.supervisor
    if host.leaving == "leave":
        supervisor.detach()
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


def this_process() -> str:
    """This process as the workers of an embedded agent know it (`sdk/session/owner_watch`)."""
    return owner_watch.this_process()
