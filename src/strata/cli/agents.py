"""List the agents: state, slots, last heartbeat and host of each."""

from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import (
    Column,
    Look,
    ago,
    count,
    print_list,
    state,
)
from strata.coordinator.rest.response_models import AgentResponse


def failure(agent: AgentResponse) -> str:
    """Why an agent was lost."""
    return "" if agent.up or not agent.reason else f"{agent.id}: {agent.reason}"


LOOK = Look(
    "agents",
    AgentResponse,
    [
        Column("agent", lambda agent, _: agent.id, shrinks=True),
        Column("status", lambda agent, _: state("up" if agent.up else "lost")),
        Column("slots", lambda agent, _: count(agent.slots), "right"),
        Column("used", lambda agent, _: count(agent.slots_used), "right"),
        Column("starts", lambda agent, _: count(agent.incarnation), "right", from_width=90),
        Column("heartbeat", lambda agent, now_ms: ago(agent.last_heartbeat, now_ms)),
        Column("registered", lambda agent, now_ms: ago(agent.registered_at, now_ms)),
        Column("host", lambda agent, _: agent.hostname, shrinks=True),
    ],
    empty="no agent is registered",
    next_command="strata agent --coordinator HOST:50051",
    note=failure,
)


def agents(limit: Limit = 100, url: Url = None, as_json: AsJson = False) -> None:
    """List the agents: state, slots, last heartbeat and host of each."""
    print_list(reach(url), LOOK, limit, as_json)
