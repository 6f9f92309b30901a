"""The checkers of the simulator: each notices the fault that it is made for."""

import pytest

from strata.core.barriers import barrier_rules
from strata.core.cluster import decide
from strata.core.datasets import dataset_rules
from strata.core.generations import recovery
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.sim.coordinator_checks import Broken
from strata.sim.sim_models import Model
from strata.sim.simulation import Scenario, Simulation

QUIET = Scenario(seed=3, hours=0.4, faults=(), steps=40)
STORMY = Scenario(seed=9, hours=1, fault_every_s=60)


def test_step_applied_twice_is_noticed(monkeypatch):
    once = Model.train

    def twice(model: Model) -> None:
        once(model)
        if model.steps == 17:
            model.steps = 16
            once(model)

    monkeypatch.setattr(Model, "train", twice)
    with pytest.raises(Broken, match="lost or applied twice"):
        Simulation(QUIET).run()


def test_early_release_is_noticed(monkeypatch):
    def eager(d, task: Task, barrier, reason, cause):
        if barrier.state == "waiting" and len(barrier.arrived) == len(task.members) - 1:
            d.record(
                barrier_rules.BarrierReleased(
                    task=task.id,
                    barrier=barrier.name,
                    round=barrier.round,
                    generation=task.generation,
                    participants=1,
                    reason=reason,
                ),
                cause,
            )

    monkeypatch.setattr(barrier_rules, "release_if_complete", eager)
    with pytest.raises(Broken, match=r"released early|left barrier"):
        Simulation(QUIET).run()


def test_unfair_share_of_lanes_is_noticed(monkeypatch):
    fair = dataset_rules.assign
    monkeypatch.setattr(dataset_rules, "assign", lambda *given: fair(*given)[:-1])
    with pytest.raises(Broken, match="exactly one owner"):
        Simulation(QUIET).run()


def test_uncommitted_checkpoint_is_noticed(monkeypatch):
    def anything(task: Task):
        return sorted(task.checkpoints.values(), key=lambda c: c.step, reverse=True)

    monkeypatch.setattr(recovery, "committed_newest_first", anything)
    scenario = Scenario(seed=9, hours=2, fault_every_s=60, sharded=True, save_s=60)
    with pytest.raises(Broken, match="not committed"):
        Simulation(scenario).run()


def test_forgotten_loss_is_noticed(monkeypatch):
    monkeypatch.setattr("strata.core.workers.departures.leave", lambda *given: None)
    with pytest.raises(Broken, match="still a member"):
        Simulation(STORMY).run()


def test_state_that_does_not_replay_is_noticed(monkeypatch):
    def forgetful(state: Cluster, command, now):
        outcome = decide(state, command, now)
        state.last_incarnation += bool(outcome.events)
        return outcome

    monkeypatch.setattr("strata.coordinator.engine.kernel.decide", forgetful)
    with pytest.raises(Broken, match="replaying the log"):
        Simulation(QUIET).run()
