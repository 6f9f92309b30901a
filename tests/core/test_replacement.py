"""Replacement of lost processes: on the same host, on another, or later; and the end of a restart
loop."""

from contextlib import suppress

import pytest

from strata.core.tasks.placement import StopTask
from strata.core.tasks.restart_limit import ENOUGH_STEPS
from strata.core.tasks.task_lifecycle import RESTART_LOOP_EXIT_CODE, TaskPlaced
from strata.core.workers.host_agents import UNKNOWN_CODE, ReportExit, WorkerExited
from strata.core.workers.worker_lifecycle import DeregisterWorker, WorkerLost
from strata.errors import Fenced, NotFound
from tests.core.world import World


def running(workers=2, agents=None, **spec):
    """A placed task that trains."""
    world = World()
    for agent, slots in (agents or {"a": workers}).items():
        world.agent(agent, slots)
    task = world.submit(workers, external=False, **spec)
    world.start(task)
    world.sync(task)
    return world, task


def back_to_work(world, task):
    """Start the replacements and let the generation train."""
    world.start(task)
    world.sync(task)


def test_process_that_ended_is_a_lost_worker_with_its_exit_code():
    world, task = running()
    victim = task.members[1]
    world.exit(task, victim, code=137, signal=9)
    exited = world.one(WorkerExited)
    assert (exited.worker, exited.code, exited.signal, exited.start) == (victim, 137, 9, 1)
    lost = world.one(WorkerLost)
    assert (lost.signal, lost.reason) == ("exit", "its process ended with signal 9")
    assert world.event(lost).cause == (f"@{world.event(exited).seq}",)


def test_it_is_started_again_where_it_was():
    world, task = running(2, {"a": 1, "b": 2})
    victim = next(w for w, p in task.placements.items() if p.agent == "a")
    world.exit(task, victim)
    (placement,) = world.one(TaskPlaced).placements.values()
    assert (placement.agent, placement.start) == ("a", 2)
    back_to_work(world, task)
    assert task.state == "running"


def test_it_is_started_elsewhere_when_its_host_is_gone():
    world, _task = running(1, {"a": 1})
    world.agent("b", 1)
    world.lose_agent("a")
    (placement,) = world.one(TaskPlaced).placements.values()
    assert (placement.agent, placement.start) == ("b", 2)


def test_it_is_started_later_when_no_slot_is_free():
    world, task = running(2, {"a": 2})
    world.lose_agent("a")
    assert world.new(TaskPlaced) == []
    assert task.state == "recovering"
    world.agent("b", 1)
    assert len(world.one(TaskPlaced).placements) == 1
    world.agent("c", 1)
    assert len(world.one(TaskPlaced).placements) == 1
    back_to_work(world, task)
    assert (task.state, len(task.members)) == ("running", 2)


def test_replacements_are_placed_before_queued_tasks():
    world, task = running(1, {"a": 1})
    queued = world.submit(1, external=False)
    world.lose_agent("a")
    world.agent("b", 1)
    assert (task.placements[next(iter(task.placements))].agent, queued.state) == ("b", "queued")


def test_process_that_ends_before_it_joins_is_started_again():
    world = World()
    world.agent("a", 1)
    task = world.submit(1, external=False)
    (worker,) = task.placements
    world.exit(task, worker, code=2)
    assert task.placements[worker].start == 2
    assert world.new(WorkerLost) == []
    back_to_work(world, task)
    assert task.state == "running"


def test_process_that_ends_well_without_joining_is_not_started_again():
    world = World()
    world.agent("a", 1)
    task = world.submit(1, external=False)
    (worker,) = task.placements
    world.exit(task, worker, code=0)
    assert (task.state, task.exit_code) == ("failed", 1)
    assert "never joined" in task.reason
    assert world.new(TaskPlaced) == []


def test_unknown_exit_code_is_named_in_the_reason():
    world, task = running(1)
    world.exit(task, task.members[0], code=UNKNOWN_CODE)
    assert "unknown exit code" in world.one(WorkerLost).reason


def test_host_lost_before_its_processes_joined_is_made_up_for():
    world = World()
    world.agent("a", 2)
    task = world.submit(2, external=False)
    world.lose_agent("a")
    world.agent("b", 2)
    assert {p.agent for p in task.placements.values()} == {"b"}
    back_to_work(world, task)
    assert task.state == "running"


def test_news_of_an_earlier_start_changes_nothing():
    world, task = running(1)
    (worker,) = task.members
    agent = world.state.agents["a"]
    news = ReportExit(
        agent="a", incarnation=agent.incarnation, task=task.id, worker=worker, start=1, code=1
    )
    world.do(news)
    back_to_work(world, task)
    world.do(news)
    assert world.new(WorkerLost) == []
    assert world.peers[worker].worker.alive


def test_how_a_process_ended_is_kept_even_if_its_connection_broke_first():
    """The agent's report nearly always comes a moment after the broken connection."""
    world, task = running(1)
    (worker,) = task.members
    agent, start = world.state.agents["a"], task.placements[worker].start
    world.peers[worker].lost("connection", "it broke")
    report = ReportExit(
        agent="a",
        incarnation=agent.incarnation,
        task=task.id,
        worker=worker,
        start=start,
        code=-1,
        signal=11,
    )
    world.do(report)
    assert world.one(WorkerExited).signal == 11
    assert world.new(TaskPlaced) == []


def test_old_incarnation_of_an_agent_is_refused():
    world, task = running(1)
    (worker,) = task.members
    with pytest.raises(Fenced, match="'a'"):
        world.do(
            ReportExit(agent="a", incarnation=99, task=task.id, worker=worker, start=1, code=1)
        )
    agent = world.state.agents["a"].incarnation
    with pytest.raises(NotFound):
        world.do(
            ReportExit(agent="a", incarnation=agent, task="none", worker=worker, start=1, code=1)
        )
    assert world.peers[worker].worker.alive


def test_agent_reports_only_its_own_processes():
    world, task = running(1, {"a": 1})
    other = world.agent("b", 1)
    (worker,) = task.members
    report = ReportExit(
        agent="b", incarnation=other.incarnation, task=task.id, worker=worker, start=1, code=1
    )
    with suppress(Fenced):
        world.do(report)
    assert world.peers[worker].worker.alive


def test_old_start_cannot_replace_its_replacement():
    world, task = running(1)
    (worker,) = task.members
    world.peers[worker].lost()
    assert task.placements[worker].start == 2
    with pytest.raises(Fenced, match="start 1"):
        world.register(worker, task=task.id, start=1)
    assert world.register(worker, task=task.id, start=2).worker.alive


def test_restart_loop_ends_the_task_with_its_own_exit_code():
    world, task = running(1, max_restarts=3)
    (worker,) = task.members
    for _ in range(3):
        world.exit(task, worker)
        back_to_work(world, task)
    world.exit(task, worker)
    assert (task.state, task.exit_code) == ("failed", RESTART_LOOP_EXIT_CODE) == ("failed", 93)
    assert "restart loop" in task.reason
    assert worker in task.reason


def test_loop_of_processes_that_never_join_is_a_restart_loop_too():
    world = World()
    world.agent("a", 1)
    task = world.submit(1, external=False, max_restarts=2)
    (worker,) = task.placements
    for _ in range(3):
        world.exit(task, worker)
    assert (task.state, task.exit_code) == ("failed", 93)


def test_progress_between_losses_is_not_a_restart_loop():
    world, task = running(1, max_restarts=1)
    (worker,) = task.members
    for step in range(ENOUGH_STEPS, 8 * ENOUGH_STEPS, ENOUGH_STEPS):
        world.train(task, step)
        world.save(task, step)
        world.exit(task, worker)
        back_to_work(world, task)
    assert task.state == "running"


def crash_again_and_again(world, task, worker, crashes, how, step=1):
    """The worker takes part in `step` steps, then fails; repeatedly, or until the task ends."""
    for crash in range(crashes):
        world.train(task, task.committed + step)
        world.save(task, task.committed)
        how(crash)
        if task.ended:
            return
        back_to_work(world, task)


def test_crash_loop_that_gains_one_step_each_time_ends():
    world, task = running(1, max_restarts=3)
    (worker,) = task.members
    crash_again_and_again(world, task, worker, 9, lambda _: world.exit(task, worker))
    assert (task.state, task.exit_code, task.committed) == ("failed", 93, 4)
    assert "4 times in the same way" in task.reason
    assert "exit code 1" in task.reason


def test_reported_errors_are_one_cause_whatever_their_text():
    world, task = running(1, max_restarts=3)
    (worker,) = task.members

    def fail(crash):
        reason = f"ValueError: sample {crash} is bad"
        world.do(DeregisterWorker(**world.peers[worker].me, outcome="failed", reason=reason))

    crash_again_and_again(world, task, worker, 9, fail)
    assert (task.state, task.exit_code, task.committed) == ("failed", 93, 4)
    assert "4 times in the same way (error)" in task.reason


def test_failures_of_different_causes_with_some_progress_are_counted_apart():
    world, task = running(1, max_restarts=3)
    (worker,) = task.members
    ends = [
        lambda: world.exit(task, worker, code=1),
        lambda: world.exit(task, worker, code=2),
        lambda: world.exit(task, worker, signal=9),
        lambda: world.peers[worker].lost("heartbeat"),
    ]
    crash_again_and_again(world, task, worker, 4, lambda crash: ends[crash]())
    assert task.state == "running"


def test_steps_of_the_survivors_do_not_reset_the_count_of_a_worker():
    world, task = running(2, min_workers=1, max_restarts=2)
    bad = task.members[1]
    starts = set()
    for _ in range(6):
        world.exit(task, bad)
        starts.add(task.placements[bad].start)
        world.sync(task)
        world.train(task, task.committed + 1_000)
        if bad not in task.vacant:
            back_to_work(world, task)
    assert starts == {2, 3}, "its seat stays empty and the other trains on"
    assert (task.state, len(task.members)) == ("running", 1)


def test_steps_that_a_rollback_repeats_are_no_progress():
    world, task = running(1, max_restarts=3)
    (worker,) = task.members
    world.train(task, 20)
    world.save(task, 20)
    crashes = 0
    while not task.ended:
        world.train(task, 20 + 5 * ENOUGH_STEPS)
        world.exit(task, worker)
        crashes += 1
        if not task.ended:
            back_to_work(world, task)
            assert task.committed == 20
    assert (crashes, task.exit_code) == (4, 93)
    assert "without progress" in task.reason


def test_slots_of_a_restart_loop_go_to_the_next_task():
    world = World()
    world.agent("a", 1)
    looping = world.submit(1, external=False, max_restarts=0)
    waiting = world.submit(1, external=False)
    world.exit(looping, next(iter(looping.placements)))
    assert (looping.state, waiting.state) == ("failed", "starting")


def test_host_that_dies_with_many_workers_is_one_loss_for_each():
    world, task = running(4, {"a": 4}, max_restarts=1)
    world.agent("b", 4)
    world.lose_agent("a")
    assert task.state == "recovering"
    back_to_work(world, task)
    assert (task.state, len(task.members)) == ("running", 4)


def test_many_processes_that_die_at_once_are_not_a_loop():
    world, task = running(4, {"a": 4}, max_restarts=1)
    for worker in list(task.members):
        world.exit(task, worker)
    assert task.state == "recovering"
    back_to_work(world, task)
    assert task.state == "running"


def test_policy_continue_does_not_replace_unneeded_workers():
    world, task = running(3, policy="continue", min_workers=2)
    world.exit(task, task.members[2])
    assert world.new(TaskPlaced) == []
    world.sync(task)
    assert len(task.members) == 2


def test_continue_does_not_hang_below_the_least_it_can_do_with():
    world, task = running(2, policy="continue", min_workers=2)
    world.exit(task, task.members[1])
    assert task.ended or world.new(TaskPlaced)


def test_rest_train_on_while_a_lost_worker_is_replaced():
    world, task = running(3, min_workers=2)
    lost = task.members[2]
    world.exit(task, lost)
    assert list(world.one(TaskPlaced).placements) == [lost]
    world.sync(task)
    assert (task.phase, len(task.members)) == ("running", 2)
    back_to_work(world, task)
    assert (task.state, len(task.members)) == ("running", 3)


def test_task_trains_on_without_a_replacement_that_never_starts():
    world, task = running(3, min_workers=2, max_restarts=2)
    broken = task.members[2]
    starts = []
    while not starts or task.placements[broken].start > starts[-1]:
        starts.append(task.placements[broken].start)
        world.exit(task, broken)
        world.sync(task)
        world.train(task, 10 * len(starts))
    assert (task.state, len(task.members)) == ("running", 2)
    assert len(starts) == 3


def test_worker_that_finished_is_not_started_again():
    world, task = running(2)
    finished = task.members[0]
    world.peers[finished].leave("done")
    world.exit(task, finished, code=0)
    world.agent("b", 2)
    assert world.new(TaskPlaced) == []


def test_host_lost_after_its_worker_finished_starts_nothing_again():
    world, task = running(2, {"a": 1, "b": 1})
    finished = next(w for w, p in task.placements.items() if p.agent == "a")
    world.peers[finished].leave("done")
    world.agent("c", 2)
    world.lose_agent("a")
    assert world.new(TaskPlaced) == []


def test_nothing_is_started_for_a_task_that_is_stopping():
    world, task = running(3)
    world.do(StopTask(task=task.id))
    world.exit(task, task.members[0])
    world.agent("b", 2)
    assert world.new(TaskPlaced) == []
    assert task.state == "stopping"
