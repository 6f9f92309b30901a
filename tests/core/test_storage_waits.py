"""Unreachable storage: the task waits with a reason, and fails after a timeout with every
checkpoint unchanged."""

import pytest

from strata.coordinator.rest.views.attention import attention
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointFailed
from strata.core.checkpoints.checkpoint_retention import DeleteCheckpoint
from strata.core.events import Envelope
from strata.core.generations.recovery import RecoveryChosen
from strata.core.generations.storage_waits import (
    GiveUpStorage,
    ReportStorage,
    StorageReached,
    StorageUnreachable,
)
from strata.core.rule_settings import Timeouts
from strata.core.tasks.placement import StopTask
from strata.core.workers.liveness import Watch
from strata.errors import InvalidArgument, NotAllowedNow
from tests.core.world import SECOND_NS, World


def restoring(workers=2):
    """A task whose workers were all lost and are to restore its newest checkpoint."""
    world = World()
    task = world.submit(workers)
    peers = world.join(task, *"abcd"[:workers])
    world.sync(task)
    world.train(task, 10)
    world.save(task, 5)
    world.save(task, 9)
    for peer in peers:
        peer.lost()
    again = [peer.again() for peer in peers]
    for peer in again:
        peer.enter()
    return world, task, again


def report(world, peer, reachable=False, reason="connection refused", missing=False):
    world.do(
        ReportStorage(
            **peer.me,
            generation=peer.task.generation,
            reachable=reachable,
            reason=reason,
            missing=missing,
        )
    )


def states(task):
    return [checkpoint.state for checkpoint in task.checkpoints.values()]


def test_task_waits_for_storage_with_a_reason():
    world, task, (a, b) = restoring()
    report(world, a)
    fact = world.one(StorageUnreachable)
    assert (fact.worker, fact.checkpoint) == ("a", task.recovery.checkpoint)
    assert (task.state, task.reason) == ("recovering", "storage unreachable: connection refused")
    assert a.worker.reason == "storage unreachable: connection refused"
    assert task.storage_wait.workers == ["a"]
    (item,) = attention(world.state, 100 * SECOND_NS)
    assert (item.severity, item.subject) == ("error", f"task:{task.id}")
    assert "connection refused" in item.text
    report(world, b)
    report(world, b)
    assert task.storage_wait.workers == ["a", "b"]
    assert states(task) == ["committed"] * 2
    assert world.facts(CheckpointFailed) == []


def test_missing_file_has_its_own_reason_with_the_delete_command():
    world, task, (a, _b) = restoring()
    chosen = task.recovery.checkpoint
    report(world, a, reason="there is no part-0", missing=True)
    command = f"strata checkpoints rm {chosen} --task {task.id}"
    assert task.reason.startswith(f"checkpoint {chosen} lacks a file: there is no part-0. ")
    assert task.reason.endswith(command)
    assert states(task) == ["committed"] * 2, "it may come back"
    (item,) = attention(world.state, 100 * SECOND_NS)
    assert item.text.endswith(command)


def test_file_found_missing_later_is_shown_in_the_wait():
    world, task, (a, _b) = restoring()
    report(world, a)
    report(world, a, reason="there is no part-0", missing=True)
    assert task.storage_wait.workers == ["a"]
    assert "there is no part-0" in task.storage_wait.reason
    report(world, a, reason="there is no part-0", missing=True)
    assert world.last == []


def test_checkpoint_that_is_waited_for_can_be_given_up_and_the_one_before_is_chosen():
    world, task, (a, b) = restoring()
    newest = task.recovery.checkpoint
    for peer in (a, b):
        report(world, peer, missing=True)
    world.do(DeleteCheckpoint(task=task.id, checkpoint=newest))
    assert task.checkpoints[newest].state == "deleted"
    world.sync(task)
    assert (task.recovery.source, task.recovery.step) == ("checkpoint", 5)
    for peer in (a, b):
        report(world, peer, reachable=True)
    assert (task.storage_wait, task.state) == (None, "running")


def test_giving_up_the_last_checkpoint_fails_the_task_instead_of_starting_again():
    world, task, (a, b) = restoring()
    for _ in range(2):
        for peer in (a, b):
            report(world, peer, missing=True)
        world.do(DeleteCheckpoint(task=task.id, checkpoint=task.recovery.checkpoint))
        for peer in (a, b):
            if not task.ended:
                peer.enter()
    assert task.state == "failed"
    assert "strata restart" in task.reason


def test_newest_checkpoint_without_waiting_members_cannot_be_deleted():
    world, task, _ = restoring()
    with pytest.raises(NotAllowedNow, match="is the newest"):
        world.do(DeleteCheckpoint(task=task.id, checkpoint=task.recovery.checkpoint))


def test_wait_ends_when_the_last_member_has_the_model():
    world, task, (a, b) = restoring()
    report(world, a)
    report(world, b)
    report(world, a, reachable=True)
    assert (world.one(StorageReached).ended, task.state) == (False, "recovering")
    report(world, b, reachable=True)
    ended = world.one(StorageReached)
    assert (ended.ended, ended.waited_s, task.state) == (True, 3.0, "running")
    assert (task.storage_wait, b.worker.reason) == (None, "")
    report(world, b, reachable=True)
    assert world.last == []


def test_wait_survives_the_loss_of_a_member_that_waits():
    world, task, (a, b) = restoring()
    report(world, a)
    since_ns = task.storage_wait.since_ns
    a.lost()
    a = a.again()
    for peer in (a, b):
        peer.enter()
    assert (task.recovery.source, task.storage_wait.workers) == ("checkpoint", [])
    report(world, b)
    assert (task.storage_wait.since_ns, task.state) == (since_ns, "recovering")


def test_wait_ends_when_steps_commit_again():
    world, task, (a, _b) = restoring()
    report(world, a)
    a.lost()
    a.again()
    world.sync(task)
    world.train(task, 11)
    assert world.one(StorageReached).ended
    assert (task.storage_wait, task.state) == (None, "running")


def test_task_fails_after_the_timeout_and_its_checkpoints_stay():
    world, task, (a, b) = restoring()
    report(world, a)
    world.do(GiveUpStorage(task=task.id, timeout_s=1800.0))
    assert (task.state, task.exit_code) == ("failed", 1)
    for named in ("1800 s", "connection refused", "step-00000009", task.id):
        assert named in task.reason
    assert states(task) == ["committed"] * 2
    assert "fresh" not in [chosen.source for chosen in world.facts(RecoveryChosen)[1:]]
    assert b.worker.alive


@pytest.mark.parametrize("ended", [False, True])
def test_expired_storage_deadline_without_a_wait_changes_nothing(ended):
    world, task, (a, _b) = restoring()
    report(world, a)
    if ended:
        report(world, a, reachable=True)
    else:
        world.do(StopTask(task=task.id))
    world.do(GiveUpStorage(task=task.id, timeout_s=1.0))
    assert world.last == []
    world.do(GiveUpStorage(task="none", timeout_s=1.0))


def test_reports_that_do_not_fit_are_ignored_or_refused():
    world, task, (a, _b) = restoring()
    old = ReportStorage(
        **a.me, generation=task.generation - 1, reachable=False, reason="connection refused"
    )
    world.do(old)
    assert (world.last, task.storage_wait) == ([], None)
    with pytest.raises(InvalidArgument, match="without a reason"):
        report(world, a, reason="")


def test_deadline_counts_from_the_first_member_that_waits():
    world, task, (_a, _b) = restoring()
    watch = Watch(Timeouts(storage_timeout_s=100.0, heartbeat_timeout_s=10_000.0))
    waited = [
        StorageUnreachable(task=task.id, worker=each, generation=3, checkpoint="c", reason="away")
        for each in "ab"
    ]
    watch.follow(Envelope(0, 0, 10 * SECOND_NS, waited[0]))
    watch.follow(Envelope(1, 0, 60 * SECOND_NS, waited[1]))
    assert watch.next_ns() == 110 * SECOND_NS
    assert watch.overdue(world.state, 109 * SECOND_NS) == []
    assert watch.overdue(world.state, 110 * SECOND_NS) == [
        GiveUpStorage(task=task.id, timeout_s=100.0)
    ]
    assert watch.overdue(world.state, 111 * SECOND_NS) == []


def test_deadline_is_dropped_when_the_wait_ends_and_set_again_after_a_restart():
    world, task, (a, _b) = restoring()
    watch = Watch(Timeouts(storage_timeout_s=100.0, heartbeat_timeout_s=10_000.0))
    watch.follow(
        Envelope(
            0,
            0,
            0,
            StorageUnreachable(
                task=task.id, worker="a", generation=3, checkpoint="c", reason="away"
            ),
        )
    )
    watch.follow(
        Envelope(
            1,
            0,
            1,
            StorageReached(task=task.id, worker="a", waited_s=1.0, ended=True, reason="it is back"),
        )
    )
    assert watch.overdue(world.state, 200 * SECOND_NS) == []
    report(world, a)
    restarted = Watch(Timeouts(storage_timeout_s=5.0))
    restarted.adopt(world.state, 0)
    assert GiveUpStorage(task=task.id, timeout_s=5.0) in restarted.overdue(
        world.state, 5 * SECOND_NS
    )
