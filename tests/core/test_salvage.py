"""Salvage: a salvaged log never uses a number twice and never folds over a lost fact."""

import pytest

from strata.core.cluster import StartCoordinator, fold
from strata.core.events import Envelope
from strata.core.generations.generation_members import GenerationChanged
from strata.core.record.log_salvage import SKIP, FactLost, LogSalvaged, SalvageLog
from strata.core.state import Cluster, encode
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.workers.worker_lifecycle import RegisterWorker, ReportState, WorkerLost
from strata.errors import Fenced, StrataError
from tests.core.world import World


def trained():
    """A placed task that has trained 5 steps, on a host that is up."""
    world = World()
    world.agent("host-1", slots=2)
    task = world.submit(2, external=False)
    world.start(task)
    world.sync(task)
    world.train(task, 5)
    return world, task


def salvage_tail(world, lost=10):
    first = len(world.log)
    end = first + lost
    world.do(SalvageLog(base=first, end=end, lost=[(first, end)], reason="cut short"))
    return first, end


def test_lost_tail_is_recorded_at_every_position():
    world, _ = trained()
    first, end = salvage_tail(world)
    lost = [event for event in world.log if isinstance(event.body, FactLost)]
    assert [event.seq for event in lost] == list(range(first, end))
    assert world.facts(LogSalvaged)[0].lost == [(first, end)]
    assert world.state.salvages[0].lost == [(first, end)]
    assert world.state.unknown_from is None


def test_salvage_raises_every_counter_beyond_lost_numbers():
    world, task = trained()
    state = world.state
    before = (state.last_incarnation, state.last_task, task.generation, task.last_checkpoint)
    starts = {worker: placement.start for worker, placement in task.placements.items()}
    salvage_tail(world)
    after = (state.last_incarnation, state.last_task, task.generation, task.last_checkpoint)
    assert all(new >= old + SKIP for old, new in zip(before, after, strict=True))
    assert all(p.start >= starts[worker] + SKIP for worker, p in task.placements.items())
    incarnation = world.do(StartCoordinator(cluster="test", release="0"))
    assert incarnation > SKIP
    assert world.submit(1).id.endswith(str(before[1] + SKIP + 1))


def test_salvage_declares_every_living_worker_and_agent_lost():
    world, task = trained()
    workers = list(task.members)
    peers = world.members(task)
    salvage_tail(world)
    assert [fact.worker for fact in world.facts(WorkerLost)] == workers
    assert not world.state.agents["host-1"].up
    assert world.one(GenerationChanged).phase == "forming"
    with pytest.raises(Fenced):
        world.do(ReportState(**peers[0].me, state="training", step=5))


def test_salvaged_task_starts_its_workers_with_new_numbers():
    world, task = trained()
    old_start = max(placement.start for placement in task.placements.values())
    salvage_tail(world)
    world.agent("host-1", slots=2)
    placed = world.facts(TaskPlaced)[-1]
    assert all(each.start > old_start + SKIP for each in placed.placements.values())
    worker = next(iter(placed.placements))
    with pytest.raises(Fenced):
        world.do(RegisterWorker(worker=worker, task=task.id, start=old_start + 1))


def test_certain_salvage_without_loss_keeps_workers_and_numbers():
    world, task = trained()
    generation = task.generation
    world.do(SalvageLog(base=len(world.log), end=len(world.log), lost=[], certain=True))
    assert task.generation == generation
    assert not world.facts(WorkerLost)


def test_facts_after_a_lost_fact_do_not_change_the_state():
    world, _ = trained()
    at = len(world.log) - 4
    damaged = list(world.log)
    damaged[at] = Envelope(at, 0, 0, FactLost(first=at, stop=at + 1))
    state = fold(Cluster(), damaged)
    assert state.unknown_from == at
    assert state.position == len(world.log)
    known = fold(Cluster(), world.log[:at])
    known.position, known.unknown_from = state.position, at
    assert encode(state) == encode(known)


def test_salvage_with_a_base_that_folding_did_not_reach_leaves_the_state_unknown():
    world, _ = trained()
    damaged = list(world.log)
    damaged[3] = Envelope(3, 0, 0, FactLost(first=3, stop=4))
    end = len(damaged)
    damaged.append(Envelope(end, 0, 0, LogSalvaged(base=end, skip=SKIP, lost=[(3, 4)])))
    assert fold(Cluster(), damaged).unknown_from == 3
    damaged[end] = Envelope(end, 0, 0, LogSalvaged(base=3, skip=SKIP, lost=[(3, 4)]))
    assert fold(Cluster(), damaged).unknown_from is None


def test_external_worker_registers_again_after_salvage():
    world = World()
    task = world.submit(1)
    (peer,) = world.join(task, "a")
    salvage_tail(world)
    with pytest.raises(StrataError):
        world.do(ReportState(**peer.me, state="training", step=0))
    again = world.do(RegisterWorker(worker="a", task=task.id))
    assert again.incarnation > SKIP
