"""Collections of stacks survive what happens meanwhile: workers that die, coordinators that crash.

Guards that every collection ends and that no hang goes undeclared because of one.
"""

import msgspec
import pytest

from strata.core.workers.stack_collection import (
    StackCollectionEnded,
    StacksCollected,
    StacksRequested,
)
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.sim.simulation import Scenario, Simulation

HANGS = Scenario(hours=0.4, faults=("hang", "stop"), fault_every_s=60, steps=60, step_s=5.0)


def simulation(seed, meanwhile):
    """A simulation in which `meanwhile` is called shortly after the first collections begin."""
    sim = Simulation(msgspec.structs.replace(HANGS, seed=seed))

    def follow(state, events):
        for event in events:
            if isinstance(event.body, StacksRequested) and event.body.collection < 3:
                sim.world.after(0.05, meanwhile, sim, event.body)

    sim.coordinator.on_turn.append(follow)
    return sim


def crash(sim, request):
    sim.coordinator.crash()


def kill_the_second(sim, request):
    """Kill a worker that is asked, if possible one that does not hang, before it can answer."""
    healthy = (name for name in request.workers if name not in request.suspects)
    other = next(healthy, request.workers[0])
    if sim.workers[other].alive:
        sim.workers[other].exit(137, 9)


@pytest.mark.parametrize("meanwhile", [crash, kill_the_second], ids=lambda each: each.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_every_collection_ends_and_every_hang_is_declared(seed, meanwhile):
    sim = simulation(seed, meanwhile).run()
    bodies = [event.body for event in sim.coordinator.disk.read()]
    begun = [each for each in bodies if isinstance(each, StacksRequested)]
    ended = [each for each in bodies if isinstance(each, StackCollectionEnded)]
    hung = [each for each in bodies if isinstance(each, WorkerLost) and each.signal == "hang"]
    assert begun
    assert [each.collection for each in ended] == [each.collection for each in begun]
    assert len(hung) >= sum(each.trigger == "hang" for each in begun) > 0
    assert any(isinstance(each, StacksCollected) for each in bodies)
