"""Random commands in any order end in facts or a typed refusal, and the checks of world.py hold."""

from contextlib import suppress

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.checkpoints.checkpoint_commits import BeginCheckpoint
from strata.core.cluster import StartCoordinator
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.decision import DECIDE
from strata.core.state import DatasetSpec
from strata.core.workers.host_agents import RegisterAgent
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.errors import StrataError
from tests.core.strategies import ANYTHING, instances
from tests.core.world import World

TASKS = ["one-1", "two-2", "one-3", "default-1", "default-2"]
SPEC = DatasetSpec(total_samples=8, shard_size=2)
CHOICES = {
    **ANYTHING,
    int: st.integers(-1, 5),
    "worker": st.sampled_from(["", "a", "b", *(f"{task}-w0" for task in TASKS)]),
    "task": st.sampled_from(["", *TASKS]),
    "name": st.sampled_from(["one", "two"]),
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
    world.agent("h1", slots=2)
    world.start(world.submit(1, name="two", external=False))
    return world


def with_existing_names(world, command, number):
    """Most commands name existing things, so that they take effect; some are left random."""
    state = world.state
    if number % 8 == 0:
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
    if isinstance(command, RegisterWorker | RegisterAgent | BeginCheckpoint):
        exists = {name: exists[name] for name in ("task", "generation", "incarnation")}
    known = {n: v for n, v in exists.items() if v is not None and hasattr(command, n)}
    return msgspec.structs.replace(command, **known)


def pick(things, number):
    return things[number % len(things)] if things else None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(COMMANDS, st.integers(0, 99)), min_size=10, max_size=50))
def test_any_command_in_any_order_is_decided_or_refused(commands):
    world = populated()
    for command, number in commands:
        with suppress(StrataError):
            world.do(with_existing_names(world, command, number))
