"""The coordinator archives a finished run, in a folder or in object storage; REST and the CLI read
the archive like the log."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from strata.cli import build_app
from strata.coordinator.archive import run_archiver
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.storage.server import BUCKET, running

QUICK = {"heartbeat_interval_s": 0.25, "archive_after_s": 0.5}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(run_archiver, "LOOK_S", 0.1)


def strata(*arguments):
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.output
    return result.output


def trained(hub, trainees) -> str:
    """Run a task with two workers to its end; returns its id."""
    workers = [
        trainees(hub.address, "keep", worker_id=name, world_size=2, steps=8, step_s=0.01)
        for name in "ab"
    ]
    for worker in workers:
        worker.says("ended")
    (task,) = hub.state.tasks
    return task


def archived(hub, task):
    """Wait until the run of a task is listed; returns it."""

    def listed():
        rows = httpx.get(f"{hub.running.http_url}/api/runs").json()
        return [row for row in rows if row["tasks"] == [task]]

    (row,) = until(listed, what="the archive")
    return row


def test_finished_run_is_archived_and_reads_like_the_log(tmp_path, trainees):
    data = tmp_path / "data"
    with coordinator(data, **QUICK) as started:
        hub = Hub(started)
        task = trained(hub, trainees)
        row = archived(hub, task)
        assert row["name"] == f"{task}-{hub.state.cluster}"
        scratch = data / run_archiver.SCRATCH
        until(lambda: not list(scratch.iterdir()), what="the removal of temporary files")

        def asked(path, **params):
            answer = httpx.get(f"{started.http_url}/api/timeline/{path}", params=params)
            assert answer.status_code == 200, answer.text
            return answer.json()

        run = {"run": row["name"]}
        span = asked("span", **run)
        assert (span["facts"], span["worker_events"]) == (row["facts"], row["events"])
        assert not span["live"]
        moment = (span["from_ms"] + span["to_ms"]) / 2
        then, now = asked("at", time_ms=moment, **run), asked("at", time_ms=moment)
        assert then["workers"] == now["workers"] != []
        assert then["tasks"] == now["tasks"]
        kinds = {"kind": "StepFinished", "limit": 1000}
        kept, known = asked("events", **kinds, **run), asked("events", **kinds)
        assert {each["ref"]: each["summary"] for each in kept} == {
            each["ref"]: each["summary"] for each in known
        }
        assert len(kept) == 16
        for question in ("trust", "changed"):
            given = {"question": question} | ({"task": task} if question == "changed" else {})
            assert asked("why", **given, **run)["answer"] == asked("why", **given)["answer"]
        used = asked("usage", node="a", **run)
        assert used["step"][-1] == 7
        assert used["at"] == sorted(used["at"])
        assert asked("story", subject=f"task:{task}", **run)["entries"]
        missing = httpx.get(f"{started.http_url}/api/timeline/span", params={"run": "nothing"})
        assert missing.status_code == 404
    rows = [json.loads(line) for line in strata("runs", str(data), "--json").splitlines()]
    assert [row["archived"] for row in rows] == [False, True]
    assert task in strata("at", "--data", str(data), "--run", task)
    counted = strata("sql", "select count(*) as n from steps", "--data", str(data), "--run", task)
    assert "16" in counted


def test_run_that_ended_without_a_coordinator_is_archived_by_the_next(tmp_path, trainees):
    data = tmp_path / "data"
    with coordinator(data, **QUICK | {"archive_runs": False}) as started:
        task = trained(Hub(started), trainees)
        assert httpx.get(f"{started.http_url}/api/runs").json() == []
    with coordinator(data, **QUICK) as started:
        first = archived(Hub(started), task)
    with coordinator(data, **QUICK) as started:
        assert archived(Hub(started), task) == first


@pytest.mark.slow
def test_runs_are_archived_to_object_storage(tmp_path, trainees, monkeypatch):
    with running(tmp_path / "s3") as settings:
        aws = {
            name: getattr(settings, name)
            for name in settings.__struct_fields__
            if name.startswith("aws_")
        }
        for name, value in aws.items():
            monkeypatch.setenv(name.upper(), str(value))
        where = f"s3://{BUCKET}/runs"
        with coordinator(tmp_path / "data", archive_to=where, **QUICK, **aws) as started:
            hub = Hub(started)
            task = trained(hub, trainees)
            row = archived(hub, task)
            span = httpx.get(
                f"{started.http_url}/api/timeline/span", params={"run": row["name"]}
            ).json()
            assert span["worker_events"] == row["events"] > 0
        assert row["name"] in strata("runs", where)
        assert task in strata("at", "--data", where, "--run", task)
        assert "trust" in strata("why", "--data", where, "--run", task)
