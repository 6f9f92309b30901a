"""Pins and reasons of checkpoints in the API: what is shown is what retention does."""

from strata.coordinator.rest.views.state_views import METRICS_SHOWN
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from tests.coordinator.rest.test_reads import acknowledge, save


def saved(coordinator, worker, step, **metrics):
    checkpoint = save(coordinator, worker, step)
    coordinator.submit(acknowledge(worker, checkpoint, metrics=metrics))
    return checkpoint.id


def worker_of(coordinator, **spec):
    """The only worker of a task, which trains."""
    asked = TaskSpec(name="kept", external=True, policy="continue", **spec)
    coordinator.submit(SubmitTask(spec=asked))
    (worker,) = coordinator.train(1)
    return worker


def reasons(client):
    return {each["step"]: each["kept_because"] for each in client.get("/api/checkpoints").json()}


def test_pinned_checkpoint_is_kept_until_it_is_released(coordinator, client):
    worker = worker_of(coordinator, keep_count=1)
    old = saved(coordinator, worker, 1)
    path = f"/api/checkpoints/{old}/pin"
    pinned = client.post(path, json={"note": "for the paper"}).raise_for_status().json()
    assert pinned["kept_because"] == ["newest", "pinned: for the paper"]
    saved(coordinator, worker, 2)
    assert reasons(client) == {2: ["newest"], 1: ["pinned: for the paper"]}
    refused = client.delete(f"/api/checkpoints/{old}")
    assert refused.status_code == 409
    assert "for the paper" in refused.json()["error"]["message"]
    assert client.post(path).json()["kept_because"] == ["pinned"], "a body is not needed"
    assert client.delete(path).json()["kept_because"] == [], "it is deleted"
    assert reasons(client) == {2: ["newest"]}
    assert client.delete(path).status_code == 404


def test_only_completed_checkpoints_are_pinned(coordinator, client):
    worker = worker_of(coordinator)
    begun = save(coordinator, worker, 1)
    assert client.post(f"/api/checkpoints/{begun.id}/pin", json={}).status_code == 409
    assert client.post("/api/checkpoints/none/pin", json={}).status_code == 404


def test_checkpoints_have_their_metrics_and_the_metric_of_the_best(coordinator, client):
    worker = worker_of(coordinator, keep_best="max:z")
    many = {f"m{number:02}": 1.0 for number in range(METRICS_SHOWN + 2)}
    first = saved(coordinator, worker, 1, **many, z=0.5)
    saved(coordinator, worker, 2)
    newest, oldest = client.get("/api/checkpoints").json()
    assert (newest["keep_best"], newest["metrics"]) == ("max:z", {})
    assert (len(oldest["metrics"]), oldest["metrics_total"]) == (METRICS_SHOWN, METRICS_SHOWN + 3)
    assert next(iter(oldest["metrics"].items())) == ("z", 0.5)
    detail = client.get(f"/api/checkpoints/{first}").json()
    assert detail["metrics"] == {**many, "z": 0.5}
    assert detail["kept_because"] == ["2 of 5 newest", "best z 0.5"]


def test_task_says_which_checkpoints_it_keeps(client):
    asked = {"name": "n", "keep_count": 3, "keep_every": 100, "keep_best": "loss"}
    task = client.post("/api/tasks", json=asked).raise_for_status().json()["task_id"]
    told = client.get(f"/api/tasks/{task}").json()
    assert {name: told[name] for name in asked} == asked
    assert told["keep_best_count"] == 1
