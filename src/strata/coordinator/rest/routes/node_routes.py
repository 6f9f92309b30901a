"""Endpoints of workers and agents: list them, show one, declare an agent lost."""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta, Struct

from strata.coordinator.rest.error_responses import READS, READS_ONE, WRITES
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    by_id,
    page,
    paged,
)
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.response_models import AgentResponse, WorkerResponse, WorkerStatus
from strata.coordinator.rest.views import state_views
from strata.core.workers.host_agents import DeclareAgentLost
from strata.errors import NotAllowedNow, NotFound


class GiveUpAgentRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Why the host is known to be lost."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]


class GiveUpAgentResponse(Struct, frozen=True):
    """The agent that was declared lost."""

    agent_id: str


@get("/agents", responses=READS, response_headers=HEADERS)
async def list_agents(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[AgentResponse]]:
    """Agents, which offer slots on their hosts, by name."""
    async with api.engine.settled() as state:
        found = page(state.agents.values(), by_id, limit, cursor)
        shown = state_views.agents(state, api.heartbeats, found.items)
        return paged(shown, found.total, found.next_cursor)


@post("/agents/{agent_id:str}/lost", status_code=200, responses=WRITES)
async def give_up_agent(
    api: TheApi, agent_id: FromPath[str], data: JSONBody[GiveUpAgentRequest]
) -> GiveUpAgentResponse:
    """Declare an agent lost before its heartbeat timeout; refused while it is connected."""
    async with api.engine.settled() as state:
        agent = state.agents.get(agent_id)
    if agent is None:
        raise NotFound(f"there is no agent {agent_id!r}", hint="GET /api/agents lists them")
    if api.agent_connected(agent_id):
        raise NotAllowedNow(
            f"agent {agent_id!r} is connected", hint="stop the agent on its host instead"
        )
    command = DeclareAgentLost(agent=agent_id, incarnation=agent.incarnation, reason=data.reason)
    await api.engine.submit(command)
    return GiveUpAgentResponse(agent_id)


Status = Annotated[WorkerStatus | None, QueryParameter(description="Only with this status.")]
OfTask = Annotated[str, QueryParameter(max_length=200, description="Only of this task.")]
Ended = Annotated[
    bool, QueryParameter(description="Include workers that were lost in tasks that have ended.")
]


@get("/workers", responses=READS, response_headers=HEADERS)
async def list_workers(
    api: TheApi,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    status: Status = None,
    task_id: OfTask = "",
    ended: Ended = False,
) -> Response[list[WorkerResponse]]:
    """Workers that are connected or belong to a running task, by name."""
    async with api.engine.settled() as state:
        wanted = (
            worker
            for worker in state_views.shown_workers(state, ended)
            if task_id in ("", worker.task)
            and status in (None, state_views.WORKER_STATUS[worker.state])
        )
        found = page(wanted, by_id, limit, cursor)
        shown = state_views.workers(state, api.heartbeats, found.items)
        return paged(shown, found.total, found.next_cursor)


@get("/workers/{worker_id:str}", responses=READS_ONE)
async def get_worker(api: TheApi, worker_id: FromPath[str]) -> WorkerResponse:
    """One worker."""
    async with api.engine.settled() as state:
        [shown] = state_views.workers(
            state, api.heartbeats, [state_views.find_worker(state, worker_id)]
        )
        return shown
