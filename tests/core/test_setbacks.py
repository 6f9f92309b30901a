"""Sources that cannot be restored: all members choose again, without the failed source."""

import pytest

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointFailed
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen, RolledBack
from strata.core.generations.recovery_failures import RecoveryRefused, RefuseRecovery
from strata.core.task_state import Entry
from strata.core.tasks.standing import standing
from strata.errors import NotAllowedNow
from tests.core.world import World


def training(workers=2, steps=10, **spec):
    world = World()
    task = world.submit(workers, **spec)
    peers = world.join(task, *"abcdefgh"[:workers])
    world.sync(task)
    world.train(task, steps)
    return world, task, peers


def refuse(peer, reason="it is damaged", damaged=True):
    return RefuseRecovery(
        **peer.me, generation=peer.task.generation, reason=reason, damaged=damaged
    )


def restarted(world, task, peers):
    """All workers are lost, register again and resume from the newest checkpoint."""
    for peer in peers:
        peer.lost()
    again = [peer.again() for peer in peers]
    for peer in again:
        peer.enter()
    return again


def test_damaged_checkpoint_fails_and_the_one_before_is_chosen():
    world, task, peers = training()
    old, new = world.save(task, 5), world.save(task, 9)
    a, b = restarted(world, task, peers)
    assert task.recovery.checkpoint == new.id
    world.do(refuse(a, "part-00000 is damaged"))
    assert world.one(CheckpointFailed).reason == "worker a: part-00000 is damaged"
    assert "part-00000" in world.one(GenerationChanged).reason
    for peer in (a, b):
        peer.enter()
    assert (task.recovery.checkpoint, task.committed, task.attempt) == (old.id, 5, 3)


def test_member_that_read_the_checkpoint_gives_the_model_to_the_others():
    world, task, peers = training()
    world.save(task, 5)
    world.save(task, 9)
    a, b = restarted(world, task, peers)
    b.model = Entry(task.attempt, task.generation, 9)
    world.do(refuse(a))
    for peer in (a, b):
        peer.enter()
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, chosen.worker, chosen.step) == ("peer", "b", 9)
    assert world.facts(RolledBack)[-1].to == 9


def test_checkpoint_that_is_not_damaged_cannot_be_condemned():
    world, task, peers = training()
    saved = world.save(task, 9)
    a, _b = restarted(world, task, peers)
    generation = task.generation
    with pytest.raises(NotAllowedNow, match="without being damaged"):
        world.do(refuse(a, "connection refused", damaged=False))
    assert (saved.state, task.generation) == ("committed", generation)


def test_task_fails_instead_of_starting_again_when_every_checkpoint_is_damaged():
    world, task, peers = training()
    old, new = world.save(task, 5), world.save(task, 9)
    a, b = restarted(world, task, peers)
    for _ in range(2):
        world.do(refuse(a, "tensor 'w' does not match its checksum"))
        if not task.ended:
            for peer in (a, b):
                peer.enter()
    assert (task.state, task.exit_code, task.committed) == ("failed", 1, 5)
    for named in (f"{old.id} (damaged)", f"{new.id} (damaged)", "step 0", "strata restart"):
        assert named in task.reason
    assert "fresh" not in [chosen.source for chosen in world.facts(RecoveryChosen)[1:]]


def test_fresh_start_after_damage_needs_allow_fresh_start():
    world, task, peers = training(allow_fresh_start=True)
    world.save(task, 9)
    a, b = restarted(world, task, peers)
    world.do(refuse(a))
    for peer in (a, b):
        peer.enter()
    chosen = world.one(RecoveryChosen)
    assert (chosen.source, task.committed, task.state) == ("fresh", 0, "running")


def test_peer_that_cannot_be_reached_leaves_the_checkpoint():
    world, task, (a, b) = training()
    saved = world.save(task, 8)
    b.lost()
    b = b.again()
    for peer in (a, b):
        peer.enter()
    assert task.recovery.worker == "a"
    world.do(refuse(b, "connection refused"))
    for peer in (a, b):
        peer.enter()
    assert (task.recovery.source, task.recovery.checkpoint) == ("checkpoint", saved.id)
    assert (task.committed, task.peers_refused) == (8, False)


def test_without_another_source_the_refusal_is_refused():
    world, task, (a, b) = training()
    b.lost()
    b = b.again()
    for peer in (a, b):
        peer.enter()
    generation = task.generation
    with pytest.raises(NotAllowedNow, match="no other source"):
        world.do(refuse(b))
    assert (task.generation, world.facts(RecoveryRefused)) == (generation, [])


def test_two_refusals_start_one_generation():
    world, task, peers = training()
    world.save(task, 5)
    world.save(task, 9)
    a, b = restarted(world, task, peers)
    commands = [refuse(peer) for peer in (a, b)]
    for command in commands:
        world.do(command)
    assert len(world.facts(RecoveryRefused)) == 1


def test_standing_names_the_model_sources_and_how_many_members_need_it():
    world, task, (a, b, c, d) = training(4)
    for peer in (c, d):
        peer.lost()
        peer.again()
    for peer in world.members(task):
        peer.enter(address=f"10.0.0.1:{ord(peer.id)}" if peer in (a, b) else "")
    place = standing(world.state, "c")
    assert place.peers == {"a": "10.0.0.1:97", "b": "10.0.0.1:98"}
    assert (place.recovery.worker, place.fetching) == ("a", 2)
