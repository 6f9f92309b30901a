"""Hosts and workers that are declared lost: alone, or several of them at the same time.

What is found lost at the same time is declared together. Then each task changes its generation
once, however many of its workers are gone, and no replacement is placed on a host that is lost as
well. The workers of a lost host are lost with it: nobody can tell whether they still run.
"""

from typing import TYPE_CHECKING

from msgspec import field, structs

from strata.core.agents import AgentLost, DeclareAgentLost
from strata.core.decision import Decision
from strata.core.departures import lose
from strata.core.events import Command, decides
from strata.core.scheduling import place_waiting
from strata.core.workers import DeclareLost

if TYPE_CHECKING:
    from strata.core.state import Cluster


class DeclareLosses(Command, frozen=True):
    """Hosts and workers that were found lost at the same time."""

    agents: list[DeclareAgentLost] = field(default_factory=list)
    workers: list[DeclareLost] = field(default_factory=list)


@decides(DeclareLost)
def declare_worker(d: Decision, c: DeclareLost) -> None:
    """Takes a worker out; one that has already ended, or has returned since, is left alone."""
    lose(d, [c])


@decides(DeclareAgentLost)
def declare_agent(d: Decision, c: DeclareAgentLost) -> None:
    """A host is gone: so are the workers that ran on it."""
    declare_together(d, DeclareLosses(agents=[c]))


@decides(DeclareLosses)
def declare_together(d: Decision, c: DeclareLosses) -> None:
    """Declares hosts lost, the workers on them, and other workers, as one change."""
    gone: dict[str, str] = {}
    for host in c.agents:
        agent = d.state.agents.get(host.agent)
        if agent is not None and agent.up and agent.incarnation == host.incarnation:
            fact = AgentLost(host.agent, host.incarnation, host.reason)
            gone[host.agent] = d.record(fact, host.cause)
    # First those of the hosts: the host's loss is why a worker on it is silent, too.
    lose(d, [*_workers_on(d, gone), *c.workers])
    if gone:
        place_waiting(d, tuple(gone.values()))


def _workers_on(d: Decision, gone: dict[str, str]) -> list[DeclareLost]:
    """The losses of the workers that live on lost hosts, which map to the facts that say so."""
    if not gone:
        return []
    return [
        DeclareLost(
            worker=worker.id,
            incarnation=worker.incarnation,
            signal="agent",
            reason=f"its host {placement.agent} is lost",
            cause=(gone[placement.agent],),
        )
        for task in d.state.tasks.values()
        for worker_id, placement in task.placements.items()
        if placement.agent in gone
        and (worker := d.state.workers.get(worker_id)) is not None
        and worker.alive
    ]


def host_of(state: "Cluster", worker_id: str) -> str:
    """The agent that a worker was placed on; empty where nobody placed it."""
    worker = state.workers.get(worker_id)
    task = state.tasks.get(worker.task) if worker is not None else None
    placement = task.placements.get(worker_id) if task is not None else None
    return placement.agent if placement is not None else ""


def doubting(loss: DeclareLost, host_silence_s: float) -> DeclareLost:
    """A worker's loss, with the evidence that the agent of its host is not heard either."""
    evidence = {**loss.evidence, "host_silence_s": host_silence_s}
    return structs.replace(loss, evidence=evidence, host_in_doubt=True)
