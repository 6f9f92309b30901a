"""The reset of a task that starts again: what belongs to its training stays, its workers go."""

from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.invariants import broken
from strata.core.state import decode, encode
from strata.core.task_state import Task
from strata.core.tasks.task_reset import reset_for_start
from tests.core.test_replacement import running

STAY = (
    "id",
    "spec",
    "submitted_ns",
    "started_ns",
    "generation",
    "ran_generation",
    "attempt",
    "committed",
    "feeds",
    "loops",
    "agreements",
    "agreed",
    "last_round",
    "checkpoints",
    "last_checkpoint",
    "saved",
    "checkpoint_requests",
    "last_start",
)


def ended_run():
    """A task that trained ten steps, replaced a worker, saved, and completed."""
    world, task = running(2, {"a": 3})
    world.exit(task, task.members[1])
    world.start(task)
    world.sync(task)
    world.train(task, 10)
    world.save(task, 10)
    for peer in world.members(task):
        peer.leave("done", steps=10, save_failure="the disk was full")
    assert (task.state, task.exit_code) == ("completed", 94)
    return world, task


def reset(world, task) -> tuple[Task, Task]:
    """The task before and after a reset, in a copy of the state."""
    state = decode(encode(world.state))
    reset_for_start(state, state.tasks[task.id])
    assert broken(state) == []
    return task, state.tasks[task.id]


def test_reset_keeps_what_belongs_to_the_training():
    before, after = reset(*ended_run())
    for name in STAY:
        assert getattr(after, name) == getattr(before, name), name
    assert [checkpoint.step for checkpoint in committed_newest_first(after)] == [10]


def test_reset_removes_what_belongs_to_the_workers():
    _, after = reset(*ended_run())
    assert (after.members, after.waiting, after.finished, after.ending) == ([], [], [], [])
    assert (after.placements, after.vacant, after.exits) == ({}, [], {})
    assert (after.phase, after.recovery, after.entered) == ("forming", None, {})
    assert (after.finished_step, after.exit_code, after.ended_ns) == (-1, 0, 0)
    assert after.save_failure == ""


def test_reset_lets_finished_workers_be_started_again():
    world, task = ended_run()
    state = decode(encode(world.state))
    reset_for_start(state, state.tasks[task.id])
    assert [(worker.rank, worker.done) for worker in state.workers.values()] == [(-1, False)] * 2


def test_reset_drops_barriers_that_nobody_reaches_any_more():
    world, task = running(2)
    world.members(task)[0].arrive("meet")
    _, after = reset(world, task)
    assert after.barriers == {}


def test_ended_task_remembers_the_highest_start_of_its_workers():
    _, task = ended_run()
    assert task.last_start == 2
