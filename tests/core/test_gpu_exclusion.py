"""Excluded GPUs: no worker gets one, its host is used with its other slots, and faults, failed
self-tests and failures are attributed to a GPU where that is possible."""

import pytest

from strata.core.hosts.gpu_exclusion import (
    ExcludeGpu,
    GpuExcluded,
    GpuIncluded,
    IncludeGpu,
    excluded_keys,
)
from strata.core.hosts.host_exclusion import FailureAttributed, HostExcluded, ReportSelfTest
from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import ReportHost
from strata.core.rule_settings import Rules
from strata.core.state import Gpu
from strata.core.tasks.placement import StopTask
from strata.core.tasks.resizing import ResizeTask
from strata.core.tasks.standing import affected
from strata.core.tasks.task_queue import Queue
from strata.core.workers.host_agents import AgentGpusChanged, RegisterAgent, ReportExit
from strata.errors import InvalidArgument, NotFound
from tests.core.world import World


def gpus_of(host, slots=4, each=1):
    return [
        [Gpu(slot * each + number, f"{host}-{slot * each + number}") for number in range(each)]
        for slot in range(slots)
    ]


def world_of(*hosts, slots=4, each=1, **rules):
    world = World(Rules(**rules))
    for host in hosts:
        world.do(RegisterAgent(agent=host, slots=slots, gpus=gpus_of(host, slots, each)))
    return world


def hosts_of(task):
    return [placement.agent for placement in task.placements.values()]


def submitted(world, entry="train.py", workers=1, **spec):
    return world.submit(workers, external=False, entry=entry, **spec)


def exclude(world, gpu, host="a"):
    world.do(ExcludeGpu(host=host, gpu=gpu, reason="it is replaced"))


def test_slot_of_an_excluded_gpu_is_not_used_until_it_is_included():
    world = world_of("a")
    exclude(world, "3")
    assert world.one(GpuExcluded).uuid == "a-3"
    assert affected(world.state, world.log[-1:]).agents == ["a"]
    assert excluded_keys(world.state, "a") == ["a-3"]
    first, waiting = submitted(world, workers=3), submitted(world)
    assert (len(first.placements), waiting.state) == (3, "queued")
    why = Queue(world.state).waiting_for(waiting)
    assert "0 of 3 are free; excluded is GPU 3 of host a: it is replaced" in why
    world.do(IncludeGpu(host="a", gpu="a-3", reason="repaired"))
    assert hosts_of(waiting) == ["a"]
    assert world.one(GpuIncluded).gpu == 3


def test_slot_with_one_excluded_gpu_of_several_is_not_used():
    world = world_of("a", slots=2, each=2)
    exclude(world, "a-1")
    assert len(submitted(world).placements) == 1
    assert submitted(world).state == "queued"


def test_host_whose_gpus_are_all_excluded_takes_no_workers():
    world = world_of("a", slots=2)
    exclude(world, "0")
    exclude(world, "1")
    world.do(RegisterAgent(agent="b", slots=2, gpus=gpus_of("b", 2)))
    assert set(hosts_of(submitted(world, workers=2))) == {"b"}
    with pytest.raises(InvalidArgument, match="the agents offer 2"):
        world.do(ResizeTask(task="demo-1", worker_count=4))


def test_worker_on_an_excluded_gpu_goes_on_and_is_replaced_elsewhere():
    world = world_of("a", slots=1)
    task = submitted(world)
    world.start(task)
    exclude(world, "0")
    world.do(RegisterAgent(agent="b", slots=1, gpus=gpus_of("b", 1)))
    assert hosts_of(task) == ["a"]
    world.exit(task, task.members[0], signal=9)
    assert hosts_of(task) == ["b"]


def test_exclusion_needs_a_reason_and_a_known_gpu():
    world = world_of("a")
    with pytest.raises(InvalidArgument):
        world.do(ExcludeGpu(host="a", gpu="1", reason=" "))
    for verb in (ExcludeGpu(host="a", gpu="7", reason="r"), IncludeGpu(host="a", gpu="7")):
        with pytest.raises(NotFound, match="no GPU '7'"):
            world.do(verb)
    with pytest.raises(NotFound, match="no host"):
        exclude(world, "0", host="nowhere")
    exclude(world, "1")
    exclude(world, "a-1")
    assert len(world.facts(GpuExcluded)) == 1


def test_excluded_gpu_is_found_by_its_uuid_after_its_index_changed():
    world = World()
    register = RegisterAgent(agent="a", slots=2, nonce="n", gpus=gpus_of("a", 2))
    world.do(register)
    exclude(world, "1")
    moved = [[Gpu(0, "a-1")], [Gpu(1, "a-2")]]
    world.do(RegisterAgent(agent="a", slots=2, nonce="n", gpus=moved))
    assert world.one(AgentGpusChanged).gpus == moved
    assert excluded_keys(world.state, "a") == ["a-1"]
    without_driver = [[Gpu(0)], [Gpu(1)]]
    world.do(RegisterAgent(agent="a", slots=2, nonce="n", gpus=without_driver))
    assert excluded_keys(world.state, "a") == ["1"]


def measured(world, *gpus, host="a"):
    incarnation = world.state.agents[host].incarnation
    health = HostHealth(gpus=list(gpus))
    world.do(ReportHost(agent=host, incarnation=incarnation, health=health))


@pytest.mark.parametrize(
    "fault",
    [{"ecc_uncorrected": 1}, {"xid_errors": 1, "last_xid": 79}, {"lost": True}],
)
def test_fault_of_a_gpu_excludes_it_and_not_its_host(fault):
    world = world_of("a")
    measured(world, *(GpuHealth(index=n, uuid=f"a-{n}", ecc_uncorrected=0) for n in range(4)))
    faulty = GpuHealth(index=2, uuid="a-2", **{"ecc_uncorrected": 0} | fault)
    measured(world, GpuHealth(index=1, uuid="a-1", ecc_uncorrected=0), faulty)
    assert [(each.gpu, each.by) for each in world.new(GpuExcluded)] == [(2, "fault")]
    assert not world.state.hosts["a"].excluded
    assert len(submitted(world, workers=3).placements) == 3


def test_gpu_that_fails_its_self_test_is_excluded_unless_no_other_slot_is_usable():
    world = world_of("a", slots=2)
    for gpu in ("a-0", "a-1"):
        incarnation = world.state.agents["a"].incarnation
        world.do(
            ReportSelfTest(agent="a", incarnation=incarnation, task="t", reason="wrong", gpu=gpu)
        )
    assert [(each.gpu, each.by) for each in world.facts(GpuExcluded)] == [(0, "self-test")]
    assert world.facts(HostExcluded) == []


def fail(world, entry, *gpus):
    """A new task of a script fails on these GPUs of host a, and is stopped."""
    task = submitted(world, entry)
    [worker] = task.placements
    world.start(task)
    placement = task.placements[worker]
    world.do(
        ReportExit(
            agent=placement.agent,
            incarnation=world.state.agents[placement.agent].incarnation,
            task=task.id,
            worker=worker,
            start=placement.start,
            code=1,
            gpus=gpus,
        )
    )
    world.do(StopTask(task=task.id))


def test_gpu_on_which_tasks_of_different_scripts_fail_is_excluded():
    world = world_of("a")
    for number in range(3):
        assert world.facts(GpuExcluded) == []
        fail(world, f"{number}.py", "a-1")
    [excluded] = world.facts(GpuExcluded)
    assert (excluded.gpu, excluded.by) == (1, "failures")
    assert "3 different tasks failed on this GPU, and their scripts nowhere else" in excluded.reason
    assert world.facts(FailureAttributed)[0].gpus == ["a-1"]
    world.do(RegisterAgent(agent="b", slots=1, gpus=gpus_of("b", 1)))
    fail(world, "3.py", "a-2")
    assert world.facts(HostExcluded) == [], "the failures of the GPU do not count for its host"
    world.do(IncludeGpu(host="a", gpu="1"))
    assert [each.gpus for each in world.state.hosts["a"].failures] == [["a-2"]]


def test_script_that_fails_on_different_gpus_excludes_none():
    world = world_of("a")
    for gpu in ("a-0", "a-1", "a-1", "a-1"):
        fail(world, "broken.py", gpu)
    assert world.facts(GpuExcluded) == []


def test_failures_on_different_gpus_exclude_their_host():
    world = world_of("a")
    for number in range(3):
        if number == 2:
            world.do(RegisterAgent(agent="b", slots=1, gpus=gpus_of("b", 1)))
        fail(world, f"{number}.py", f"a-{number}")
    assert [each.host for each in world.facts(HostExcluded)] == ["a"]
    assert world.facts(GpuExcluded) == []


def test_agent_that_names_gpus_for_other_slots_than_it_offers_is_refused():
    with pytest.raises(InvalidArgument, match="GPUs of 2 slots and offers 3"):
        World().do(RegisterAgent(agent="a", slots=3, gpus=gpus_of("a", 2)))
