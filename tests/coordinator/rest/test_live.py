"""The live view: the full state first, then changes; resumable; one update for all readers, and
none without readers."""

import json
import time

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.sessions.last_heartbeats import LastHeartbeat
from strata.core.tasks.placement import StopTask
from strata.core.workers.worker_lifecycle import RegisterWorker
from tests.coordinator.rest.served import wait_for
from tests.coordinator.rest.test_stream import Reader, stream


def patches(answer):
    return (json.loads(event["data"]) for event in Reader(answer).events())


def until(found, condition):
    """The first patch that satisfies the condition."""
    return next(patch for patch in found if condition(patch))


def beat(coordinator, worker, step):
    seen = LastHeartbeat(worker.incarnation, time.time_ns() // 1_000_000, step=step)
    coordinator.loop.call_soon_threadsafe(coordinator.heartbeats.note, worker.id, seen)


def test_first_patch_has_the_full_state(coordinator, client):
    coordinator.train(3)
    with stream(client, "/api/live") as answer:
        first = next(patches(answer))
    assert first["reset"]
    assert [worker["id"] for worker in first["workers"]] == ["w0", "w1", "w2"]
    assert [dataset["id"] for dataset in first["datasets"]] == ["digits"]
    assert first["totals"]["workers"] == 3
    assert first["coordinator"]["version"] == "1.2.3"
    assert first["metrics"]["total_workers"] == 3


def test_new_facts_and_log_lines_reach_all_readers(coordinator, client):
    coordinator.train(1)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        first = next(found)
        assert first["happened"][-1]["kind"] == "CoordinatorStarted"
        coordinator.submit(RegisterWorker(worker="late", syncs=False))
        patch = until(found, lambda patch: patch.get("happened"))
        fresh = patch["happened"][: -len(first["happened"])]
        assert any("late" in each["summary"] for each in fresh)
        assert patch["happened"] == fresh + first["happened"]
        coordinator.logs.append(LogLine("info", "x" * 1000))
        (line,) = until(found, lambda patch: patch.get("logs"))["logs"]
        assert len(line["message"]) == 400
    assert client.get("/api/dashboard").json()["happened"] == patch["happened"]


def test_heartbeat_becomes_a_patch_of_one_row(coordinator, client):
    _, second = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        next(found)
        beat(coordinator, second, step=41)
        patch = until(found, lambda patch: patch.get("workers"))
    assert [(row["id"], row["current_step"]) for row in patch["workers"]] == [("w1", 41)]
    assert "reset" not in patch
    assert "tasks" not in patch


def test_patches_have_ended_and_removed_rows(coordinator, client):
    workers = coordinator.train(1)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        next(found)
        coordinator.submit(StopTask(task=workers[0].task))
        patch = until(found, lambda patch: patch.get("tasks"))
        assert patch["tasks"][0]["status"] in ("stopping", "stopped")


def test_reader_resumes_after_its_mark(coordinator, client):
    first, _ = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        seen = next(patches(answer))["mark"]
        beat(coordinator, first, step=7)
        with stream(client, "/api/live", headers={"Last-Event-ID": seen}) as again:
            patch = until(patches(again), lambda patch: patch.get("workers"))
    assert "reset" not in patch
    assert patch["workers"][0]["current_step"] == 7


def test_mark_of_another_coordinator_gets_the_full_state(coordinator, client):
    coordinator.train(1)
    with stream(client, "/api/live", headers={"Last-Event-ID": "00000000-5"}) as answer:
        assert next(patches(answer))["reset"]


def test_no_updates_without_readers(coordinator, client):
    coordinator.train(1)
    live = coordinator.guard.app.dependencies["live"].dependency()
    with stream(client, "/api/live") as one, stream(client, "/api/live") as two:
        readers = [patches(one), patches(two)]
        assert all(next(reader)["reset"] for reader in readers)
        assert live._readers == 2
    wait_for(lambda: live._task is None, "the look to end")


def test_queued_task_needs_attention(coordinator, client):
    body = {"name": "big", "worker_count": 4, "entry": "train.py"}
    assert client.post("/api/tasks", json=body).status_code == 201
    [found] = client.get("/api/dashboard").json()["attention"]
    assert found["severity"] == "warning"
    assert found["subject"] == "task:big-1"
    assert "4 slots" in found["text"]
    assert found["hint"]


def test_metrics_history_is_by_column(coordinator, client):
    def columns():
        return client.get("/api/metrics/history").json()

    wait_for(lambda: len(columns()["at"]) >= 2, "two samples")
    found = columns()
    assert len({len(values) for values in found.values()}) == 1
    assert found["at"] == sorted(found["at"])
    assert all(rate >= 0 for rate in found["coordinator_rps"])


def test_newest_facts_are_listed_first(coordinator, client):
    coordinator.train(2)
    newest = client.get("/api/events", params={"newest": True, "limit": 5}).json()
    assert [fact["position"] for fact in newest] == list(
        range(coordinator.position() - 1, coordinator.position() - 6, -1)
    )
    kind = {"newest": True, "kinds": "DatasetRegistered"}
    [registered] = client.get("/api/events", params=kind).json()
    assert registered["fields"]["dataset"] == "digits"


def test_live_view_reports_unreadable_log_lines_and_continues(coordinator, client, caplog):
    worker, _ = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        next(found)
        (coordinator.folder / "lines").rename(coordinator.folder / "elsewhere")
        coordinator.logs.append(LogLine("info", "unseen"))
        patch = until(found, lambda patch: patch.get("attention"))
        [item] = [each for each in patch["attention"] if each["subject"] == "coordinator:logs"]
        assert item["severity"] == "error"
        assert "cannot be read" in item["text"]
        beat(coordinator, worker, step=8)
        assert until(found, lambda patch: patch.get("workers"))["workers"][0]["current_step"] == 8
        (coordinator.folder / "elsewhere").rename(coordinator.folder / "lines")
        patch = until(found, lambda patch: patch.get("attention") == [])
        assert [line["message"] for line in patch["logs"]] == ["unseen"]
    said = [record.message for record in caplog.records if "log lines" in record.message]
    assert len([line for line in said if "cannot be read" in line]) == 1


def test_unreadable_log_lines_are_status_503(coordinator, client):
    coordinator.logs.append(LogLine("info", "unseen"))
    coordinator.logs.flush()
    (coordinator.folder / "lines").rename(coordinator.folder / "elsewhere")
    answer = client.get("/api/logs")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"


def test_failed_update_ends_all_streams_and_readers_get_the_full_state(
    coordinator, client, monkeypatch, caplog
):
    coordinator.train(1)
    with stream(client, "/api/live") as one, stream(client, "/api/live") as two:
        readers = [Reader(one), Reader(two)]
        marks = [next(reader.events())["id"] for reader in readers]

        def fails():
            raise OSError("no more files")

        with monkeypatch.context() as broken:
            broken.setattr(coordinator.api.metrics, "snapshot", fails)
            for reader in readers:
                list(reader.events())  # ends
            with stream(client, "/api/live") as three:
                assert list(Reader(three).events()) == []
    assert any("no more files" in str(record.exc_info) for record in caplog.records)
    with stream(client, "/api/live", headers={"Last-Event-ID": marks[0]}) as again:
        first = next(patches(again))
        assert first["reset"]
        assert first["metrics"]
