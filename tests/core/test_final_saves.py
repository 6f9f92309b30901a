"""The final save: a worker that is lost meanwhile does not make it fail for good, and the others do
not wait for a replacement, which has no model."""

import pytest

from strata.core.checkpoints.save_schedule import EndTraining, TrainingEnded
from strata.core.generations.recovery import RecoveryChosen
from strata.core.tasks.standing import affected
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.errors import NotAllowedNow
from tests.core.test_endings import running
from tests.core.world import World


def end(world, peer, step=12):
    """Report that a worker has run its script to the end."""
    peer.model = type(peer.model)(peer.model.attempt, peer.model.generation, step)
    return world.do(EndTraining(**peer.me, step=step))


def test_survivor_saves_the_final_state_in_the_next_generation():
    world, task, (a, b) = running()
    for peer in (a, b):
        end(world, peer)
    lost = a.begin(12, final=True)
    a.ack(lost)
    b.lost()
    assert lost.state == "failed"
    assert (task.phase, task.members) == ("syncing", ["a"]), "no replacement is waited for"
    world.sync(task)
    assert (task.recovery.source, task.recovery.step) == ("peer", 12)
    world.save(task, 12, final=True)
    a.leave("done", steps=12)
    assert (task.state, task.exit_code, task.committed) == ("completed", 0, 12)


def test_worker_that_ends_while_a_replacement_is_waited_for_saves_without_it():
    world, task, (a, b) = running()
    b.lost()
    assert task.phase == "forming"
    end(world, a)
    assert (task.phase, task.members) == ("syncing", ["a"])
    world.sync(task)
    world.save(task, 12, final=True)
    a.leave("done", steps=12)
    assert (task.state, task.exit_code) == ("completed", 0)


def test_replacement_that_has_no_model_yet_waits_beside_the_final_save():
    world, task, (a, b, c) = running(3)
    c.lost()
    late = c.again()
    late.enter()
    assert (task.phase, len(task.members)) == ("syncing", 3)
    end(world, a)
    changed = world.event(world.last[1])
    assert (task.members, task.waiting, late.worker.rank) == (["a", "b"], ["c"], -1)
    assert set(affected(world.state, [changed]).workers) == {"a", "b", "c"}
    end(world, b)
    world.sync(task)
    world.save(task, 12, final=True)
    for peer in (a, b):
        peer.leave("done", steps=12)
    assert (task.state, task.exit_code) == ("completed", 0)


def test_replacements_train_on_when_everyone_who_had_ended_is_lost():
    world, task, (a, b) = running()
    world.save(task, 10)
    for peer in (a, b):
        end(world, peer)
    a.begin(12, final=True)
    a.lost()
    assert task.phase == "syncing"
    b.lost()
    assert task.phase == "forming"
    heirs = world.join(task, "c", "d")
    world.sync(task)
    assert (task.recovery.source, task.recovery.step) == ("checkpoint", 10)
    assert (len(task.members), task.ending) == (2, [])
    for peer in heirs:
        peer.leave("done", steps=12)
    assert task.state == "completed"


def test_lost_worker_is_not_placed_again_while_the_others_save_the_final_state():
    world = World()
    world.agent("host", 2)
    task = world.submit(2, external=False)
    a, b = world.start(task)
    world.sync(task)
    world.train(task, 12)
    for peer in (a, b):
        end(world, peer)
    world.exit(task, b.id, code=137, signal=9)
    assert world.new(TaskPlaced) == []
    world.sync(task)
    assert world.new(RecoveryChosen)


def test_spare_does_not_take_a_seat_in_the_final_save():
    world = World()
    world.agent("host", 3)
    task = world.submit(2, external=False, spares=1)
    a, b, _spare = world.start(task)
    world.sync(task)
    world.train(task, 12)
    end(world, a)
    b.lost()
    assert (task.members, len(task.waiting)) == ([a.id], 1)


def test_sharded_model_cannot_be_saved_without_the_lost_worker():
    world, task, (a, b) = running(model_state="sharded")
    end(world, a)
    assert world.new(TrainingEnded) == []
    b.lost()
    assert task.phase == "forming"


def test_training_ends_once_for_each_worker():
    world, task, (a, b) = running()
    end(world, a)
    assert task.ending == ["a"]
    end(world, a)
    assert world.new(TrainingEnded) == []
    end(world, b)
    assert task.ending == ["a", "b"]
    assert task.phase == "running", "nobody is missing, so the generation stays"


def test_worker_without_a_model_of_the_run_has_not_ended_its_training():
    world, task, (_a, b) = running(min_workers=1)
    b.lost()
    late = b.again()
    with pytest.raises(NotAllowedNow, match="holds no model"):
        end(world, late, 0)
    assert task.ending == []
