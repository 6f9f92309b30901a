"""`TrainingOrchestrator`, call by call."""

import threading
import time

import numpy as np
import pytest

from strata import CheckpointManager, TrainingOrchestrator
from strata.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Fenced,
    InvalidArgument,
    NotAllowedNow,
    NotFound,
    StrataError,
    Unavailable,
)
from tests.coordinator.process import free_port
from tests.sdk.conftest import HEARTBEAT_TIMEOUT_S
from tests.sdk.harness import until


@pytest.fixture
def orchestrators(hub):
    """Create orchestrators, and close them after the test."""
    made = []

    def make(worker_id=None, **given):
        orchestrator = TrainingOrchestrator(f"http://{hub.address}", **given)
        made.append(orchestrator)
        if worker_id is not None:
            orchestrator.register_worker(worker_id)
        return orchestrator

    yield make
    for each in made:
        each.close()


def test_registration_stores_all_fields(hub, orchestrators):
    config = (
        orchestrators()
        .connect()
        .register_worker(
            "w", "node-7", 50052, gpu_count=8, memory_bytes=2**40, metadata={"zone": "b"}
        )
    )
    assert (config.worker_id, config.rank, config.world_size) == ("w", 0, 1)
    assert config.heartbeat_interval_ms == 250
    worker = hub.state.workers["w"]
    assert (worker.hostname, worker.port, worker.gpu_count) == ("node-7", 50052, 8)
    assert (worker.memory_bytes, worker.metadata) == (2**40, {"zone": "b"})


def test_ids_are_assigned_and_ranks_are_dense(orchestrators):
    configs = [orchestrators().register_worker() for _ in range(3)]
    assert sorted(config.rank for config in configs) == [0, 1, 2]
    assert len({config.worker_id for config in configs}) == 3


def test_heartbeats_keep_a_blocked_worker_alive(hub, orchestrators):
    waiting, late = orchestrators("waiting"), orchestrators("late")
    results = []
    thread = threading.Thread(target=lambda: results.append(waiting.barrier("b", step=3)))
    thread.start()
    begun_s = time.monotonic()
    until(lambda: time.monotonic() - begun_s > HEARTBEAT_TIMEOUT_S + 0.5)
    assert hub.state.workers["waiting"].alive
    results.append(late.barrier("b", step=3))
    thread.join(10)
    assert {result.arrival_order for result in results} == {0, 1}
    assert all(result.released and result.participants == 2 for result in results)


def test_worker_with_manual_heartbeats_lives_while_it_sends_them(hub, orchestrators):
    manual = orchestrators("manual", automatic_heartbeats=False)
    for step in range(4):
        answer = manual.heartbeat(step=step, epoch=1, state="training")
        assert answer.acknowledged
        assert answer.commands == []
    assert manual.barrier("b").released
    until(lambda: hub.state.workers["manual"].state == "lost", 10)
    with pytest.raises(Fenced):
        manual.heartbeat(step=9)


def test_stop_arrives_with_a_heartbeat(hub, orchestrators):
    worker = orchestrators("w")
    hub.stop_task("default-1")
    assert until(lambda: worker.heartbeat().commands) == ["stop"]


def test_shards_are_divided_and_move_after_a_loss(orchestrators):
    one, two = orchestrators("one"), orchestrators("two")
    assert one.register_dataset("d", 1005, 10, path="/data/d") == 101
    owned = [worker.get_shards("d", epoch=2) for worker in (one, two)]
    assert sorted(shard.shard_id for part in owned for shard in part) == list(range(101))
    assert abs(len(owned[0]) - len(owned[1])) <= 1
    assert owned[0] == one.get_shards("d", epoch=2) != one.get_shards("d", epoch=3)
    assert one.get_shard("d", epoch=2, index=1) == owned[0][1]
    last = max((shard for part in owned for shard in part), key=lambda shard: shard.shard_id)
    assert (last.start_index, last.end_index, last.num_samples) == (1000, 1005, 5)
    assert (last.file_paths, last.total_shards, last.epoch) == (["/data/d"], 101, 2)
    two.deregister()
    assert len(one.get_shards("d")) == 101


def test_epoch_advances_once_for_several_callers(orchestrators):
    one, two = orchestrators("one"), orchestrators("two")
    one.register_dataset("d", 100, 10)
    one.get_shards("d")
    assert [one.advance_epoch("d"), two.advance_epoch("d")] == [1, 1]
    assert one.advance_epoch("d") == 2


def test_reported_checkpoint_is_found_again(orchestrators):
    one, two = orchestrators("one"), orchestrators("two")
    assert one.latest_checkpoint() is None
    first = one.notify_checkpoint(step=5, epoch=1, storage_path="/c/5/0", size_bytes=10)
    assert (first.success, first.status) == (True, "in_progress")
    second = two.notify_checkpoint(
        step=5, epoch=1, storage_path="/c/5/1", size_bytes=20, checkpoint_id=first.checkpoint_id
    )
    assert second.status == "completed"
    latest = two.latest_checkpoint()
    assert (latest.checkpoint_id, latest.step, latest.epoch) == (first.checkpoint_id, 5, 1)
    assert latest.size_bytes == 30


def test_metrics_of_a_reported_checkpoint_are_recorded_if_finite(hub, orchestrators):
    metrics = {"val_loss": 0.25, "broken": float("nan")}
    saved = orchestrators("one").notify_checkpoint(step=5, metrics=metrics)
    (task,) = hub.state.tasks.values()
    assert task.checkpoints[saved.checkpoint_id].metrics == {"val_loss": 0.25}


def test_latest_checkpoint_has_a_loadable_path(orchestrators, tmp_path):
    manager = CheckpointManager(path=str(tmp_path / "models"))
    manager.save({"weight": np.arange(4.0)}, step=5, epoch=1)
    manager.wait_pending()
    saved = manager.get_latest()
    worker = orchestrators("one")
    worker.notify_checkpoint(
        saved.step, saved.epoch, saved.path, saved.size_bytes, saved.checkpoint_id
    )
    latest = worker.latest_checkpoint()
    assert (latest.checkpoint_id, latest.path) == (saved.checkpoint_id, saved.path)
    folder, _, name = latest.path.rpartition("/")
    loaded = CheckpointManager(path=folder).load(name)
    assert loaded["weight"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_barrier_without_the_others_times_out_and_can_be_continued(hub, orchestrators):
    one, two = orchestrators("one"), orchestrators("two")
    with pytest.raises(DeadlineExceeded, match="not released within"):
        one.barrier("b", timeout=0.2)
    thread = threading.Thread(target=two.barrier, args=("b",))
    thread.start()
    assert one.barrier("b", timeout=10).arrival_order == 0
    thread.join(10)
    until(lambda: hub.facts("BarrierReleased"), what="the record of the release")
    assert len(hub.facts("BarrierReleased")) == 1


def test_deregister_is_reported_and_idempotent(hub, orchestrators):
    worker = orchestrators("w")
    worker.deregister("enough")
    worker.deregister()
    assert hub.state.workers["w"].reason == "enough"
    with pytest.raises(NotAllowedNow, match="register_worker"):
        worker.barrier("b")
    assert worker.register_worker("w").worker_id == "w"


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidArgument, lambda w: w.barrier("")),
        (InvalidArgument, lambda w: w.barrier("x" * 1000)),
        (InvalidArgument, lambda w: w.barrier("b", step=-1)),
        (InvalidArgument, lambda w: w.barrier("b", step=2**80)),
        (InvalidArgument, lambda w: w.barrier("b", timeout=0)),
        (InvalidArgument, lambda w: w.heartbeat(step=2**80)),
        (InvalidArgument, lambda w: w.heartbeat(state="asleep")),
        (InvalidArgument, lambda w: w.register_dataset("", 1, 1)),
        (InvalidArgument, lambda w: w.register_dataset("d", 0, 1)),
        (InvalidArgument, lambda w: w.register_dataset("d", 2**70, 1)),
        (InvalidArgument, lambda w: w.register_dataset("d", 10, 20)),
        (InvalidArgument, lambda w: w.register_dataset(None, "x", 1)),
        (InvalidArgument, lambda w: w.notify_checkpoint(1, type="odd")),
        (NotFound, lambda w: w.get_shards("nothing")),
        (NotFound, lambda w: w.get_shards("nothing", worker_id="nobody")),
        (NotAllowedNow, lambda w: w.register_worker("again")),
        (StrataError, lambda w: w.get_shard("nothing", index=2**62)),
    ],
)
def test_invalid_calls_are_typed_errors(orchestrators, error, call):
    with pytest.raises(error):
        call(orchestrators("w"))


def test_id_of_a_live_worker_is_refused(orchestrators):
    orchestrators("w")
    with pytest.raises(AlreadyExists):
        orchestrators().register_worker("w")


def test_unreachable_coordinator_is_a_clear_error():
    orchestrator = TrainingOrchestrator(f"127.0.0.1:{free_port()}")
    with orchestrator, pytest.raises(Unavailable) as caught:
        orchestrator.connect(timeout=0.3)
    assert "COORDINATOR_ADDR" in caught.value.hint
