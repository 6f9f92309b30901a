"""Hostile processes: whatever they send, the tasks of others complete, and the coordinator goes on.

They know all ids and numbers of others, and no secrets.
"""

from collections import Counter

import pytest

from strata.core.state import encode
from strata.sim.coordinator_checks import HOSTILE
from strata.sim.hostile.hostile_peer import CALLS, HostilePeer
from strata.sim.sim_coordinator import SESSION
from strata.sim.simulation import Scenario, Simulation
from strata.wire.v1 import coordinator_pb2 as pb

STATE_BYTES = 500_000
ALONE = {"faults": (HOSTILE,), "fault_every_s": 20.0}
MIXED = {
    "faults": (HOSTILE, "crash", "coordinator", "restart", "slow_disk", "partition", "snapshots"),
    "fault_every_s": 15.0,
}


def simulation(seed: int, **given) -> Simulation:
    return Simulation(Scenario(seed=seed, workers=4, hours=0.15, steps=20, step_s=5.0, **given))


def honest_losses(sim: Simulation) -> list[str]:
    """The workers of submitted tasks that were declared lost."""
    facts = [event.body for event in sim.coordinator.disk.read() if event.kind == "WorkerLost"]
    return [fact.worker for fact in facts if fact.worker.startswith("train-")]


def completed(sim: Simulation) -> list[str]:
    tasks = sim.coordinator.kernel.state.tasks.values()
    return [each.id for each in tasks if each.state == "completed" and not each.spec.external]


@pytest.mark.parametrize("seed", range(4))
def test_hostile_processes_do_not_affect_the_tasks_of_others(seed):
    sim = simulation(seed, **ALONE).run()
    assert sim.struck[HOSTILE] > 5
    assert completed(sim)
    assert honest_losses(sim) == []
    assert "RolledBack" not in sim.kinds
    assert len(encode(sim.coordinator.kernel.state)) < STATE_BYTES


@pytest.mark.parametrize("seed", range(6))
def test_guarantees_hold_under_hostile_processes_and_other_faults(seed):
    sim = simulation(seed, **MIXED).run()
    assert completed(sim)
    assert len(encode(sim.coordinator.kernel.state)) < STATE_BYTES


def test_hostile_processes_send_every_message(monkeypatch):
    """Each kind is sent and some of them are accepted: the session is greeted before."""
    sent = Counter()
    carry, ask = HostilePeer._carry, HostilePeer._ask

    def counted(peer, line, payload):
        kind = pb.WorkerMessage if line.path == SESSION else pb.AgentMessage
        sent[kind.FromString(payload).WhichOneof("body")] += 1
        carry(peer, line, payload)

    def asked(peer):
        sent["call"] += 1
        ask(peer)

    monkeypatch.setattr(HostilePeer, "_carry", counted)
    monkeypatch.setattr(HostilePeer, "_ask", asked)
    kinds = set()
    for seed in range(3):
        sim = simulation(seed, **ALONE).run()
        kinds |= {each.kind for each in sim.coordinator.disk.read() if HOSTILE in str(each.body)}
    bodies = {
        field.name
        for kind in (pb.WorkerMessage, pb.AgentMessage)
        for field in kind.DESCRIPTOR.oneofs_by_name["body"].fields
    }
    assert bodies - set(sent) == set()
    assert sent["call"] > 5 * len(CALLS)
    accepted = {"WorkerRegistered", "AgentRegistered", "GenerationEntered", "BarrierArrived"}
    assert kinds >= accepted | {"WorkerFenced", "WorkerStateChanged"}
