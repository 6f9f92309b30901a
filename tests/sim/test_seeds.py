"""The guarantees of the core under faults: fixed seeds, new ones, and seeds that once failed.

A failing seed is reproduced by the command in the message.
"""

import random

import pytest

from strata.sim.coordinator_checks import Broken
from strata.sim.injected_faults import FAULTS
from strata.sim.sim_report import report
from strata.sim.simulation import Scenario, Simulation

# Scenarios that once broke a promise, each named after what it taught. Those up to the barrier were
# found when the simulator drove the kernel alone: their seeds give other runs since.
LESSONS = {
    "a rejoined worker is not killed for its replacement": Scenario(seed=2),
    "a pending start dies with its agent": Scenario(seed=6),
    "a replaced process may not rejoin its slot": Scenario(seed=8),
    "a hang right after a coordinator's restart is noticed": Scenario(seed=13),
    "an agent that was refused by a full disk asks again": Scenario(seed=24),
    "a finished worker does not come back": Scenario(seed=1),
    "a task that continues refills when too few are left": Scenario(seed=100, policy="continue"),
    "arrivals count within an incarnation": Scenario(seed=3007, sharded=True, fault_every_s=120),
    "what is on its way does not change with the state": Scenario(
        seed=1094, policy="continue", fault_every_s=120
    ),
    "the disk is full when the coordinator starts": Scenario(seed=2003, fault_every_s=120),
    "a peer is the process that joined, not one started in its place that was refused": Scenario(
        seed=640321875937,
        workers=12,
        hours=1.6225591859799677,
        fault_every_s=60,
        min_workers=5,
        spares=1,
    ),
    "a barrier outlives a rollback": Scenario(seed=1049, policy="continue", fault_every_s=120),
    "a stream that closes before its Hello is decided does not outlive the next Hello": Scenario(
        seed=0, hours=0.4, faults=("slow_disk", "crash"), fault_every_s=40, steps=60, step_s=5.0
    ),
    "a session that a stopping coordinator closes is no sign of death": Scenario(
        seed=126, sharded=True, fault_every_s=40, barrier_every=1, steps=60
    ),
    "a host that was excluded after failures is included again": Scenario(
        seed=3, fault_every_s=120
    ),
}


def run(scenario: Scenario) -> Simulation:
    try:
        return Simulation(scenario).run()
    except Broken as broken:
        pytest.fail(f"{broken}\nadd this to the lessons: {scenario}")


@pytest.mark.parametrize("seed", range(3))
def test_resizing_alone_loses_no_worker_and_no_step(seed):
    found = run(Scenario(seed=seed, faults=("resize",), fault_every_s=60, hours=0.5))
    assert found.kinds["TaskResized"] > 0
    assert found.kinds["WorkersReleased"] > 0
    assert "WorkerLost" not in found.kinds
    assert "RolledBack" not in found.kinds


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_stays_learnt(lesson):
    run(LESSONS[lesson])


@pytest.mark.parametrize("policy", ["replace", "continue"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_fixed_seeds(seed, policy, sharded):
    run(Scenario(seed=seed, policy=policy, sharded=sharded, fault_every_s=120))


@pytest.mark.parametrize("policy", ["replace", "continue", "stop"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))]
)
def test_preempted_tasks_end_like_others(seed, policy, sharded):
    scenario = Scenario(
        seed=seed,
        workers=4,
        hours=2.0,
        steps=40,
        policy=policy,
        sharded=sharded,
        urgent_every_s=1200.0,
    )
    assert run(scenario).kinds["TaskPreempted"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(60))
def test_fresh_seeds(attempt):
    seed = random.SystemRandom().randrange(1 << 40)
    dice = random.Random(seed)
    workers = dice.choice((1, 2, 5, 8, 12))
    run(
        Scenario(
            seed=seed,
            workers=workers,
            workers_per_host=dice.choice((1, 3, 4)),
            hours=dice.uniform(0.5, 3),
            policy=dice.choice(("replace", "continue")),
            min_workers=dice.randint(0, workers),
            spares=dice.choice((0, 0, 1, 3)),
            sharded=dice.random() < 0.3,
            fault_every_s=dice.choice((60, 120, 300)),
        )
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone(fault):
    sim = run(Scenario(seed=11, hours=0.5, faults=(fault,), fault_every_s=90))
    assert sim.struck == {fault: sim.struck[fault]}, "the fault never struck"


def test_run_without_faults_loses_no_worker():
    figures = report(run(Scenario(seed=3, hours=0.5, faults=())))
    assert figures.losses == {}
    assert figures.tasks_completed >= 1
    assert figures.load.facts_per_s > 0


def test_same_seed_gives_the_same_facts():
    scenario = Scenario(seed=42, hours=0.5, fault_every_s=60)
    first, second = run(scenario), run(scenario)
    assert list(first.coordinator.disk.read()) == list(second.coordinator.disk.read())
    assert first.story == second.story


def test_other_seeds_give_other_facts():
    first = run(Scenario(seed=1, hours=0.5, fault_every_s=60))
    second = run(Scenario(seed=2, hours=0.5, fault_every_s=60))
    assert first.story != second.story


@pytest.mark.slow
def test_large_fleet_fits():
    figures = report(run(Scenario(seed=5, workers=1_000, hours=0.05, steps=10, fault_every_s=60)))
    assert figures.tasks_completed >= 1
    assert figures.load.state_bytes < 50_000_000
