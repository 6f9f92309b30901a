"""Random commands in any order end in facts or a typed refusal, and the checks of world.py hold."""

from contextlib import suppress

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.checkpoints.checkpoint_commits import (
    AckPart,
    BeginCheckpoint,
    ConfirmCheckpoint,
)
from strata.core.checkpoints.checkpoint_retention import ReleaseCheckpoint
from strata.core.cluster import StartCoordinator
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.datasets.shard_leases import ReturnLease
from strata.core.decision import DECIDE
from strata.core.hosts.host_health import HostHealth
from strata.core.invariants import HistoryChecker, broken
from strata.core.state import DatasetSpec, encode
from strata.core.task_spec import TaskSpec
from strata.core.tasks.continuation import ContinueTask
from strata.core.workers.host_agents import RegisterAgent, ReportExit
from strata.core.workers.stack_reports import StackReport
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.errors import StrataError
from tests.core.strategies import ANYTHING, instances
from tests.core.test_gpu_exclusion import gpus_of
from tests.core.world import World

TASKS = ["one-1", "two-2", "one-3", "default-1", "default-2"]
STATE_BYTES = 200_000
SPEC = DatasetSpec(total_samples=8, shard_size=2)
SPECS = st.builds(
    TaskSpec,
    name=st.sampled_from(["one", "two"]),
    worker_count=st.integers(1, 3),
    min_workers=st.integers(0, 1),
    policy=st.sampled_from(["replace", "continue", "stop"]),
    model_state=st.sampled_from(["replicated", "sharded"]),
    external=st.booleans(),
    spares=st.integers(0, 1),
    priority=st.integers(0, 2),
    preemptible=st.booleans(),
    elastic=st.booleans(),
)
CHOICES = {
    **ANYTHING,
    int: st.integers(-1, 5),
    TaskSpec: SPECS | instances(TaskSpec),
    DatasetSpec: st.just(SPEC) | instances(DatasetSpec),
    HostHealth: st.just(HostHealth()) | instances(HostHealth),
    StackReport: st.just(StackReport(notes=["no process"])) | instances(StackReport),
    "host": st.sampled_from(["h1", "h1", "h9"]),
    "gpu": st.sampled_from(["h1-0", "1", ""]),
    "reason": st.sampled_from(["because", "because", ""]),
    "holder": st.sampled_from(["me", ""]),
    "path": st.sampled_from(["", "ckpt/m", "../x"]),
    "metadata": st.just({}) | st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    "metrics": st.just({}) | st.just({"loss": 0.5}),
    "outcome": st.sampled_from(["done", "stopped", "failed"]),
    "worker": st.sampled_from(["", "a", "b", *(f"{task}-w0" for task in TASKS)]),
    "task": st.sampled_from(["", *TASKS]),
    "name": st.sampled_from(["one", "two"]),
    "key": st.sampled_from(["", "k"]),
    "loop": st.sampled_from(["d", "e", ""]),
    "agent": st.sampled_from(["h1", "h2"]),
    "dataset": st.sampled_from(["d", "e"]),
    "dataset_id": st.sampled_from(["", "d"]),
    "barrier": st.sampled_from(["x", "y"]),
    "checkpoint": st.sampled_from(["", "c", "step-00000001-1", "step-00000002-2"]),
    "nonce": st.sampled_from(["", "n"]),
    "cause": st.just(()),
}
COMMANDS = st.one_of([instances(kind, CHOICES) for kind in DECIDE if kind is not StartCoordinator])


def populated():
    """A cluster with leases, lanes, a checkpoint and a placed task."""
    world = World()
    for dataset in ("d", "e"):
        world.do(RegisterDataset(dataset=dataset, spec=SPEC))
    task = world.submit(2, name="one", policy="continue")
    world.join(task, "a", "b")
    world.do(AttachDataset(task=task.id, dataset="d", unit="lease"))
    world.do(AttachDataset(task=task.id, dataset="e", unit="lane", global_batch=4, lanes=4))
    world.sync(task)
    world.save(task, 1)
    world.train(task, 2)
    world.save(task, 2)
    world.members(task)[0].begin(3)
    world.do(RegisterAgent(agent="h1", hostname="h1", slots=2, gpus=gpus_of("h1", 2)))
    world.start(world.submit(1, name="two", external=False))
    return world


def with_existing_names(world, command, number):
    """Most commands name existing things, so that they take effect; some are left random."""
    state = world.state
    if number % 8 == 7:
        return command
    worker = pick([w for w in state.workers.values() if w.alive], number)
    task = state.tasks[worker.task] if worker else pick(list(state.tasks.values()), number)
    agent = pick([a for a in state.agents.values() if a.up], number)
    checkpoint = pick(list(task.checkpoints.values()), number)
    barrier = pick(list(task.barriers.values()), number)
    lease = pick([lease for feed in task.feeds.values() for lease in feed.leases], number)
    speaker = agent if hasattr(command, "agent") else worker
    exists = {
        "task": task.id,
        "generation": task.generation,
        "attempt": task.attempt,
        "incarnation": speaker.incarnation if speaker else None,
        "agent": agent.id if agent else None,
        "worker": worker.id if worker else None,
        "checkpoint": checkpoint.id if checkpoint else None,
        "barrier": barrier.name if barrier and number % 3 else None,
        "round": barrier.round if barrier else None,
        "lease": lease,
        "start": task.placements[worker.id].start if worker and worker.id in task.placements else 0,
    }
    if isinstance(command, RegisterWorker | RegisterAgent):
        exists = {name: exists[name] for name in ("task", "generation", "incarnation")}
    if isinstance(command, BeginCheckpoint):
        exists |= {"checkpoint": None, "step": task.committed + number % 3}
    if isinstance(command, AckPart | ConfirmCheckpoint | ReleaseCheckpoint) and checkpoint:
        exists |= {"path": "ckpt/m", "holder": next(iter(checkpoint.pins), None)}
    if isinstance(command, ContinueTask):
        exists["task"] = next((each.id for each in state.tasks.values() if each.ended), task.id)
    if isinstance(command, AckPart | ReturnLease | BeginCheckpoint) and task.members:
        member = state.workers[pick(task.members, number // 4)]
        exists |= {"worker": member.id, "incarnation": member.incarnation}
    if isinstance(command, ReturnLease):
        exists["dataset"] = "d"
    if isinstance(command, ReportExit):
        exists |= placed_worker(state, number)
    known = {n: v for n, v in exists.items() if v is not None and hasattr(command, n)}
    return msgspec.structs.replace(command, **known)


def placed_worker(state, number):
    """A worker that an agent was to start, as that agent reports it."""
    placed = [(task.id, *item) for task in state.tasks.values() for item in task.placements.items()]
    if not placed:
        return {}
    task, worker, placement = pick(placed, number)
    names = {"task": task, "worker": worker, "start": placement.start, "agent": placement.agent}
    return names | {"incarnation": state.agents[placement.agent].incarnation}


def with_own_files(command):
    """A command whose spec has the digest of its files, as its callers see to."""
    if getattr(command, "spec", None) is None or not hasattr(command, "workdir"):
        return command
    digest = command.workdir.digest if command.workdir else ""
    return msgspec.structs.replace(
        command, spec=msgspec.structs.replace(command.spec, workdir=digest)
    )


def pick(things, number):
    return things[number % len(things)] if things else None


ORDERS = st.lists(st.tuples(COMMANDS, st.integers(0, 99)), min_size=10, max_size=50)


def decided(commands):
    """The commands that took effect; after each one, the state breaks no invariant."""
    world, history = populated(), HistoryChecker()
    effective = set()
    for command, number in commands:
        with suppress(StrataError):
            world.do(with_own_files(with_existing_names(world, command, number)))
            effective |= {type(command)} if world.last else set()
        assert broken(world.state) + history.shrunk(world.state) == []
        assert len(encode(world.state)) < STATE_BYTES
    return effective


@settings(max_examples=100, deadline=None)
@given(ORDERS)
def test_any_command_in_any_order_is_decided_or_refused(commands):
    decided(commands)


def test_most_commands_take_effect_in_some_order():
    """Otherwise the test above would only show that commands are refused."""
    effective = set()

    @settings(max_examples=250, deadline=None, database=None, derandomize=True)
    @given(ORDERS)
    def collect(commands):
        nonlocal effective
        effective |= decided(commands)

    collect()
    assert len(effective) > 0.6 * len(DECIDE), sorted(kind.__name__ for kind in effective)
