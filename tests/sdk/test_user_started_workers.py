"""Tasks without an entry point: the user starts the workers, with only COORDINATOR_ADDR set.

They join the waiting task, and after a loss the others get the lost worker's shards.
"""

import json
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.sdk.harness import CoordinatorProcess, Trainee, until

SCRIPT = Path(__file__).with_name("user_worker.py")
ROWS = 480
SHARDS = 12


class Cluster(CoordinatorProcess):
    """`strata up`, its REST API, and the workers that a user starts."""

    def __init__(self, folder):
        super().__init__(
            folder, heartbeat_interval_s=0.25, heartbeat_timeout_s=5, reattach_grace_s=10
        )
        self.started = []

    def get(self, path, **params):
        found = httpx.get(self.url(path), params=params, trust_env=False)
        return found.raise_for_status().json()

    def post(self, path, **body):
        return httpx.post(self.url(path), json=body, trust_env=False).raise_for_status().json()

    def url(self, path):
        return f"http://127.0.0.1:{self.http_port}/api/{path}"

    def task(self, **asked):
        request = {"name": "resnet", "type": "training", "worker_count": 3, **asked}
        return self.post("tasks", **request)["task_id"]

    def worker(self, scene, **given):
        worker = Trainee(
            self.address, scene, self.folder / "spool", SCRIPT, by_environment=True, **given
        )
        self.started.append(worker)
        return worker

    def shown(self, task):
        return self.get(f"tasks/{task}")

    def shards(self):
        """The number of shards of each worker in /api/workers, and the failed workers."""
        rows = self.get("workers")
        return {row["id"]: row["assigned_shards"] for row in rows}, {
            row["id"] for row in rows if row["status"] == "failed"
        }

    def close(self):
        for worker in self.started:
            worker.kill()
        super().close()


@pytest.fixture
def cluster(tmp_path):
    started = Cluster(tmp_path)
    yield started
    started.close()


@pytest.fixture
def rows(tmp_path):
    """A dataset of numbered rows, in a file."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"index": n}) + "\n" for n in range(ROWS)), "utf-8")
    return file


def crowd(cluster, rows, gate, count=3, **given):
    """Workers that train on the rows with `strata.join`."""
    order = {"data": str(rows), "total": ROWS, "gate": str(gate), **given}
    return [cluster.worker("joined", **order) for _ in range(count)]


def proven_steps(cluster, task):
    return sum(feed["proven"] for feed in cluster.get(f"tasks/{task}/audit")["feeds"])


def test_workers_join_the_waiting_task_and_continue_after_a_loss(cluster, rows, tmp_path):
    task = cluster.task()
    workers = crowd(cluster, rows, tmp_path / "gate")
    joined = [worker.says("joined") for worker in workers]
    assert {each["task"] for each in joined} == {task}
    assert {each["world_size"] for each in joined} == {3}
    for worker in workers:
        worker.says("stepped", count=5)
    before, _ = cluster.shards()
    assert min(before.values()) > 0
    until(lambda: proven_steps(cluster, task) == 5, what="the delivery of the records")
    workers[0].kill()
    lost = joined[0]["worker"]
    until(lambda: lost in cluster.shards()[1], what="the loss")
    until(lambda: cluster.shown(task)["status"] == "running", what="the recovery")
    after, _ = cluster.shards()
    assert after[lost] == 0
    assert all(after[each["worker"]] > before[each["worker"]] for each in joined[1:])
    assert sum(after.values()) == sum(before.values())
    (tmp_path / "gate").touch()
    for worker in workers[1:]:
        assert worker.says("trained")["applied"] == [1] * ROWS
        assert worker.ends() == 0
    until(lambda: cluster.shown(task)["status"] == "completed", what="its end")
    audit = cluster.get(f"tasks/{task}/audit")
    assert audit["verdict"] == "proven", audit
    assert [row["id"] for row in cluster.get("tasks")] == [task]


def test_preview_of_a_run_agrees_with_the_shards_and_their_owners(cluster, rows, tmp_path):
    cluster.task()
    workers = crowd(cluster, rows, tmp_path / "gate")
    for worker in workers:
        worker.says("stepped", count=5)

    def previewed():
        found = cluster.get("datasets/rows/preview", limit=100)
        return found if len({sample["worker_id"] for sample in found}) == 3 else None

    samples = until(previewed, what="samples of all workers")
    shards = cluster.get("datasets/rows/shards", limit=1000)
    assert sum(shard["end_index"] - shard["start_index"] for shard in shards) == ROWS
    owned = Counter(shard["worker_id"] for shard in shards)
    assert owned == cluster.shards()[0]
    for sample in samples:
        shard = shards[sample["shard_id"]]
        assert shard["shard_id"] == sample["shard_id"]
        assert shard["worker_id"] == sample["worker_id"]
        assert shard["start_index"] <= sample["place"] < shard["end_index"]
        assert sample["features"]["index"] == int(sample["id"])
    (tmp_path / "gate").touch()
    assert [worker.ends() for worker in workers] == [0, 0, 0]


def test_worker_lost_without_the_coordinator_is_handled_after_its_restart(cluster, rows, tmp_path):
    task = cluster.task()
    workers = crowd(cluster, rows, tmp_path / "gate")
    for worker in workers:
        worker.says("stepped", count=5)
    cluster.kill()
    (tmp_path / "gate").touch()
    workers[0].kill()
    cluster.start()
    for worker in workers[1:]:
        assert worker.says("trained")["applied"] == [1] * ROWS
        assert worker.ends() == 0
    until(lambda: cluster.shown(task)["status"] == "completed", what="its end")


def test_orchestrator_workers_join_the_waiting_task_and_take_over_the_shards_of_a_lost_one(
    cluster, tmp_path
):
    cluster.post("datasets", dataset_id="numbers", total_samples=1200, shard_size=100)
    task = cluster.task(dataset_id="numbers")
    gate = tmp_path / "gate"
    order = {"dataset": "numbers", "steps": 400, "gate": str(gate)}
    workers = [cluster.worker("called", **order) for _ in range(3)]
    names = [worker.says("joined")["worker"] for worker in workers]
    for worker in workers:
        worker.says("stepped", count=3)
    before, _ = cluster.shards()
    assert before == dict.fromkeys(names, SHARDS // 3)
    assert cluster.shown(task)["status"] == "running"
    workers[0].kill()
    until(lambda: names[0] in cluster.shards()[1], what="the loss")
    after, _ = cluster.shards()
    assert after == {names[0]: 0, names[1]: SHARDS // 2, names[2]: SHARDS // 2}
    last = [worker.says("stepped", count=400) for worker in workers[1:]]
    assert sorted(shard for each in last for shard in each["shards"]) == list(range(SHARDS))
    gate.touch()
    assert [worker.ends() for worker in workers[1:]] == [0, 0]
    until(lambda: cluster.shown(task)["status"] == "completed", what="its end")
    assert [row["id"] for row in cluster.get("tasks")] == [task]


def test_task_with_policy_replace_shows_that_it_waits_for_a_worker(cluster, rows, tmp_path):
    task = cluster.task(policy="replace", worker_count=2)
    assert "start 2 more" in cluster.shown(task)["reason"]
    workers = crowd(cluster, rows, tmp_path / "gate", 2)
    for worker in workers:
        worker.says("stepped", count=5)
    assert cluster.shown(task)["waiting_for"] == ""
    workers[0].kill()
    until(lambda: "start 1 more" in cluster.shown(task)["reason"], what="its reason")
    assert cluster.shown(task)["status"] == "recovering"
    (tmp_path / "gate").touch()
    workers += crowd(cluster, rows, tmp_path / "gate", 1)
    for worker in workers[1:]:
        assert worker.says("trained")["applied"] == [1] * ROWS
        assert worker.ends() == 0
    until(lambda: cluster.shown(task)["status"] == "completed", what="its end")


def test_worker_that_returns_under_its_id_gets_its_seat(cluster, rows, tmp_path):
    task = cluster.task(worker_count=2)
    order = {"data": str(rows), "total": ROWS, "gate": str(tmp_path / "gate")}
    one = cluster.worker("joined", worker_id="a", **order)
    two = cluster.worker("joined", worker_id="b", **order)
    for worker in (one, two):
        worker.says("stepped", count=5)
    one.kill()
    until(lambda: "a" in cluster.shards()[1], what="the loss")
    cluster.task(name="another")
    again = cluster.worker("joined", worker_id="a", **order)
    found = again.says("joined")
    assert (found["worker"], found["task"]) == ("a", task)
    (tmp_path / "gate").touch()
    for worker in (again, two):
        assert worker.says("trained")["applied"] == [1] * ROWS
        assert worker.ends() == 0


def test_worker_that_fits_several_waiting_tasks_is_refused_with_their_names(
    cluster, rows, tmp_path
):
    tasks = [cluster.task(name=name) for name in ("first", "second")]
    (worker,) = crowd(cluster, rows, tmp_path / "gate", 1)
    assert worker.ends() != 0
    said = "".join(worker.output)
    assert all(task in said for task in tasks), said
    assert "STRATA_TASK" in said
    assert cluster.get("workers") == []
