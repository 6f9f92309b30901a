"""Guards the guards: each checker must notice the fault it is there for."""

import pytest

from strata.core import barriers, datasets, recovery
from strata.core.cluster import decide
from strata.core.state import Cluster
from strata.core.tasks import Task
from strata.sim.models import Model
from strata.sim.promises import Broken
from strata.sim.simulation import Scenario, Simulation

QUIET = Scenario(seed=3, hours=0.4, faults=(), steps=40)
STORMY = Scenario(seed=9, hours=1, fault_every_s=60)


def test_a_step_applied_twice_is_noticed(monkeypatch):
    once = Model.train

    def twice(model: Model) -> None:
        once(model)
        if model.steps == 17:
            model.steps = 16
            once(model)

    monkeypatch.setattr(Model, "train", twice)
    with pytest.raises(Broken, match="lost or applied twice"):
        Simulation(QUIET).run()


def test_an_early_release_is_noticed(monkeypatch):
    def eager(d, task: Task, barrier, reason, cause):
        if barrier.state == "waiting" and len(barrier.arrived) == len(task.members) - 1:
            d.record(
                barriers.BarrierReleased(
                    task.id, barrier.name, barrier.round, task.generation, 1, reason
                ),
                cause,
            )

    monkeypatch.setattr(barriers, "release_if_complete", eager)
    with pytest.raises(Broken, match=r"released early|left barrier"):
        Simulation(QUIET).run()


def test_an_unfair_share_of_lanes_is_noticed(monkeypatch):
    fair = datasets.assign
    monkeypatch.setattr(datasets, "assign", lambda *given: fair(*given)[:-1])
    with pytest.raises(Broken, match="exactly one owner"):
        Simulation(QUIET).run()


def test_an_uncommitted_checkpoint_is_noticed(monkeypatch):
    def anything(task: Task):
        return sorted(task.checkpoints.values(), key=lambda c: c.step, reverse=True)

    monkeypatch.setattr(recovery, "committed_newest_first", anything)
    scenario = Scenario(seed=9, hours=2, fault_every_s=60, sharded=True, save_s=60)
    with pytest.raises(Broken, match="not committed"):
        Simulation(scenario).run()


def test_a_forgotten_loss_is_noticed(monkeypatch):
    monkeypatch.setattr("strata.core.departures.leave", lambda *given: None)
    with pytest.raises(Broken, match="still a member"):
        Simulation(STORMY).run()


def test_a_state_that_does_not_replay_is_noticed(monkeypatch):
    def forgetful(state: Cluster, command, now):
        outcome = decide(state, command, now)
        state.last_incarnation += bool(outcome.events)
        return outcome

    monkeypatch.setattr("strata.coordinator.kernel.decide", forgetful)
    with pytest.raises(Broken, match="replaying the log"):
        Simulation(QUIET).run()
