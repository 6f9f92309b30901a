"""Hosts that offer slots: listed, and given up on the word of whoever placed them."""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from strata.coordinator.http import views
from strata.coordinator.http.faults import READS, WRITES
from strata.coordinator.http.models import AgentResponse
from strata.coordinator.http.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    by_id,
    page,
    paged,
)
from strata.coordinator.http.ports import TheApi
from strata.core.agents import DeclareAgentLost
from strata.errors import NotAllowedNow, NotFound


class GiveUpAgentRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the host is known to be gone."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class GiveUpAgentResponse(Struct, frozen=True):
    """The host that counts as lost now."""

    agent_id: str


@get("/agents", responses=READS, response_headers=HEADERS)
async def list_agents(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[AgentResponse]]:
    """The hosts that offer slots."""
    async with api.engine.settled() as state:
        found = page(state.agents.values(), by_id, limit, cursor)
        return paged(views.agents(state, found.items), found.total, found.next_cursor)


@post("/agents/{agent_id:str}/lost", status_code=200, responses=WRITES)
async def give_up_agent(
    api: TheApi, agent_id: FromPath[str], data: JSONBody[GiveUpAgentRequest]
) -> GiveUpAgentResponse:
    """Declares a host lost without waiting for its silence; one that is connected is not."""
    async with api.engine.settled() as state:
        agent = state.agents.get(agent_id)
    if agent is None:
        raise NotFound(f"there is no agent {agent_id!r}", hint="GET /api/agents lists them")
    if api.agent_connected(agent_id):
        raise NotAllowedNow(
            f"agent {agent_id!r} is connected", hint="stop it where it runs: it will say so"
        )
    command = DeclareAgentLost(agent=agent_id, incarnation=agent.incarnation, reason=data.reason)
    await api.engine.submit(command)
    return GiveUpAgentResponse(agent_id)
