"""Guards the surface that the first documents describe, on a cluster of real processes.

`strata up` with the log filter of the documents, one agent, a dataset that is registered over REST
and a task that is submitted in the documented shape; three workers train, save and meet.
"""

import time

import httpx
import numpy as np
import pytest

from tests.agent.harness import Agent, Api, until
from tests.coordinator.process import process

QUICK = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 10.0, "stop_grace_s": 20.0}
LOG_FILTER = "coordinator=debug,storage=debug,runtime_core=info"
WORKERS = 3
LEVELS = {"error", "warn", "info", "debug"}

TRAINING = """
import sys, time
import numpy as np
import strata

with strata.join(checkpoint_every=20) as run:
    print(f"learning rate {run.config['learning_rate']}, batches of {run.config['batch_size']}")
    print("a word on stderr", file=sys.stderr)
    state = run.restore({"w": np.zeros(200_000)})
    for batch in run.batches("ds-001", batch_size=run.config["batch_size"], epochs=10_000):
        try:
            mean = run.average({"g": batch["x"].mean(axis=0)}, len(batch["x"]))
        except strata.GenerationChanged:
            continue
        state["w"][:4] += mean["g"]
        time.sleep(0.01)
        run.mark_step(loss=0.5)
        if run.save_due():
            run.save(state)
        if run.steps % 20 == 0:
            try:
                run.barrier("every-twenty")
            except strata.StrataError:
                continue
"""


class Cluster:
    """The processes, as a user of the REST API sees them."""

    def __init__(self, folder, coordinator) -> None:
        self.api, self.url = Api(coordinator), coordinator.http_url
        samples = folder / "samples"
        samples.mkdir()
        for number in range(3):
            np.save(samples / f"x-{number}.npy", np.full((100, 4), float(number)))
        self.script = folder / "train.py"
        self.script.write_text(TRAINING, "utf-8")
        dataset = {"dataset_id": "ds-001", "path": str(samples)}
        httpx.post(f"{self.url}/api/datasets", json=dataset).raise_for_status()
        self.task = self.submit(WORKERS)
        until(lambda: self.completed(self.task), "a checkpoint", 60)
        until(lambda: self.get("/metrics")["barrier_latency_p99"] > 0, "a barrier", 60)

    def submit(self, workers):
        """A task in the documented shape, with the script to run."""
        return self.api.submit(
            self.script,
            workers,
            name="imagenet-resnet50",
            type="training",
            dataset_id="ds-001",
            config={"learning_rate": 0.001, "batch_size": 4},
        )

    def get(self, path, **params):
        return self.api.get(path, **params)

    def completed(self, task):
        found = self.get("/checkpoints", task_id=task)
        return [each for each in found if each["status"] == "completed"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("surface")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUST_LOG", LOG_FILTER)
        patch.delenv("STRATA_LOG", raising=False)
        with process(folder, **QUICK) as coordinator:
            agent = Agent(folder, coordinator.address, WORKERS + 1)
            try:
                yield Cluster(folder, coordinator)
            finally:
                agent.close()


def test_status_tells_health_and_uptime(cluster):
    status = cluster.get("/status")
    assert status["connected"] is True
    assert status["mode"] == "live"
    until(lambda: cluster.get("/status")["uptime"] > status["uptime"], "a later uptime")
    assert cluster.get("/health")["status"] == "ok"


def test_task_in_the_documented_shape_trains_with_its_config(cluster):
    task = cluster.get(f"/tasks/{cluster.task}")
    assert (task["name"], task["type"]) == ("imagenet-resnet50", "training")
    assert task["dataset_id"] == "ds-001"
    assert task["status"] == "running"
    assert len(task["worker_ids"]) == 3
    assert cluster.api.lines(search="learning rate 0.001, batches of 4")


def test_every_worker_is_shown_with_status_place_and_heartbeat(cluster):
    workers = cluster.get("/workers")
    assert {each["id"] for each in workers} == {f"{cluster.task}-w{n}" for n in range(3)}
    for each in workers:
        assert each["status"] in ("active", "checkpointing")
        assert abs(each["last_heartbeat"] - time.time() * 1000) < 60_000
        assert each["current_task"] == cluster.task
        assert each["gpu_count"] >= 0
        assert each["ip"]
        assert each["current_epoch"] >= 0

    def beats(workers):
        return {each["id"]: (each["last_heartbeat"], each["current_step"]) for each in workers}

    before = beats(workers)
    until(
        lambda: all(
            now[0] > before[name][0] and now[1] > before[name][1]
            for name, now in beats(cluster.get("/workers")).items()
        ),
        "later heartbeats with later steps",
    )


def test_every_worker_reports_its_resources(cluster):
    def measured():
        found = [each["resources"] for each in cluster.get("/workers")]
        return found if all(each and each["cpu_percent"] > 0 for each in found) else None

    for resources in until(measured, "use of the CPU by each worker"):
        assert resources["memory_used_bytes"] > 1_000_000
        assert isinstance(resources["gpu_metrics"], list)
        for name in ("disk_read", "disk_write", "network_rx", "network_tx"):
            assert resources[f"{name}_bytes"] >= 0
    assert any(each["resources"]["disk_write_bytes"] > 0 for each in cluster.get("/workers"))


def test_metrics_of_a_run_are_measured(cluster):
    metrics = until(
        lambda: (found := cluster.get("/metrics"))["checkpoint_throughput"] and found,
        "a measured throughput",
    )
    assert metrics["checkpoint_throughput"] > 0
    assert metrics["coordinator_rps"] > 0
    assert metrics["active_workers"] == 3
    assert metrics["barrier_latency_p99"] > 0
    assert metrics["shard_assignment_time"] > 0
    page = httpx.get(f"{cluster.url}/metrics").text
    assert "strata_active_workers 3" in page


def test_dashboard_answer_holds_the_whole_system(cluster):
    state = cluster.get("/dashboard")
    assert {"coordinator", "workers", "datasets", "checkpoints", "barriers"} <= state.keys()
    assert {"metrics", "tasks", "logs"} <= state.keys()
    assert [each["id"] for each in state["datasets"]] == ["ds-001"]
    assert cluster.task in [each["id"] for each in state["tasks"]]
    assert len(state["workers"]) == 3
    assert state["checkpoints"]
    assert state["logs"]


def test_checkpoint_is_listed_with_path_size_and_author(cluster):
    newest = cluster.completed(cluster.task)[0]
    assert newest["size"] > 0
    assert newest["path"]
    assert newest["worker_id"] in {f"{cluster.task}-w{n}" for n in range(3)}
    assert newest["step"] > 0
    steps = [each["step"] for each in cluster.get("/checkpoints", task_id=cluster.task)]
    assert steps == sorted(steps, reverse=True)


def test_logs_of_all_sources_are_one_list_of_structured_entries(cluster):
    until(lambda: len(cluster.get("/logs")) == 100, "a hundred lines")
    entries = cluster.get("/logs", limit=1000)
    assert {each["source"] for each in entries} >= {"coordinator", "worker"}
    for each in entries:
        assert each.keys() >= {"id", "timestamp", "level", "message", "source"}
        assert each.keys() >= {"task_id", "worker_id"}
        assert each["id"].startswith("log_")
        assert each["level"] in LEVELS
    assert len(cluster.get("/logs", limit=7)) == 7


def test_logs_of_a_task_hold_stdout_and_stderr_of_its_workers(cluster):
    entries = cluster.get(f"/tasks/{cluster.task}/logs", limit=1000)
    assert {each["task_id"] for each in entries} == {cluster.task}
    for text in ("learning rate", "a word on stderr"):
        until(
            lambda text=text: (
                {each["worker_id"] for each in cluster.get("/logs", search=text, limit=100)}
                == {f"{cluster.task}-w{n}" for n in range(3)}
            ),
            f"{text!r} of every worker",
        )
    name = f"{cluster.task}-w1"
    assert {each["worker_id"] for each in cluster.get("/logs", worker_id=name)} == {name}


def test_log_filter_of_the_documents_shows_how_shards_moved(cluster):
    moved = cluster.get("/logs", search="parts of ds-001 moved", limit=10)
    assert moved
    assert {(each["level"], each["source"]) for each in moved} == {("debug", "coordinator")}


def test_preview_shows_samples_that_workers_process(cluster):
    samples = until(lambda: cluster.get("/datasets/ds-001/preview"), "samples in progress")
    workers = {f"{cluster.task}-w{n}" for n in range(3)}
    assert {each["worker_id"] for each in samples} <= workers
    assert all(each["features"] for each in samples)


def test_barriers_are_listed_with_their_arrivals(cluster):
    found = [each for each in cluster.get("/barriers") if each["name"] == "every-twenty"]
    assert found
    for each in found:
        assert each["status"] in ("waiting", "released", "failed")
        assert 0 <= each["arrived"] <= each["total"] == 3


def test_stop_lets_workers_save_first(cluster):
    task = cluster.submit(1)
    until(lambda: cluster.api.task(task)["committed_steps"] > 5, "steps")
    cluster.api.post(f"/tasks/{task}/stop")
    ended = cluster.api.reaches(task, "stopped")
    assert cluster.completed(task)[0]["step"] == ended["committed_steps"]
