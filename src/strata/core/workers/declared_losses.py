"""Hosts and workers that are declared lost, one or several at a time.

Losses that are found at the same time are declared together. Then each task changes its generation
once, and no replacement is placed on a host that is lost as well. The workers of a lost host are
lost with it, since their state is unknown.
"""

from msgspec import field, structs

from strata.core.decision import Decision, decides
from strata.core.events import Command
from strata.core.state import Cluster
from strata.core.tasks.placement import place_waiting
from strata.core.workers.departures import lose
from strata.core.workers.host_agents import AgentLost, DeclareAgentLost
from strata.core.workers.worker_lifecycle import DeclareLost


class DeclareLosses(Command, frozen=True):
    """Hosts and workers that were found lost at the same time."""

    agents: list[DeclareAgentLost] = field(default_factory=list)
    workers: list[DeclareLost] = field(default_factory=list)


@decides(DeclareLost)
def declare_worker(d: Decision, c: DeclareLost) -> None:
    """Declare a worker lost, unless it has ended or returned since."""
    lose(d, [c])


@decides(DeclareAgentLost)
def declare_agent(d: Decision, c: DeclareAgentLost) -> None:
    """Declare a host lost, with the workers on it."""
    declare_together(d, DeclareLosses(agents=[c]))


@decides(DeclareLosses)
def declare_together(d: Decision, c: DeclareLosses) -> None:
    """Declare hosts, the workers on them, and other workers lost, as one change."""
    gone: dict[str, str] = {}
    silences_s: dict[str, float] = {}
    for host in c.agents:
        agent = d.state.agents.get(host.agent)
        if agent is not None and agent.up and agent.incarnation == host.incarnation:
            fact = AgentLost(agent=host.agent, incarnation=host.incarnation, reason=host.reason)
            gone[host.agent] = d.record(fact, host.cause)
            silences_s[host.agent] = host.silence_s
    # Hosts first: their loss is the reason why the workers on them are silent.
    lose(d, [*_workers_on(d, gone, silences_s), *c.workers])
    if gone:
        place_waiting(d, tuple(gone.values()))


def _workers_on(
    d: Decision, gone: dict[str, str], silences_s: dict[str, float]
) -> list[DeclareLost]:
    """The losses of the living workers on lost hosts; `gone` maps each host to its fact, and
    `silences_s` to the seconds since its last heartbeat, if that is why it is lost."""
    if not gone:
        return []
    return [
        DeclareLost(
            worker=worker.id,
            incarnation=worker.incarnation,
            signal="agent",
            reason=f"its host {placement.agent} is lost",
            evidence={"silence_s": silence_s} if (silence_s := silences_s[placement.agent]) else {},
            cause=(gone[placement.agent],),
        )
        for task in d.state.tasks.values()
        for worker_id, placement in (task.placements | task.released).items()
        if placement.agent in gone
        and (worker := d.state.workers.get(worker_id)) is not None
        and worker.alive
    ]


def host_of(state: Cluster, worker_id: str) -> str:
    """The agent that a worker was placed on; empty if it was not placed."""
    worker = state.workers.get(worker_id)
    task = state.tasks.get(worker.task) if worker is not None else None
    placement = task.placements.get(worker_id) if task is not None else None
    return placement.agent if placement is not None else ""


def with_host_in_doubt(loss: DeclareLost, host_silence_s: float) -> DeclareLost:
    """A worker's loss, with the evidence that its host's agent is silent too."""
    evidence = {**loss.evidence, "host_silence_s": host_silence_s}
    return structs.replace(loss, evidence=evidence, host_in_doubt=True)
