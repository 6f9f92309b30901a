"""The sizes shown of a checkpoint: total, new and stored bytes."""

import logging
import threading

import httpx
import numpy as np
import pytest

import strata
from strata.coordinator.rest.views import state_views
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Checkpoint, Part, Task
from strata.core.workers.heartbeats import Saving
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.storage.server import BUCKET

FROZEN_BYTES = 3_000_000


def save_twice(run):
    """Save two checkpoints of a state that mostly does not change."""
    state = run.restore({"base": np.arange(FROZEN_BYTES // 4, dtype=np.float32), "x": np.zeros(9)})
    for _ in range(2):
        with run.step():
            state["x"] += 1
        run.save()
        run._run_state.saver.wait(None)


def test_checkpoint_shows_its_total_and_new_bytes(hub, spool, caplog):
    caplog.set_level(logging.INFO, "strata.coordinator")
    with strata.join(hub.address, "a", world_size=1, spool_dir=spool, capture=False) as run:
        save_twice(run)
    url = hub.running.http_url
    newest, first = httpx.get(f"{url}/api/checkpoints").json()[:2]
    assert first["size"] == first["size_new"] > FROZEN_BYTES
    assert newest["size"] - newest["size_new"] == FROZEN_BYTES
    assert newest["size_new"] < FROZEN_BYTES / 4
    detail = httpx.get(f"{url}/api/checkpoints/{newest['id']}").json()
    (part,) = detail["written"]
    assert (part["size"], part["size_kept"]) == (newest["size_new"], FROZEN_BYTES)
    verified = httpx.post(f"{url}/api/checkpoints/{newest['id']}/verify").json()
    assert verified["size_verified"] == newest["size"]
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [each for each in lines if each.startswith(f"checkpoint {newest['id']} of step")]
    assert f"saved by worker a to {newest['path']}: " in line
    assert "3.00 MB unchanged, in " in line
    assert line.endswith(" ms")


def test_checkpoint_is_not_shown_as_written_before_its_parts_are_acknowledged():
    task = Task(id="t", spec=TaskSpec(name="t"), submitted_ns=0, members=["a", "b"])
    saved = Checkpoint(
        id="step-00000001-1",
        step=1,
        epoch=0,
        attempt=1,
        generation=1,
        expected=2,
        author="a",
        path="",
        type="full",
        manifest=True,
        created_ns=0,
    )
    heartbeats = Heartbeats()
    assert shown(heartbeats, task, saved) == (0, 0)
    for worker in "ab":
        saving = Saving(checkpoint=saved.id, written_bytes=100, total_bytes=100)
        heartbeats.note(worker, LastHeartbeat(incarnation=1, last_heartbeat_ms=0, saving=saving))
        expected = (99, 0) if worker == "a" else (198, 200)
        assert shown(heartbeats, task, saved) == expected
    saved.parts[0] = Part(worker="a", path="p", size_bytes=100, checksum="")
    assert shown(heartbeats, task, saved) == (199, 200)
    saved.parts[1] = Part(worker="b", path="p", size_bytes=100, checksum="")
    assert shown(heartbeats, task, saved) == (200, 200)


def shown(heartbeats, task, saved):
    found = state_views.checkpoint(heartbeats, task, saved, [])
    return found.size_written, found.size_total


@pytest.fixture
def held(s3):
    """Let three parts of an upload through, and the others when the event is set."""
    may_go, decide = threading.Event(), s3.faults.decide
    first = ("partNumber=1&", "partNumber=2&", "partNumber=3&")

    def hold(method, path):
        if method == "PUT" and "partNumber=" in path and not any(each in path for each in first):
            assert may_go.wait(60)
        return decide(method, path)

    s3.faults.decide = hold
    yield may_go
    may_go.set()


def test_upload_progress_is_what_the_server_has_stored(tmp_path, spool, s3, held, monkeypatch):
    monkeypatch.setenv("STRATA_PROGRESS_INTERVAL_S", "0.1")
    place = {"checkpoint_dir": f"s3://{BUCKET}/runs", "heartbeat_interval_s": 0.25}
    with coordinator(tmp_path / "data", **place, **s3.aws) as started:
        hub = Hub(started)
        checkpoints = f"{hub.running.http_url}/api/checkpoints"
        with strata.join(hub.address, "a", world_size=1, spool_dir=spool, capture=False) as run:
            run.restore({"x": np.random.default_rng(1).random(12_000_000)})
            with run.step():
                pass
            run.save()
            three = 3 * (16 << 20)
            until(
                lambda: [c["size_written"] for c in httpx.get(checkpoints).json()] == [three],
                what="three parts on the server",
            )
            (saved,) = httpx.get(checkpoints).json()
            assert (saved["parts"], saved["status"]) == (0, "in_progress")
            assert saved["size_total"] > 5 * (16 << 20)
            told = facts(hub, run, "CheckpointUploadProgress")
            assert {each.done_bytes for each in told} <= {three // 3, 2 * three // 3, three}
            held.set()
        (saved,) = httpx.get(checkpoints).json()
        assert (saved["status"], saved["size_written"]) == ("completed", saved["size"])


def facts(hub, run, kind):
    """Wait for the worker's facts of a kind; returns them."""

    def stored():
        run._session.flush(1.0)
        return [fact for fact in hub.recorded_facts("a") if type(fact).__name__ == kind]

    return until(stored, what=kind)
