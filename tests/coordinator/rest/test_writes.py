"""Requests that change something: their effects, and the errors of invalid ones."""

from contextlib import suppress

import httpx
import pytest

from strata.core.workers.host_agents import RegisterAgent
from tests.coordinator.rest.served import Coordinator

DATASET = {"dataset_id": "digits", "total_samples": 100, "shard_size": 10}
JSON = {"Content-Type": "application/json"}


def error(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert answer.json()["error"].keys() == {"code", "message", "hint"}
    return answer.json()["error"]


def test_dataset_is_registered_once(client):
    first = client.post("/api/datasets", json=DATASET)
    assert first.status_code == 201
    assert first.json()["shard_count"] == 10
    assert client.post("/api/datasets", json=DATASET).json() == first.json()
    assert error(client.post("/api/datasets", json=DATASET | {"seed": 1}), 409)["code"] == (
        "already_exists"
    )
    [listed] = client.get("/api/datasets").json()
    assert listed == first.json()


def test_task_with_entry_waits_for_slots(coordinator, client):
    client.post("/api/datasets", json=DATASET)
    body = {
        "name": "imagenet-resnet50",
        "type": "training",
        "dataset_id": "digits",
        "worker_count": 8,
        "config": {"learning_rate": 0.001, "batch_size": 32},
        "entry": "train.py",
        "args": ["--fast"],
        "policy": "continue",
        "min_workers": 4,
    }
    created = client.post("/api/tasks", json=body)
    assert created.status_code == 201
    assert created.json() == {"task_id": "imagenet-resnet50-1", "status": "queued"}
    task = client.get("/api/tasks/imagenet-resnet50-1").json()
    assert task["config"] == body["config"]
    assert task["reason"] == "1st in the queue; needs 8 slots, no agent is up"
    [listed] = client.get("/api/tasks").json()
    assert listed["reason"] == task["reason"]
    assert (task["entry"], task["args"], task["policy"]) == ("train.py", ["--fast"], "continue")
    coordinator.submit(RegisterAgent(agent="host", slots=8))
    assert client.get("/api/tasks/imagenet-resnet50-1").json()["status"] == "starting"


def test_agent_is_declared_lost_unless_connected(coordinator, client):
    coordinator.submit(RegisterAgent(agent="host", slots=1))
    coordinator.agents_connected.add("host")
    why = {"reason": "its node died"}
    assert error(client.post("/api/agents/host/lost", json=why), 409)["code"] == "not_allowed_now"
    coordinator.agents_connected.clear()
    assert client.post("/api/agents/host/lost", json=why).json() == {"agent_id": "host"}
    [agent] = client.get("/api/agents").json()
    assert (agent["up"], agent["reason"]) == (False, "its node died")
    assert error(client.post("/api/agents/nobody/lost", json=why), 404)["code"] == "not_found"


def test_task_without_entry_waits_for_external_workers(client):
    body = {"name": "n", "type": "training", "dataset_id": "", "worker_count": 2, "config": {}}
    assert client.post("/api/tasks", json=body).json()["status"] == "starting"
    assert client.get("/api/tasks/n-1").json()["external"] is True


def test_stopping_a_task_twice_changes_nothing(coordinator, client):
    worker, _ = coordinator.train(2)
    stopped = {"success": True, "task_id": worker.task, "status": "stopping"}
    assert client.post(f"/api/tasks/{worker.task}/stop").json() == stopped
    position = coordinator.position()
    assert client.post(f"/api/tasks/{worker.task}/stop").json() == stopped
    assert coordinator.position() == position


def test_ended_task_is_restarted_with_given_environment(client):
    body = {"name": "n", "entry": "train.py", "env": {"KEY": "secret"}, "keep_count": 3}
    first = client.post("/api/tasks", json=body).json()["task_id"]
    restart = f"/api/tasks/{first}/restart"
    assert "KEY" in error(client.post(restart, json={}), 400)["message"]
    assert error(client.post(restart, json={"env": body["env"]}), 409)["code"] == "not_allowed_now"
    client.post(f"/api/tasks/{first}/stop")
    again = client.post(restart, json={"env": body["env"]})
    assert (again.status_code, again.json()) == (201, {"task_id": "n-2", "status": "queued"})
    asked = [client.get(f"/api/tasks/{task}").json() for task in (first, "n-2")]
    for field in ("name", "entry", "env_names", "keep_count"):
        assert asked[0][field] == asked[1][field]


def test_task_with_external_workers_cannot_be_restarted(client):
    task = client.post("/api/tasks", json={"name": "n"}).json()["task_id"]
    client.post(f"/api/tasks/{task}/stop")
    assert "started" in error(client.post(f"/api/tasks/{task}/restart", json={}), 400)["message"]


def test_task_is_resized(client):
    task = client.post("/api/tasks", json={"name": "n", "worker_count": 2}).json()["task_id"]
    answer = client.post(f"/api/tasks/{task}/resize", json={"worker_count": 5})
    wanted = {"task_id": task, "before": 2, "after": 5, "placed": 0, "waiting": 5, "changed": True}
    assert (answer.status_code, answer.json() | wanted) == (200, answer.json())
    assert client.get(f"/api/tasks/{task}").json()["worker_count"] == 5
    again = client.post(f"/api/tasks/{task}/resize", json={"worker_count": 5})
    assert not again.json()["changed"]
    answer = client.post(f"/api/tasks/{task}/resize", json={"worker_count": 4, "min_workers": 1})
    shown = client.get(f"/api/tasks/{task}").json()
    assert (answer.status_code, shown["elastic"], shown["min_workers"]) == (200, True, 1)


@pytest.mark.parametrize("workers", [0, -1, 1_000_000])
def test_resize_to_an_impossible_number_is_refused(client, workers):
    task = client.post("/api/tasks", json={"name": "n"}).json()["task_id"]
    refused = client.post(f"/api/tasks/{task}/resize", json={"worker_count": workers})
    assert f"worker_count is {workers}" in error(refused, 400)["message"]


def test_ended_task_is_not_resized(client):
    task = client.post("/api/tasks", json={"name": "n"}).json()["task_id"]
    client.post(f"/api/tasks/{task}/stop")
    refused = error(client.post(f"/api/tasks/{task}/resize", json={"worker_count": 2}), 409)
    assert "strata continue" in refused["hint"]


def test_checkpoint_is_requested(coordinator, client):
    worker, _ = coordinator.train(2)
    answer = client.post(f"/api/tasks/{worker.task}/checkpoint")
    assert (answer.status_code, answer.json()["request"]) == (202, 1)
    assert client.get("/api/events", params={"kinds": "CheckpointRequested"}).json()


def test_ended_task_cannot_be_saved(client):
    task = client.post("/api/tasks", json={"name": "n"}).json()["task_id"]
    assert client.post(f"/api/tasks/{task}/stop").json()["status"] == "stopped"
    assert error(client.post(f"/api/tasks/{task}/checkpoint"), 409)["code"] == "not_allowed_now"


@pytest.mark.parametrize("action", ["stop", "checkpoint"])
def test_unknown_task_is_not_found(client, action):
    assert error(client.post(f"/api/tasks/none/{action}"), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"worker_count": 0}, "worker_count"),
        ({"worker_count": "2"}, "worker_count"),
        ({"worker_count": 2.5}, "worker_count"),
        ({"worker_count": 10**30}, "worker_count"),
        ({"worker_count": 20_000}, "worker_count"),
        ({"min_workers": 3}, "min_workers"),
        ({"policy": "hope"}, "policy"),
        ({"type": "nonsense"}, "type"),
        ({"keep_count": -1}, "keep_count"),
        ({"keep_every": -1}, "keep_every"),
        ({"keep_best": "max:"}, "keep_best"),
        ({"keep_best_count": 0}, "keep_best_count"),
        ({"name": ""}, "name"),
        ({"name": "  "}, "name"),
        ({"config": []}, "config"),
        ({"env": {"A": 1}}, "env"),
        ({"args": ["a", 1]}, "args[1]"),
        ({"nmae": "x"}, "nmae"),
    ],
)
def test_invalid_task_field_is_named(client, change, named):
    fault = error(client.post("/api/tasks", json={"name": "n"} | change), 400)
    assert named in fault["message"]
    assert fault["code"] == "invalid_argument"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"total_samples": 0}, "total_samples"),
        ({"shard_size": 101}, "shard_size"),
        ({"total_samples": 10**15, "shard_size": 1}, "shard_size"),
        ({"dataset_id": "a/b"}, "dataset_id"),
        ({"dataset_id": ""}, "dataset_id"),
        ({"shuffle": "yes"}, "shuffle"),
    ],
)
def test_invalid_dataset_field_is_named(client, change, named):
    assert named in error(client.post("/api/datasets", json=DATASET | change), 400)["message"]


def test_missing_field_is_named(client):
    assert "name" in error(client.post("/api/tasks", json={}), 400)["message"]
    assert (
        "dataset"
        in error(client.post("/api/tasks", json={"name": "n", "dataset_id": "x"}), 404)["message"]
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"name": "n"} {}',
        b"\xff\xfe",
        b'{"name": "\xff"}',
        b'{"name": "\\ud800"}',
        b'{"name": NaN}',
        b'{"name": "n", "config": ' + b"[" * 100_000 + b"}",
        b'{"name": "n", "config": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ],
)
def test_invalid_body_is_refused(client, body):
    fault = error(client.post("/api/tasks", content=body, headers=JSON), 400)
    assert fault["code"] == "invalid_argument"
    assert client.get("/api/tasks").json() == []


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_form_body_is_refused(client, media_type):
    headers = {"Content-Type": media_type} if media_type else {}
    fault = error(client.post("/api/tasks", content=b'{"name": "n"}', headers=headers), 400)
    assert "application/json" in fault["hint"]


def test_large_body_is_refused_before_it_is_read(client):
    body = b'{"name": "' + b"x" * (1024 * 1024) + b'"}'
    assert error(client.post("/api/tasks", content=body, headers=JSON), 413)["code"] == (
        "limit_exceeded"
    )


def test_large_body_without_length_is_refused(client):
    pieces = (b"x" * 65_536 for _ in range(64))
    # The answer may arrive, and the connection close, while the rest is being sent.
    with suppress(httpx.WriteError):
        error(client.post("/api/tasks", content=pieces, headers=JSON), 413)
    assert client.get("/api/tasks").json() == []


def test_large_config_is_refused(client):
    fault = error(client.post("/api/tasks", json={"name": "n", "config": {"a": "x" * 70_000}}), 413)
    assert "config" in fault["message"]


def test_framework_errors_have_the_same_structure(client):
    assert error(client.get("/api/nothing"), 404)["code"] == "not_found"
    assert error(client.get("/nothing"), 404)["code"] == "not_found"
    answer = client.delete("/api/tasks")
    assert "DELETE" in error(answer, 405)["message"]
    assert {"GET", "POST"} <= set(answer.headers["Allow"].split(", "))


def test_rest_writes_survive_a_restart(tmp_path):
    with Coordinator(tmp_path) as coordinator, coordinator.client() as client:
        client.post("/api/tasks", json={"name": "n"})
    with Coordinator(tmp_path) as coordinator, coordinator.client() as client:
        assert [task["id"] for task in client.get("/api/tasks").json()] == ["n-1"]
        assert client.get("/api/status").json()["incarnation"] == 2
