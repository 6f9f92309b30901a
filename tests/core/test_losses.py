"""Losses that are declared together: one change of generation for each task, no replacement on a
host that is lost as well, and the same outcome as if declared one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.generations.generation_members import GenerationChanged
from strata.core.invariants import broken
from strata.core.tasks.placement import StopTask
from strata.core.tasks.standing import affected
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.workers.declared_losses import DeclareLosses
from strata.core.workers.host_agents import AgentLost, DeclareAgentLost
from strata.core.workers.worker_lifecycle import DeclareLost, WorkerLost
from tests.core.world import World


def running(workers, agents, **spec):
    """A placed task that trains."""
    world = World()
    for agent, slots in agents.items():
        world.agent(agent, slots)
    task = world.submit(workers, external=False, **spec)
    world.start(task)
    world.sync(task)
    return world, task


def hosts(world, *agents):
    return [
        DeclareAgentLost(
            agent=agent, incarnation=world.state.agents[agent].incarnation, reason="no beat"
        )
        for agent in agents
    ]


def silent(world, *workers):
    return [
        DeclareLost(**world.peers[worker].me, signal="heartbeat", reason="no beat")
        for worker in workers
    ]


def on(task, agent):
    return [worker for worker, placement in task.placements.items() if placement.agent == agent]


def position(world, fact):
    return f"@{world.event(fact).seq}"


def test_workers_of_a_lost_host_leave_in_one_generation():
    world, task = running(8, {"a": 4, "b": 4}, min_workers=4)
    victims = on(task, "a")
    world.lose_agent("a")
    host, losses = world.one(AgentLost), world.new(WorkerLost)
    changed = world.one(GenerationChanged)
    assert sorted(loss.worker for loss in losses) == sorted(changed.left) == sorted(victims)
    assert {loss.signal for loss in losses} == {"agent"}
    assert all(world.event(loss).cause == (position(world, host),) for loss in losses)
    assert world.event(changed).cause == tuple(position(world, loss) for loss in losses)
    assert changed.reason == (
        f"4 workers were lost ({', '.join(victims[:3])} and 1 more): its host a is lost"
    )
    assert (task.phase, len(task.members)) == ("syncing", 4)


def test_hosts_and_workers_lost_at_the_same_time_are_one_change_for_each_task():
    agents = dict.fromkeys("abcd", 2)
    world, task = running(4, agents, min_workers=1)
    other = world.submit(4, external=False, min_workers=1)
    world.start(other)
    world.sync(other)
    gone = {task.placements[task.members[0]].agent, other.placements[other.members[0]].agent}
    quiet = next(w for w in task.members if task.placements[w].agent not in gone)
    world.do(DeclareLosses(agents=hosts(world, *sorted(gone)), workers=silent(world, quiet)))
    assert sorted(changed.task for changed in world.new(GenerationChanged)) == sorted(
        {world.state.workers[loss.worker].task for loss in world.new(WorkerLost)}
    )
    assert len(world.new(AgentLost)) == len(gone)
    assert quiet in {loss.worker for loss in world.new(WorkerLost)}
    assert broken(world.state) == []


def test_no_replacement_is_placed_on_a_host_that_is_lost_at_the_same_time():
    world, task = running(4, {"a": 2, "b": 2})
    world.agent("c", 4)
    world.do(DeclareLosses(agents=hosts(world, "a", "b")))
    assert {p.agent for p in world.one(TaskPlaced).placements.values()} == {"c"}
    assert {p.start for p in task.placements.values()} == {2}


def test_worker_that_is_silent_on_a_lost_host_is_lost_once_and_with_its_host():
    world, task = running(2, {"a": 2})
    victim = task.members[0]
    world.do(DeclareLosses(agents=hosts(world, "a"), workers=silent(world, victim)))
    (loss,) = [loss for loss in world.new(WorkerLost) if loss.worker == victim]
    assert (loss.signal, loss.reason) == ("agent", "its host a is lost")


def test_evidence_of_a_worker_that_is_lost_with_others_is_kept():
    world, task = running(3, {"a": 3}, min_workers=1)
    one, two = task.members[:2]
    evidence = {"silence_s": 31.0, "timeout_s": 30.0}
    declared = [
        DeclareLost(**world.peers[one].me, signal="heartbeat", reason="no beat", evidence=evidence),
        DeclareLost(**world.peers[two].me, signal="hang", reason="no step"),
    ]
    world.do(DeclareLosses(workers=declared))
    losses = world.new(WorkerLost)
    assert [(loss.signal, loss.evidence) for loss in losses] == [
        ("heartbeat", evidence),
        ("hang", {}),
    ]
    assert world.one(GenerationChanged).reason.endswith("no beat; no step")


def test_spare_that_is_lost_with_a_member_gets_no_rank():
    world, task = running(2, {"a": 4}, spares=2)
    lost, spare = task.waiting
    victim = task.members[1]
    world.do(DeclareLosses(workers=silent(world, victim, lost)))
    assert world.one(GenerationChanged).joined == [spare]
    assert victim not in task.members


@pytest.mark.parametrize(("lost", "state"), [(["member"], "failed"), (["spare"], "running")])
def test_policy_stop_ignores_lost_spares(lost, state):
    world, task = running(2, {"a": 3}, spares=1, policy="stop")
    names = {"member": task.members[1], "spare": task.waiting[0]}
    world.do(DeclareLosses(workers=silent(world, *(names[each] for each in lost))))
    assert task.state == state


def test_policy_stop_names_the_lost_workers():
    world, task = running(2, {"a": 2}, policy="stop")
    one, two = task.members
    world.do(DeclareLosses(workers=silent(world, one, two)))
    assert task.reason == (f"2 workers were lost ({one}, {two}) and the policy is stop: no beat")


def test_losses_of_ended_or_registered_workers_change_nothing():
    world, task = running(2, {"a": 2})
    gone = on(task, "a")
    stale = DeclareLosses(agents=hosts(world, "a"), workers=silent(world, *gone))
    world.do(stale)
    world.agent("a", 2)
    world.start(task)
    before = task.generation
    world.do(stale)
    assert (world.last, task.generation) == ([], before)


def test_task_that_stops_is_stopped_when_every_worker_is_lost_at_once():
    world, task = running(2, {"a": 2})
    world.do(StopTask(task=task.id))
    world.lose_agent("a")
    assert task.state == "stopped"


def test_turn_informs_each_affected_worker_once():
    world, task = running(3, {"a": 2, "b": 2}, spares=1)
    for worker in task.members[:2]:
        world.peers[worker].leave("done")
    world.lose_agent("b")
    whole = affected(world.state, world.log)
    each = [affected(world.state, [event]) for event in world.log]
    assert sorted(whole.workers) == sorted({worker for one in each for worker in one.workers})
    assert sorted(whole.agents) == sorted({agent for one in each for agent in one.agents})
    assert whole.workers
    assert whole.agents


SPECS = st.sampled_from(
    [{"policy": "replace"}, {"policy": "replace", "min_workers": 2}, {"policy": "continue"}]
)


@settings(max_examples=60, deadline=None)
@given(SPECS, st.sets(st.integers(0, 5), min_size=1), st.booleans())
def test_losses_declared_together_end_as_if_declared_one_by_one(spec, indices, spare_host):
    outcomes = []
    for together in (True, False):
        agents = {"a": 6, "b": 6} if spare_host else {"a": 6}
        world, task = running(6, agents, **spec)
        victims = [f"{task.id}-w{index}" for index in sorted(indices)]
        declared = silent(world, *victims)
        commands = [DeclareLosses(workers=declared)] if together else declared
        for command in commands:
            world.do(command)
        assert broken(world.state) == []
        placed = {worker: p.start for worker, p in task.placements.items()}
        outcomes.append((sorted(task.members), task.phase, task.state, placed, task.vacant))
    assert outcomes[0] == outcomes[1]


def in_doubt(world, *workers):
    """Losses by a broken connection, where the agent of the host is not heard either."""
    return [
        DeclareLost(
            **world.peers[worker].me,
            signal="connection",
            reason="its connection broke",
            host_in_doubt=True,
        )
        for worker in workers
    ]


def test_replacement_is_not_placed_on_a_host_that_is_in_doubt():
    world, task = running(2, {"a": 2})
    world.agent("b", 1)
    world.agent("c", 1)
    world.do(DeclareLosses(workers=in_doubt(world, *task.members)))
    placed = world.one(TaskPlaced)
    assert sorted(p.agent for p in placed.placements.values()) == ["b", "c"]
    assert "host a may be lost" in placed.reason


def test_replacement_is_placed_on_a_host_in_doubt_where_no_other_has_a_slot():
    """The host may only be cut off; if it is lost, its loss places the worker anew."""
    world, task = running(2, {"a": 2})
    world.do(DeclareLosses(workers=in_doubt(world, task.members[0])))
    assert {p.agent for p in world.one(TaskPlaced).placements.values()} == {"a"}


def test_other_workers_are_still_placed_where_they_were():
    world, task = running(4, {"a": 4, "b": 4}, min_workers=1)
    doubted, sound = on(task, "a")[0], on(task, "b")[0]
    world.do(DeclareLosses(workers=[*in_doubt(world, doubted), *silent(world, sound)]))
    placements = world.one(TaskPlaced).placements
    assert (placements[doubted].agent, placements[sound].agent) == ("b", "b")


def test_workers_without_a_slot_are_placed_when_slots_become_free():
    world, task = running(4, {"a": 4})
    world.lose_agent("a")
    for number, agent in enumerate("bcde", start=1):
        world.agent(agent, 1)
        assert [p.agent for p in world.one(TaskPlaced).placements.values()] == [agent]
        assert len(task.vacant) == 4 - number


def test_restart_loop_ends_a_task_also_when_no_slot_is_free():
    world, task = running(1, {"a": 1}, max_restarts=0)
    world.lose_agent("a")
    assert task.state == "failed"
    assert "restart loop" in task.reason
