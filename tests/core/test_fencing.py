"""Fencing: commands of an incarnation that was declared lost are refused, by every rule."""

import pytest

from strata.core.checkpoints.checkpoint_commits import FailCheckpoint
from strata.core.checkpoints.save_schedule import RequestCheckpoint
from strata.core.datasets.dataset_rules import AttachDataset
from strata.core.datasets.shard_leases import AdvanceEpoch
from strata.core.decision import DECIDE
from strata.core.workers.fencing import SharedCommand, WorkerCommand, WorkerFenced
from strata.errors import Fenced, InvalidArgument, NotFound
from tests.core.world import World

SENT = sorted((kind for kind in DECIDE if issubclass(kind, WorkerCommand)), key=str)


def trained():
    """Two workers that have trained some steps and saved, the first of them declared lost."""
    world = World()
    task = world.submit(2, policy="continue")
    peer, _ = world.join(task, "a", "b")
    world.sync(task)
    world.train(task, 3)
    checkpoint = world.save(task, 3)
    peer.lost()
    return world, task, peer, checkpoint


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_no_command_of_a_lost_worker_reaches_its_rule(kind):
    world, task, peer, _ = trained()
    given = {
        name: {"task": task.id}.get(name, 1 if name in ("step", "generation") else "x")
        for name in kind.__struct_fields__
        if name not in ("cause", "worker", "incarnation")
    }
    with pytest.raises(Fenced):
        world.do(kind(worker=peer.id, incarnation=peer.incarnation, **given))
    assert len(world.new(WorkerFenced)) == 1


def test_lost_worker_cannot_fail_a_committed_checkpoint():
    world, task, peer, checkpoint = trained()
    with pytest.raises(Fenced):
        world.do(
            FailCheckpoint(
                worker=peer.id,
                incarnation=peer.incarnation,
                task=task.id,
                checkpoint=checkpoint.id,
                reason="zombie",
                damaged=True,
            )
        )
    assert task.checkpoints[checkpoint.id].state == "committed"


@pytest.mark.parametrize("kind", [FailCheckpoint, RequestCheckpoint, AttachDataset, AdvanceEpoch])
def test_operator_needs_no_incarnation(kind):
    assert issubclass(kind, SharedCommand)
    names = {"task": "none", "checkpoint": "c", "reason": "r", "dataset": "d"}
    given = {name: value for name, value in names.items() if name in kind.__struct_fields__}
    with pytest.raises((NotFound, InvalidArgument)):
        World().do(kind(**given))
