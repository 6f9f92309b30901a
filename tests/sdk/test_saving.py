"""Checkpoints of several ranks: each saves its part of the same step, one manifest commits them,
and a failure fails that checkpoint but never the run."""

import signal
import threading
from contextlib import suppress

import httpx
import numpy as np
import pytest

import strata
from strata.checkpoint.cleanup import delete_files, drop_spares
from strata.checkpoint.manager import CheckpointManager
from strata.coordinator import checkpoint_files
from strata.core.tasks.task_lifecycle import UNSAVED_EXIT_CODE
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import TIMEOUT_S, CoordinatorProcess, until
from tests.sdk.trainee import value_after

TASK = "default-1"


def folder(hub, tmp_path):
    return tmp_path / "data" / "checkpoints" / hub.state.cluster / TASK


def states(hub):
    task = hub.state.tasks.get(TASK)
    return {c.id: c.state for c in task.checkpoints.values()} if task else {}


def committed(hub):
    """The newest committed checkpoint, if any."""
    return next(
        (name for name, state in [*states(hub).items()][::-1] if state == "committed"), None
    )


def listed(hub):
    return httpx.get(f"{hub.running.http_url}/api/checkpoints").json()


def test_every_rank_saves_its_part_and_a_reader_combines_them(hub, trainees, tmp_path):
    workers = [
        trainees(hub.address, "keep", worker_id=name, world_size=3, steps=20, checkpoint_every=10)
        for name in "abc"
    ]
    assert [worker.ends() for worker in workers] == [0, 0, 0]
    with CheckpointManager(folder(hub, tmp_path)) as manager:
        assert [info.step for info in manager.all_checkpoints()] == [10, 20]
        state = manager.load()
        with manager.open() as reader:
            manifest = reader.manifest
            assert reader.verify() == manifest.size_bytes
    assert [state["sum"][7], state["squares"][3, 1]] == value_after(20)
    assert state["applied"] == 20
    first = hub.state.tasks[TASK].members[0]
    assert (manifest.world_size, manifest.attempt, manifest.metadata["by"]) == (3, 1, first)
    held = sum(tensor.size_bytes for part in manifest.parts for tensor in part.tensors)
    names = [tensor.name for part in manifest.parts for tensor in part.tensors]
    assert held < 2 * (3_000 * 8), "what all hold alike is written once"
    assert {"sum", "squares", "rank-00002.random.python.state"} <= set(names)
    assert all(part.local is not None for part in manifest.parts)


def test_diverged_replicas_fail_that_checkpoint_and_are_named(hub, trainees):
    given = {"world_size": 3, "steps": 40, "checkpoint_every": 10}
    workers = [trainees(hub.address, "drift", worker_id=name, **given) for name in "abc"]
    assert [worker.ends() for worker in workers] == [0, 0, 0]
    found = {each["step"]: each for each in listed(hub)}
    assert {step: each["status"] for step, each in found.items()} == {
        10: "completed",
        20: "failed",
        30: "completed",
        40: "completed",
    }
    told = "rank 1 differs from ranks 0, 2 in 1 of 2 tensors: 'running_mean'"
    assert told in found[20]["reason"]
    until(lambda: any(told in line for _, line in hub.lines("a")), what="the reason in the log")


def test_rank_lost_during_a_save_fails_the_checkpoint_but_not_the_run(hub, trainees, tmp_path):
    given = {"world_size": 2, "checkpoint_every": 10, "step_s": 0.02}
    first, second = (
        trainees(hub.address, "keep", worker_id=name, steps=10**6, **given) for name in "ab"
    )
    for worker in (first, second):
        worker.says("saved")
    until(lambda: "committed" in states(hub).values(), what="the first commit")
    second.kill()
    until(lambda: not hub.state.workers["b"].alive)
    trainees(hub.address, "keep", worker_id="b", steps=10**6, **given)
    first.says("recovered")
    count = len(states(hub))
    until(lambda: list(states(hub).values())[count:].count("committed") >= 2, what="later commits")


def test_rank_killed_while_writing_fails_only_that_checkpoint(hub, trainees, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    given = {"world_size": 2, "checkpoint_every": 20, "steps": 10**6}
    first = trainees(hub.address, "keep", worker_id="a", **given)
    second = trainees(hub.address, "keep_on_a_slow_disk", worker_id="b", gate=str(gate), **given)
    until(lambda: "committed" in states(hub).values())
    gate.unlink()

    def half_saved():
        saved = hub.state.tasks[TASK].checkpoints.values()
        return [c for c in saved if c.state == "in_progress" and len(c.parts) == 1]

    (half,) = until(half_saved, what="the part of one rank, and not of the other")
    before = [name for name, state in states(hub).items() if state == "committed"]
    assert second.process.poll() is None
    second.kill()
    until(lambda: states(hub)[half.id] == "failed")
    assert "worker b" in listed(hub)[0]["reason"]
    assert next(c["id"] for c in listed(hub) if c["status"] == "completed") == before[-1]
    until(lambda: not (folder(hub, tmp_path) / half.id).exists(), what="the end of its files")
    third = trainees(hub.address, "keep", worker_id="b", **given)
    first.says("recovered")
    until(lambda: list(states(hub).values()).count("committed") > len(before))
    hub.stop_task(TASK)
    assert all(worker.says("ended")["exact"] for worker in (first, third))


def test_save_ends_with_its_generation_and_does_not_block_the_next(hub, trainees, tmp_path):
    gate = tmp_path / "gate"
    given = {"world_size": 2, "checkpoint_every": 10, "steps": 10**6}
    first = trainees(hub.address, "keep", worker_id="a", **given)
    slow = trainees(hub.address, "keep_on_a_slow_disk", worker_id="b", gate=str(gate), **given)
    slow.says("writing")
    until(lambda: hub.state.tasks[TASK].committed > 20, what="training")
    slow.kill()
    until(lambda: not hub.state.workers["b"].alive)
    trainees(hub.address, "keep", worker_id="b", **given)
    first.says("recovered")
    until(lambda: "committed" in states(hub).values(), what="a checkpoint of the next generation")
    assert next(iter(states(hub).values())) == "failed"


def test_save_due_during_another_is_postponed(hub, trainees, tmp_path):
    gate = tmp_path / "gate"
    given = {"world_size": 2, "checkpoint_every": 10, "steps": 10**6}
    first = trainees(hub.address, "keep", worker_id="a", **given)
    slow = trainees(hub.address, "keep_on_a_slow_disk", worker_id="b", gate=str(gate), **given)
    until(lambda: hub.state.tasks and hub.state.tasks[TASK].committed > 60, what="training")
    assert list(states(hub).values()) == ["in_progress"], "nobody begins another one meanwhile"
    (postponed,) = hub.facts("CheckpointPostponed")
    assert (postponed.step, "save of step 10" in postponed.reason) == (20, True)
    until(lambda: any("save of step 20 is postponed" in line for _, line in hub.lines("b")))
    gate.touch()
    until(lambda: list(states(hub).values()).count("committed") >= 3, what="later commits")
    assert first.says("saved", 2)["step"] == slow.says("saved", 2)["step"] > 60
    hub.stop_task(TASK)
    assert [worker.ends() for worker in (first, slow)] == [0, 0]
    assert "failed" not in states(hub).values()


def test_save_due_during_another_waits_if_configured(hub, trainees, tmp_path):
    gate = tmp_path / "gate"
    given = {"gate": str(gate), "checkpoint_every": 10, "steps": 30, "when_busy": "wait"}
    worker = trainees(hub.address, "keep_on_a_slow_disk", worker_id="a", **given)
    worker.says("restored")
    until(lambda: hub.state.tasks[TASK].committed >= 19, what="training up to the next save")
    assert list(states(hub).values()) == ["in_progress"]
    gate.touch()
    assert worker.ends() == 0
    assert list(states(hub).values()) == ["committed"] * 3
    until(lambda: any("waited" in line for _, line in hub.lines("a")))


def test_training_continues_and_ends_without_the_coordinator(tmp_path, trainees):
    hub = CoordinatorProcess(tmp_path, heartbeat_interval_s=0.25)
    try:
        given = {"world_size": 2, "steps": 300, "checkpoint_every": 10, "meet": False}
        workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
        for worker in workers:
            worker.says("saved")
        hub.kill()
        for worker in workers:
            assert worker.says("ended")["steps"] == 300
        hub.start()
        assert [worker.ends(60) for worker in workers] == [0, 0]
        (cluster,) = (tmp_path / "data" / "checkpoints").iterdir()
        with CheckpointManager(cluster / TASK) as manager:
            assert manager.latest().step == 300
            assert manager.load()["applied"] == 300
    finally:
        hub.close()


def test_final_state_is_saved_without_warnings(hub, trainees, tmp_path):
    given = {"world_size": 2, "steps": 25, "checkpoint_every": 10}
    workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
    assert [worker.ends() for worker in workers] == [0, 0]
    with CheckpointManager(folder(hub, tmp_path)) as manager:
        assert [info.step for info in manager.all_checkpoints()] == [10, 20, 25]
    task = hub.state.tasks[TASK]
    assert (task.state, task.exit_code, task.save_failure) == ("completed", 0, "")
    noise = [line for name in "ab" for level, line in hub.lines(name) if level != "info"]
    assert noise == []


def test_ranks_that_end_before_the_scheduled_step_save_together(hub, trainees):
    given = {"world_size": 2, "steps": 10**7, "meet": False, "step_s": 0.0}
    workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
    for worker in workers:
        worker.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 100)
    for count in (1, 2, 3):
        assert httpx.post(f"{hub.running.http_url}/api/tasks/{TASK}/checkpoint").status_code == 202
        until(lambda count=count: list(states(hub).values()).count("committed") == count)
    assert workers[0].says("saved", 3)["step"] == workers[1].says("saved", 3)["step"]


def test_hundred_saves_take_no_more_memory_than_a_few(hub, trainees):
    size = 1_000_000
    given = {"steps": 120, "checkpoint_every": 1, "step_s": 0.0, "when_busy": "wait"}
    worker = trainees(hub.address, "keep", worker_id="a", size=size, **given)
    assert worker.ends(120) == 0
    memory = [each["memory"] for each in worker.said if each["say"] == "saved"]
    assert len(memory) == 120
    state_bytes = 3 * 8 * size
    assert max(memory[110:]) - max(memory[10:20]) < 0.25 * state_bytes
    assert list(states(hub).values()).count("failed") == 0


def test_missing_part_is_named_if_a_rank_never_saves(tmp_path, trainees):
    settings = {"heartbeat_interval_s": 0.25, "checkpoint_timeout_s": 1.0}
    with coordinator(tmp_path / "data", **settings) as started:
        hub = Hub(started)
        given = {"world_size": 2, "steps": 10**6, "step_s": 0.01}
        trainees(hub.address, "keep", worker_id="a", checkpoint_every=10, **given)
        trainees(hub.address, "keep", worker_id="b", **given)
        failed = until(lambda: [c for c in listed(hub) if c["status"] == "failed"])
        silent = hub.state.workers["b"].rank
        assert f"the part of rank {silent} is missing" in failed[0]["reason"]


def test_sigterm_and_requests_make_all_ranks_save_the_same_step(hub, trainees, tmp_path):
    workers = [
        trainees(hub.address, "keep", worker_id=name, world_size=3, steps=10**6, meet=False)
        for name in "abc"
    ]
    for worker in workers:
        worker.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 5)
    answer = httpx.post(f"{hub.running.http_url}/api/tasks/{TASK}/checkpoint")
    assert answer.status_code == 202
    assert len({worker.says("saved")["step"] for worker in workers}) == 1
    until(lambda: list(states(hub).values()) == ["committed"])
    workers[1].signal(signal.SIGTERM)
    assert len({worker.says("saved", 2)["step"] for worker in workers}) == 1
    assert workers[1].says("ended")["why"] == "SIGTERM came"
    assert workers[1].ends() == 0
    assert "committed" in list(states(hub).values())[1:]


def test_stopped_task_saves_before_it_ends(hub, trainees, tmp_path):
    workers = [
        trainees(hub.address, "keep", worker_id=name, world_size=2, steps=10**6) for name in "ab"
    ]
    for worker in workers:
        worker.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 5)
    hub.stop_task(TASK)
    assert [worker.ends() for worker in workers] == [0, 0]
    assert [worker.says("ended")["exact"] for worker in workers] == [True, True]
    with CheckpointManager(folder(hub, tmp_path)) as manager:
        assert manager.latest().step == workers[0].says("saved")["step"]


def test_stopped_single_worker_ends_right_after_its_save(hub, trainees):
    worker = trainees(hub.address, "keep", worker_id="a", steps=10**8, step_s=0.0, meet=False)
    worker.says("restored")
    until(lambda: hub.state.tasks[TASK].committed > 5)
    hub.stop_task(TASK)
    assert worker.ends() == 0
    assert worker.says("ended")["steps"] <= worker.says("saved")["step"] + 1


def test_save_interval_makes_all_ranks_save_the_same_step(hub, trainees):
    given = {"world_size": 2, "steps": 10**6, "meet": False, "checkpoint_interval": 0.3}
    workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
    steps = [[worker.says("saved", count)["step"] for count in (1, 2, 3)] for worker in workers]
    assert steps[0] == steps[1]
    until(lambda: list(states(hub).values()).count("committed") >= 3)


def test_save_progress_is_visible_and_recorded(hub, trainees):
    worker = trainees(
        hub.address, "keep", worker_id="a", steps=20, checkpoint_every=10, size=2_000_000
    )
    until(lambda: any(c["size_total"] > 40_000_000 for c in listed(hub)), what="progress")
    assert worker.ends() == 0
    assert [c["status"] for c in listed(hub)] == ["completed", "completed"]
    assert all(c["size_written"] == c["size"] > 40_000_000 for c in listed(hub))
    kinds = [type(fact).__name__ for fact in hub.recorded_facts("a")]
    for name in ("ModelSerialization", "CheckpointWrite"):
        assert kinds.count(f"{name}Started") == kinds.count(f"{name}Completed") == 2


@pytest.mark.parametrize("when", ["before the last part", "while sealing"])
def test_restarted_coordinator_finishes_the_checkpoint(tmp_path, trainees, when):
    hub = CoordinatorProcess(tmp_path, heartbeat_interval_s=0.25)
    try:
        given = {"world_size": 2, "steps": 40, "step_s": 0.02, "checkpoint_every": 10}
        workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
        if when == "before the last part":
            workers[1].says("restored")
            workers[1].signal(signal.SIGSTOP)
            hub.kill()
            workers[1].signal(signal.SIGCONT)
        else:
            workers[0].says("saved", 2)
            hub.kill()
        hub.start()
        assert [worker.ends(60) for worker in workers] == [0, 0]
        (cluster,) = (tmp_path / "data" / "checkpoints").iterdir()
        with CheckpointManager(cluster / TASK) as manager:
            assert manager.latest().step == 40
            assert manager.load()["applied"] == 40
    finally:
        hub.close()


def test_unwritable_folder_fails_checkpoints_but_not_the_run(hub, trainees, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    worker = trainees(
        hub.address,
        "keep",
        worker_id="a",
        steps=30,
        checkpoint_every=10,
        checkpoint_dir=str(blocked),
    )
    assert worker.ends() == 0
    assert worker.says("ended")["exact"]
    assert {c["status"] for c in listed(hub)} == {"failed"}
    assert "folder" in listed(hub)[0]["reason"]
    task = hub.state.tasks[TASK]
    assert (task.state, task.exit_code) == ("completed", UNSAVED_EXIT_CODE)
    assert "final checkpoint failed: " in task.reason


def test_full_disk_fails_checkpoints_but_not_the_run(hub, trainees):
    worker = trainees(
        hub.address,
        "keep_in_little_room",
        largest_bytes=1_000_000,
        worker_id="a",
        steps=30,
        checkpoint_every=10,
        size=100_000,
    )
    assert worker.ends(60) == 0
    assert worker.says("ended")["exact"]
    assert {c["status"] for c in listed(hub)} == {"failed"}
    assert "file size limit" in listed(hub)[0]["reason"]


def test_worker_with_another_checkpoint_folder_gets_an_error(hub, trainees, tmp_path, monkeypatch):
    monkeypatch.setattr("strata.coordinator.checkpoint_files.DELAYS_S", (0.1, 0.1))
    worker = trainees(
        hub.address,
        "keep",
        worker_id="a",
        steps=10,
        checkpoint_every=10,
        checkpoint_dir=str(tmp_path / "elsewhere"),
    )
    assert worker.ends() == 0
    failed = listed(hub)[0]
    assert failed["status"] == "failed"
    assert "same CHECKPOINT_DIR" in failed["reason"]


def test_checkpoint_is_verified_and_deleted_over_the_api(hub, trainees, tmp_path):
    given = {"steps": 20, "checkpoint_every": 10, "size": 100_000}
    assert trainees(hub.address, "keep", worker_id="a", **given).ends() == 0
    new, old = listed(hub)
    api = f"{hub.running.http_url}/api/checkpoints"
    checked = httpx.post(f"{api}/{old['id']}/verify").json()
    assert (checked["ok"], checked["size_verified"]) == (True, old["size"])
    refused = httpx.delete(f"{api}/{new['id']}")
    assert (refused.status_code, "newest" in refused.text) == (409, True)
    assert httpx.delete(f"{api}/{old['id']}").status_code == 200
    until(lambda: not (folder(hub, tmp_path) / old["id"]).exists())
    part = folder(hub, tmp_path) / new["id"] / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-5])
    checked = httpx.post(f"{api}/{new['id']}/verify").json()
    assert (checked["ok"], "part-00000.safetensors" in checked["reason"]) == (False, True)
    assert [each["status"] for each in listed(hub)] == ["failed"]


def test_files_of_expired_checkpoints_are_reused(tmp_path, trainees):
    settings = {"heartbeat_interval_s": 0.25, "keep_count": 1}
    with coordinator(tmp_path / "data", **settings) as started:
        hub = Hub(started)
        given = {"world_size": 2, "steps": 10**6, "checkpoint_every": 10, "size": 20_000}
        workers = [trainees(hub.address, "keep", worker_id=name, **given) for name in "ab"]
        seen = {}

        def written_over():
            with suppress(FileNotFoundError):  # they come and go
                for part in folder(hub, tmp_path).glob("step-*/part-*.safetensors"):
                    seen.setdefault(part.stat().st_ino, set()).add(part.parent.name)
            return sum(len(checkpoints) > 1 for checkpoints in seen.values()) >= 2

        until(written_over, what="a file of each rank in two checkpoints, one after the other")
        hub.stop_task(TASK)
        assert [worker.ends() for worker in workers] == [0, 0]
        assert all(worker.says("ended")["exact"] for worker in workers)
        until(lambda: not (folder(hub, tmp_path) / "spare").exists(), what="the end of spares")
        with CheckpointManager(folder(hub, tmp_path)) as manager, manager.open() as reader:
            assert reader.verify() == reader.manifest.size_bytes
            assert manager.load()["applied"] == reader.manifest.step


def test_spares_made_while_the_task_ends_are_deleted(tmp_path, trainees, monkeypatch):
    """A checkpoint expires, and its files become spares after the task's spares were deleted."""
    dropped = threading.Event()

    def drop(storage):
        drop_spares(storage)
        dropped.set()

    def delete(storage, checkpoint_id, *, recycle):
        if recycle:
            dropped.wait(TIMEOUT_S)
        delete_files(storage, checkpoint_id, recycle=recycle)

    monkeypatch.setattr(checkpoint_files, "drop_spares", drop)
    monkeypatch.setattr(checkpoint_files, "delete_files", delete)
    with coordinator(tmp_path / "data", keep_count=1) as started:
        hub = Hub(started)
        given = {"steps": 20, "checkpoint_every": 10}
        assert trainees(hub.address, "keep", worker_id="a", **given).ends() == 0
        expired, _ = states(hub)
        until(lambda: not (folder(hub, tmp_path) / expired).exists(), what="the deletion")
        until(lambda: not (folder(hub, tmp_path) / "spare").exists(), what="the end of spares")


def test_files_of_an_expired_checkpoint_in_use_are_not_reused(tmp_path, trainees):
    settings = {"heartbeat_interval_s": 0.25, "keep_count": 1}
    with coordinator(tmp_path / "data", **settings) as started:
        hub = Hub(started)
        given = {"steps": 10**6, "checkpoint_every": 10, "size": 20_000}
        trainees(hub.address, "keep", worker_id="a", **given)
        until(lambda: "committed" in states(hub).values())
        with CheckpointManager(folder(hub, tmp_path)) as manager, manager.open() as reader:
            reader.slice("sum", [0], [1])  # holds the part open
            until(lambda: states(hub).get(reader.manifest.checkpoint_id) != "committed")
            latest = set()
            until(lambda: latest.add(committed(hub)) or len(latest - {None}) >= 3)
            found = [float(reader.tensor("sum")[-1]), float(reader.tensor("squares")[-1, -1])]
            assert found == value_after(reader.manifest.step)


def test_script_saves_its_step_while_an_automatic_save_waits_for_its_own(hub, spool):
    with strata.join(hub.address, "one", spool_dir=spool, capture=False) as run:
        state = run.restore({"w": np.zeros(4)})
        run.mark_step()
        asked = run._session.ask("request_save", pb.RequestSave(reason="300 s have passed"))
        run._session.answer(asked)
        assert run.save(state)
        (task,) = hub.state.tasks.values()
        until(lambda: [c.step for c in task.checkpoints.values() if c.state == "committed"] == [1])
    assert hub.facts("CheckpointFailed") == []
