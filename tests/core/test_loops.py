"""Loops: which steps of a run train which steps of a dataset, their ends, and rollbacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.barriers.agreements import LeaveLoop
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.training_loops import (
    LoopOpened,
    LoopRange,
    epoch_start,
    loop_ranges,
    trained_steps,
)
from strata.core.state import DatasetSpec
from strata.core.task_state import Loop
from strata.errors import Conflict, InvalidArgument
from tests.core.world import World

SPEC = DatasetSpec(total_samples=100, shard_size=10)


def world_of_two(batch=25):
    """A running task of two workers with the datasets `d` and `e`; and how to open a loop."""
    world = World()
    task = world.submit(2)
    world.join(task, "a", "b")
    world.sync(task)
    for name in ("d", "e"):
        world.do(RegisterDataset(dataset=name, spec=SPEC))

    def opened(loop, dataset="d", **asked):
        command = AttachDataset(
            task=task.id, dataset=dataset, unit="lane", global_batch=batch, loop=loop, **asked
        )
        world.do(command)
        return world.state.tasks[task.id].loops[loop]

    return world, task, opened


def test_loop_per_epoch_trains_every_epoch():
    _, _, opened = world_of_two()
    loops = [opened(f"0.{n}.0", loop_epochs=1, step=4 * n) for n in range(3)]
    assert [(each.start, each.first, each.steps) for each in loops] == [
        (0, 0, 4),
        (4, 4, 4),
        (8, 8, 4),
    ]


def test_epochs_that_do_not_divide_into_steps_lose_and_repeat_no_step():
    _, _, opened = world_of_two(batch=30)
    step, covered = 0, []
    for n in range(6):
        loop = opened(f"0.{n}.0", loop_epochs=1, step=step)
        covered += range(loop.first, loop.first + loop.steps)
        step += loop.steps
    assert covered == list(range(epoch_start(100, 30, 6, drop_tail=False)))


def test_second_dataset_begins_with_its_first_step_and_first_one_goes_on_later():
    _, _, opened = world_of_two()
    opened("0.-1.0", "d", loop_epochs=1, step=0)
    assert opened("0.-1.1", "e", steps=5, step=4).first == 0
    again = opened("0.-1.2", "d", steps=10, step=9)
    assert (again.start, again.first) == (9, 4)


def test_loop_that_was_left_early_ends_where_the_next_begins():
    _, _, opened = world_of_two()
    opened("0.-1.0", "d", step=0)
    opened("0.-1.1", "e", step=7)
    again = opened("0.-1.2", "d", step=9)
    assert again.first == 7
    assert opened("0.-1.3", "d", loop_epochs=1, step=9).first == 8, "the next epoch's first step"


def test_worker_that_resumes_in_the_middle_gets_the_same_loop():
    world, _, opened = world_of_two()
    begun = opened("0.0.0", loop_epochs=2, step=0)
    assert opened("0.0.0", loop_epochs=2, step=5) == begun
    assert len(world.facts(LoopOpened)) == 1


def test_workers_that_enter_a_loop_at_different_steps_are_refused():
    _, _, opened = world_of_two()
    opened("0.-1.0", step=0, entering=True)
    opened("0.-1.1", step=30, entering=True)
    with pytest.raises(Conflict, match="at step 31, another worker entered at step 30"):
        opened("0.-1.1", step=31, entering=True)


def test_another_dataset_in_the_same_loop_is_refused():
    _, _, opened = world_of_two()
    opened("0.-1.0", "d", step=0)
    with pytest.raises(InvalidArgument, match="trains on 'd', not on 'e'"):
        opened("0.-1.0", "e", step=0)


def test_rollback_forgets_the_loops_that_begin_later():
    world, task, opened = world_of_two()
    opened("0.0.0", loop_epochs=1, step=0)
    world.train(task, 3)
    world.save(task, 3)
    world.train(task, 4)
    opened("0.1.0", loop_epochs=1, step=4)
    world.train(task, 6)
    assert world.state.tasks[task.id].feeds["d"].epoch == 1
    for worker in ("a", "b"):
        world.peers[worker].lost()
    world.join(task, "c", "d2")
    world.sync(task)
    running = world.state.tasks[task.id]
    assert (running.committed, list(running.loops)) == (3, ["0.0.0"])
    assert running.feeds["d"].epoch == 0
    assert opened("0.1.0", loop_epochs=1, step=4).first == 4


def test_dataset_attached_without_a_loop_is_trained_from_step_0():
    assert trained_steps({}, "d", 7) == 7
    assert list(loop_ranges({}, "d", 7)) == [LoopRange(start=0, stop=7, first=0)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("de"), st.integers(0, 20), st.one_of(st.none(), st.integers(0, 9))
        )
    )
)
def test_each_step_of_a_dataset_is_trained_by_one_step_of_the_run(opens):
    loops, step = {}, 0
    for n, (dataset, gap, steps) in enumerate(opens):
        first = trained_steps(loops, dataset, step) if loops else 0
        loops[str(n)] = Loop(dataset=dataset, start=step, first=first, steps=steps)
        step += min(gap, steps if steps is not None else gap)
    committed = step + 5
    for dataset in "de" if loops else "":
        trained = [
            each + loop_range.shift
            for loop_range in loop_ranges(loops, dataset, committed)
            for each in range(loop_range.start, loop_range.stop)
        ]
        assert len(trained) == len(set(trained)) or _opened_twice_at_once(loops, dataset)


def _opened_twice_at_once(loops, dataset):
    """Two loops over one dataset side by side train its steps twice, as the script asks."""
    starts = [loop.start for loop in loops.values() if loop.dataset == dataset]
    return len(starts) != len(set(starts))


def test_loop_that_was_left_before_its_first_step_trained_nothing():
    world, task, opened = world_of_two()
    opened("0.-1.0", "d", step=0)
    (first, _) = world.members(task)
    world.do(LeaveLoop(**first.me, loop="0.-1.0", step=0))
    assert opened("0.-1.1", "e", steps=3, step=0).first == 0
    assert opened("0.-1.2", "d", step=3).first == 0
