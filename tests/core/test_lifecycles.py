"""Life cycle tables: every state can be reached, and every move can happen.

That every move which happens is in its table is checked after each decision, in world.py.
"""

from itertools import product

import pytest

from strata.core.checkpoints.checkpoint_commits import FailCheckpoint
from strata.core.checkpoints.checkpoint_retention import DeleteCheckpoint
from strata.core.cluster import LIFECYCLES
from strata.core.lifecycle import Lifecycle
from strata.core.state import REPORTED
from strata.core.tasks.continuation import ContinueTask
from strata.core.tasks.placement import StopTask
from strata.core.workers.worker_lifecycle import ReportState
from strata.errors import NotAllowedNow
from tests.core.world import TABLES, World

DOOR = Lifecycle("door", "open", (("open", "shut", "pushed"), ("shut", "locked", "key turned")))


def drawn(name):
    """The moves that a table allows, as a world notes them."""
    table = TABLES[name]
    pairs = product(table.states(), repeat=2)
    return {(name, before, after) for before, after in pairs if table.allows(before, after)}


def seen(world, name):
    return {move for move in world.moves if move[0] == name}


def test_table_allows_its_moves_and_no_other():
    assert DOOR.allows("open", "shut")
    assert not DOOR.allows("shut", "open")
    assert DOOR.ends() == {"locked"}
    DOOR.require("front", "open", "shut")


def test_move_that_is_not_in_the_table_is_refused_with_what_is():
    with pytest.raises(NotAllowedNow, match="door front is open and cannot become locked") as no:
        DOOR.require("front", "open", "locked")
    assert "shut" in no.value.hint
    with pytest.raises(NotAllowedNow) as no:
        DOOR.require("front", "locked", "open")
    assert "it has ended" in no.value.hint


def test_table_is_drawn_with_its_beginning_and_its_ends():
    assert DOOR.diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> open",
        "    open --> shut: pushed",
        "    shut --> locked: key turned",
        "    locked --> [*]",
    ]


@pytest.mark.parametrize("table", LIFECYCLES, ids=lambda table: table.name)
def test_every_state_can_be_reached_and_no_move_is_listed_twice(table):
    moves = [(before, after) for before, after, _ in table.moves]
    assert len(set(moves)) == len(moves)
    reached = {table.initial}
    for _ in table.states():
        reached |= {
            after for after in table.states() for before in reached if table.allows(before, after)
        }
    assert reached == table.states()


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("worker", set()),
        ("task", {"completed", "failed", "stopped"}),
        ("barrier", {"released", "failed"}),
        ("checkpoint", {"failed", "deleted"}),
    ],
)
def test_life_cycles_have_the_right_final_states(name, ends):
    assert TABLES[name].ends() == ends


def test_every_move_of_a_worker_can_happen():
    world = World()
    (peer,) = world.join(world.submit(1), "a")
    for before in REPORTED:
        for after in REPORTED:
            world.do(ReportState(**peer.me, state=before))
            world.do(ReportState(**peer.me, state=after))
        for end in (peer.lost, peer.leave):
            (peer,) = world.join(world.submit(1), "a") if not peer.worker.alive else (peer,)
            world.do(ReportState(**peer.me, state=before))
            peer.lost() if end == peer.lost else peer.leave()
        (peer,) = world.join(world.submit(1), "a")
    assert seen(world, "worker") == drawn("worker")


def test_every_move_of_a_barrier_can_happen():
    world = World()
    task = world.submit(2)
    a, b = world.join(task, "a", "b")
    a.arrive("x")
    b.arrive("x")
    a.arrive("y")
    b.lost()
    assert seen(world, "barrier") == drawn("barrier")


def test_every_move_of_a_checkpoint_can_happen():
    world = World()
    task = world.submit(1)
    (a,) = world.join(task, "a")
    world.sync(task)
    deleted, damaged = world.save(task, 1), world.save(task, 2)
    world.save(task, 3)
    world.do(DeleteCheckpoint(task=task.id, checkpoint=deleted.id))
    a.ack(a.begin(4, manifest=False))
    for failed in (damaged, a.begin(5), world.seal(task, 6)):
        command = FailCheckpoint(task=task.id, checkpoint=failed.id, reason="no", damaged=True)
        world.do(command)
    assert seen(world, "checkpoint") == drawn("checkpoint")


def begun(world, workers=1, sync=True, **spec):
    task = world.submit(workers, **spec)
    peers = world.join(task, *(f"{task.id}-{index}" for index in range(workers)))
    if sync:
        world.sync(task)
    return task, *peers


def preempt_two(world):
    """Two tasks are preempted: one stops, and the other one finishes before it is stopped."""
    world.agent("a", 2)
    tasks = [world.submit(1, external=False, preemptible=True) for _ in range(2)]
    for task in tasks:
        world.start(task)
        world.sync(task)
    world.submit(2, external=False, priority=1)
    for task, outcome in zip(tasks, ("stopped", "done"), strict=True):
        world.members(task)[0].leave(outcome)


def test_every_move_of_a_task_can_happen():
    world = World()
    stop = lambda task: world.do(StopTask(task=task.id))  # noqa: E731 - a verb of this test
    stop(world.submit(1, external=False))
    task, a = begun(world)
    a.leave("done")
    task, a = begun(world, sync=False)
    stop(task)
    a.leave("stopped")
    task, a = begun(world)
    stop(task)
    a.lost()
    begun(world, sync=False, policy="stop")[1].lost()
    begun(world, policy="stop")[1].lost()
    begun(world, sync=False, syncs=False, policy="stop")[1].lost()
    task, a, b = begun(world, 2, policy="continue")
    b.lost()
    world.sync(task)
    b.again()
    stop(task)
    task, a, b = begun(world, 2)
    a.leave("done")
    b.lost()
    world.register("shared", world_size=2).leave("done")
    preempt_two(world)
    for end in ("completed", "failed", "stopped"):
        ended = [each for each in world.state.tasks.values() if each.state == end]
        world.do(ContinueTask(task=ended[0].id))
    assert seen(world, "task") == drawn("task")
