"""Excluded hosts: nothing is placed there; failures, GPU faults and people exclude a host. A script
that fails by itself excludes none."""

import pytest

from strata.core.hosts.host_exclusion import (
    ExcludeHost,
    FailureAttributed,
    HostExcluded,
    HostIncluded,
    IncludeHost,
    ReportSelfTest,
)
from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import ReportHost
from strata.core.rule_settings import Rules
from strata.core.tasks.placement import StopTask
from strata.core.tasks.task_queue import Queue
from strata.errors import InvalidArgument, NotFound
from tests.core.world import World


def world_of(*hosts, slots=4, **rules):
    world = World(Rules(**rules))
    for host in hosts:
        world.agent(host, slots=slots)
    return world


def hosts_of(task):
    return [placement.agent for placement in task.placements.values()]


def submitted(world, entry="train.py", workers=1, **spec):
    return world.submit(workers, external=False, entry=entry, **spec)


def fail_on(world, host, entry, code=1, signal=0):
    """A new task of a script runs on one host, fails there once, and is stopped."""
    others = [each for each in world.state.agents if each != host]
    for other in others:
        world.do(ExcludeHost(host=other, reason="so that the task runs elsewhere"))
    task = submitted(world, entry)
    [worker] = task.placements
    world.start(task)
    for other in others:
        world.do(IncludeHost(host=other))
    world.exit(task, worker, code=code, signal=signal)
    failed = world.last
    world.do(StopTask(task=task.id))
    return failed


def test_excluded_host_gets_no_worker_until_it_is_included():
    world = world_of("a", "b")
    world.do(ExcludeHost(host="a", reason="its fan is loud"))
    task = submitted(world, workers=4)
    assert set(hosts_of(task)) == {"b"}
    waiting = submitted(world, workers=2)
    assert waiting.state == "queued"
    why = Queue(world.state).waiting_for(waiting)
    assert "0 of 4 are free; excluded is host a: its fan is loud" in why
    world.do(IncludeHost(host="a", reason="repaired"))
    assert set(hosts_of(waiting)) == {"a"}
    assert world.one(HostIncluded).reason == "repaired"


def test_workers_on_an_excluded_host_go_on_and_are_replaced_elsewhere():
    world = world_of("a", slots=2)
    task = submitted(world, workers=2)
    world.start(task)
    world.agent("b", slots=2)
    world.do(ExcludeHost(host="a", reason="maintenance"))
    assert hosts_of(task) == ["a", "a"]
    first = task.members[0]
    world.exit(task, first, signal=9)
    assert task.placements[first].agent == "b"


def test_exclusion_needs_a_reason_and_a_known_host():
    world = world_of("a")
    with pytest.raises(InvalidArgument):
        world.do(ExcludeHost(host="a", reason=" "))
    with pytest.raises(NotFound):
        world.do(ExcludeHost(host="nowhere", reason="gone"))
    world.do(ExcludeHost(host="a", reason="first"))
    world.do(ExcludeHost(host="a", reason="second"))
    assert world.state.hosts["a"].excluded == "first"
    assert [fact.by for fact in world.facts(HostExcluded)] == ["person"]


def test_host_on_which_different_tasks_of_one_script_fail_is_excluded():
    world = world_of("a", "b")
    for _ in range(3):
        assert not world.state.hosts.get("a") or not world.state.hosts["a"].excluded
        fail_on(world, "a", "train.py")
    assert world.state.hosts["a"].excluded


def test_host_on_which_tasks_of_different_scripts_fail_is_excluded():
    world = world_of("a", "b")
    fail_on(world, "a", "one.py")
    fail_on(world, "a", "two.py", signal=9)
    assert not world.state.hosts["a"].excluded
    failed = fail_on(world, "a", "three.py")
    [excluded] = [fact for fact in failed if isinstance(fact, HostExcluded)]
    assert (excluded.host, excluded.by) == ("a", "failures")
    assert "3 different tasks failed here, and their scripts on no other host" in excluded.reason
    task = submitted(world, "four.py", workers=4)
    assert set(hosts_of(task)) == {"b"}


def test_task_that_fails_again_and_again_counts_once():
    world = world_of("a", "b")
    task = submitted(world, "broken.py", max_restarts=5)
    for _ in range(5):
        [worker] = task.placements
        world.start(task)
        world.exit(task, worker)
    assert len(world.facts(FailureAttributed)) == 5
    assert world.facts(HostExcluded) == []


def test_scripts_that_fail_on_every_host_exclude_none():
    world = world_of("a", "b", exclude_after_tasks=2)
    for entry in ("one.py", "two.py", "three.py"):
        task = submitted(world, entry, workers=8)
        world.start(task)
        for host in ("a", "b"):
            worker = next(name for name, p in task.placements.items() if p.agent == host)
            world.exit(task, worker)
            world.start(task)
        world.do(StopTask(task=task.id))
        for worker in list(task.placements):
            world.exit(task, worker, code=0)
    assert not [fact for fact in world.facts(HostExcluded) if fact.by == "failures"]
    blamed = {(fact.script, fact.host) for fact in world.facts(FailureAttributed)}
    assert {("one.py", "a"), ("one.py", "b")} <= blamed


def test_last_usable_host_is_not_excluded_after_failures():
    world = world_of("a")
    for entry in ("one.py", "two.py", "three.py", "four.py"):
        fail_on(world, "a", entry)
    assert not world.state.hosts["a"].excluded


def test_self_test_that_fails_everywhere_leaves_one_host():
    world = world_of("a", "b")
    for host in ("a", "b"):
        incarnation = world.state.agents[host].incarnation
        reason = "disk: 16 MB cannot be written"
        world.do(ReportSelfTest(agent=host, incarnation=incarnation, task="t", reason=reason))
    [excluded] = world.facts(HostExcluded)
    assert (excluded.host, excluded.by) == ("a", "self-test")


def test_failure_that_takes_other_workers_with_it_counts_for_the_first_host():
    world = world_of("a", "b")
    task = submitted(world, workers=8)
    world.start(task)
    generation = task.generation
    first = next(name for name, p in task.placements.items() if p.agent == "b")
    world.exit(task, first, signal=11)
    [fact] = world.facts(FailureAttributed)
    assert (fact.host, fact.worker, fact.generation) == ("b", first, generation)


@pytest.mark.parametrize("signal", [2, 15])
def test_process_that_was_told_to_end_does_not_count(signal):
    world = world_of("a", "b")
    task = submitted(world)
    world.start(task)
    world.exit(task, next(iter(task.placements)), signal=signal)
    assert world.facts(FailureAttributed) == []


def test_failures_outside_the_window_do_not_count():
    world = world_of("a", "b", exclude_window_s=5.0)
    for entry in ("one.py", "two.py", "three.py"):
        fail_on(world, "a", entry)
        for _ in range(5):  # each decision takes one second
            world.do(IncludeHost(host="b"))
    assert not world.state.hosts["a"].excluded


def report(world, host="a", **gpu):
    measured(world, GpuHealth(index=3, **gpu), host=host)


def measured(world, *gpus, host="a"):
    health = HostHealth(gpus=list(gpus))
    incarnation = world.state.agents[host].incarnation
    world.do(ReportHost(agent=host, incarnation=incarnation, health=health))


@pytest.mark.parametrize(
    ("before", "fault", "why"),
    [
        ({"ecc_uncorrected": 0}, {"ecc_uncorrected": 1}, "GPU 3: 1 uncorrected ECC errors"),
        ({"xid_errors": 0}, {"xid_errors": 1, "last_xid": 79}, "GPU 3: Xid 79, GPU has fallen off"),
        ({}, {"lost": True}, "GPU 3: it does not answer its driver any more"),
    ],
)
def test_fault_of_a_gpu_excludes_its_host_once(before, fault, why):
    world = world_of("a", "b")
    report(world, **before)
    assert not world.state.hosts["a"].excluded
    report(world, **fault)
    assert world.state.hosts["a"].excluded.startswith(why)
    assert world.state.hosts["a"].excluded_by == "fault"
    world.do(IncludeHost(host="a"))
    report(world, **fault)
    assert not world.state.hosts["a"].excluded, "the same fault was known when it was included"


def test_agent_that_is_restarted_with_fewer_visible_gpus_is_not_excluded():
    world = world_of("b")
    world.agent("a", slots=2, nonce="the same agent")
    measured(world, GpuHealth(index=0), GpuHealth(index=1))
    world.agent("a", slots=1, nonce="the same agent")
    measured(world, GpuHealth(index=0))
    assert not world.state.hosts["a"].excluded


def test_gpu_that_another_reporter_listed_is_no_fault():
    world = world_of("a", "b")
    measured(world, GpuHealth(index=0), GpuHealth(index=1))
    world.state.hosts["a"].reporter = "worker"
    measured(world, GpuHealth(index=0))
    assert not world.state.hosts["a"].excluded


@pytest.mark.parametrize(
    "harmless",
    [{"xid_errors": 1, "last_xid": 31}, {"ecc_corrected": 9}, {"throttle_reasons": "hw_thermal"}],
)
def test_errors_of_programs_and_corrected_errors_exclude_no_host(harmless):
    world = world_of("a", "b")
    report(world)
    report(world, **harmless)
    assert not world.state.hosts["a"].excluded


def test_exclusion_by_rule_can_be_turned_off():
    world = world_of("a", "b", exclude_after_tasks=0, exclude_on_gpu_faults=False)
    report(world, lost=True)
    for entry in ("one.py", "two.py", "three.py"):
        fail_on(world, "a", entry)
    assert not world.state.hosts["a"].excluded


def test_errors_counted_before_the_first_measurement_exclude_no_host():
    world = world_of("a", "b")
    report(world, ecc_uncorrected=3)
    assert not world.state.hosts["a"].excluded
    report(world, ecc_uncorrected=4)
    assert world.state.hosts["a"].excluded
