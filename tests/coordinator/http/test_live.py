"""Guards the stream of patches that the page lives on: everything first, then only what changed,
resumable, one look for all readers, and none while nobody reads."""

import json
import time

from strata.coordinator.logs import Line
from strata.coordinator.observed import Seen
from strata.core.scheduling import StopTask
from strata.core.workers import RegisterWorker
from tests.coordinator.http.served import wait_for
from tests.coordinator.http.test_stream import Reader, stream


def patches(answer):
    return (json.loads(event["data"]) for event in Reader(answer).events())


def until(found, condition):
    """The first patch that satisfies the condition."""
    return next(patch for patch in found if condition(patch))


def beat(coordinator, worker, step):
    seen = Seen(worker.incarnation, time.time_ns() // 1_000_000, step=step)
    coordinator.loop.call_soon_threadsafe(coordinator.observed.note, worker.id, seen)


def test_the_first_patch_holds_everything(coordinator, client):
    coordinator.train(3)
    with stream(client, "/api/live") as answer:
        first = next(patches(answer))
    assert first["reset"]
    assert [worker["id"] for worker in first["workers"]] == ["w0", "w1", "w2"]
    assert [dataset["id"] for dataset in first["datasets"]] == ["digits"]
    assert first["totals"]["workers"] == 3
    assert first["coordinator"]["version"] == "1.2.3"
    assert first["metrics"]["total_workers"] == 3


def test_what_happens_and_what_is_said_is_told_to_all(coordinator, client):
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
        coordinator.logs.append(Line("info", "x" * 1000))
        (line,) = until(found, lambda patch: patch.get("logs"))["logs"]
        assert len(line["message"]) == 400
    assert client.get("/api/dashboard").json()["happened"] == patch["happened"]


def test_a_beat_becomes_a_patch_of_one_row(coordinator, client):
    _, second = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        next(found)
        beat(coordinator, second, step=41)
        patch = until(found, lambda patch: patch.get("workers"))
    assert [(row["id"], row["current_step"]) for row in patch["workers"]] == [("w1", 41)]
    assert "reset" not in patch
    assert "tasks" not in patch


def test_what_ended_is_told_and_what_is_gone_is_named(coordinator, client):
    workers = coordinator.train(1)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        next(found)
        coordinator.submit(StopTask(task=workers[0].task))
        patch = until(found, lambda patch: patch.get("tasks"))
        assert patch["tasks"][0]["status"] in ("stopping", "stopped")


def test_a_reader_goes_on_where_it_was(coordinator, client):
    first, _ = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        seen = next(patches(answer))["mark"]
        beat(coordinator, first, step=7)
        with stream(client, "/api/live", headers={"Last-Event-ID": seen}) as again:
            patch = until(patches(again), lambda patch: patch.get("workers"))
    assert "reset" not in patch
    assert patch["workers"][0]["current_step"] == 7


def test_a_mark_of_another_coordinator_begins_anew(coordinator, client):
    coordinator.train(1)
    with stream(client, "/api/live", headers={"Last-Event-ID": "00000000-5"}) as answer:
        assert next(patches(answer))["reset"]


def test_nobody_looks_while_nobody_reads(coordinator, client):
    coordinator.train(1)
    live = coordinator.guard.app.dependencies["live"].dependency()
    with stream(client, "/api/live") as one, stream(client, "/api/live") as two:
        readers = [patches(one), patches(two)]
        assert all(next(reader)["reset"] for reader in readers)
        assert live._readers == 2
    wait_for(lambda: live._task is None, "the look to end")


def test_a_queued_task_needs_attention(coordinator, client):
    body = {"name": "big", "worker_count": 4, "entry": "train.py"}
    assert client.post("/api/tasks", json=body).status_code == 201
    [found] = client.get("/api/dashboard").json()["attention"]
    assert found["severity"] == "warning"
    assert found["subject"] == "task:big-1"
    assert "4 slots" in found["text"]
    assert found["hint"]


def test_history_is_by_column(coordinator, client):
    def columns():
        return client.get("/api/metrics/history").json()

    wait_for(lambda: len(columns()["at"]) >= 2, "two samples")
    found = columns()
    assert len({len(values) for values in found.values()}) == 1
    assert found["at"] == sorted(found["at"])
    assert all(rate >= 0 for rate in found["coordinator_rps"])


def test_newest_facts_come_first(coordinator, client):
    coordinator.train(2)
    newest = client.get("/api/events", params={"newest": True, "limit": 5}).json()
    assert [fact["position"] for fact in newest] == list(
        range(coordinator.position() - 1, coordinator.position() - 6, -1)
    )
    kind = {"newest": True, "kinds": "DatasetRegistered"}
    [registered] = client.get("/api/events", params=kind).json()
    assert registered["fields"]["dataset"] == "digits"


def test_unreadable_log_lines_are_reported_and_the_rest_goes_on(coordinator, client, caplog):
    worker, _ = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        next(found)
        (coordinator.folder / "lines").rename(coordinator.folder / "elsewhere")
        coordinator.logs.append(Line("info", "unseen"))
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


def test_log_lines_that_cannot_be_read_are_a_503(coordinator, client):
    coordinator.logs.append(Line("info", "unseen"))
    coordinator.logs.flush()
    (coordinator.folder / "lines").rename(coordinator.folder / "elsewhere")
    answer = client.get("/api/logs")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"


def test_failed_look_ends_every_stream_and_the_next_one_begins_anew(
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
