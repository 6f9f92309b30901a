"""Guards the commands of the first documents: `curl` as written there, on a real coordinator."""

import json
import subprocess

import pytest

from strata import TrainingOrchestrator
from tests.coordinator.process import process
from tests.programs import program
from tests.sdk.harness import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with process(tmp_path_factory.mktemp("curl")) as coordinator:
        yield coordinator


def shell(coordinator, command):
    """Run a command of the documents; only the address of the coordinator is replaced."""
    program("curl")
    written = command.replace("http://localhost:3000", coordinator.http_url)
    ended = subprocess.run(
        [
            "/bin/sh",
            "-c",
            written.replace("curl ", "curl --silent --fail-with-body --noproxy '*' "),
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def test_curl_lists_the_workers(cluster):
    with TrainingOrchestrator(cluster.address) as worker:
        worker.register_worker("worker-01", gpu_count=4)
        [shown] = shell(cluster, "curl http://localhost:3000/api/workers")
        assert (shown["id"], shown["gpu_count"]) == ("worker-01", 4)


def test_curl_stops_a_task(cluster):
    with TrainingOrchestrator(cluster.address) as worker:
        worker.register_worker("worker-02")
        [running] = [
            task
            for task in shell(cluster, "curl http://localhost:3000/api/tasks")
            if task["status"] == "running"
        ]
        shell(cluster, f"curl -X POST http://localhost:3000/api/tasks/{running['id']}/stop")
        assert until(lambda: worker.heartbeat().commands) == ["stop"]


@pytest.mark.parametrize(
    "path",
    ["metrics", "logs", "logs?limit=100", "dashboard", "status", "workers", "tasks", "checkpoints"],
)
def test_curl_reads_every_endpoint_of_the_documents(cluster, path):
    assert shell(cluster, f"curl 'http://localhost:3000/api/{path}'") is not None


def test_curl_submits_the_task_of_the_documents_and_reads_its_logs(cluster):
    body = {
        "name": "imagenet-resnet50",
        "type": "training",
        "dataset_id": "ds-001",
        "worker_count": 8,
        "config": {"learning_rate": 0.001, "batch_size": 32},
    }
    dataset = json.dumps({"id": "ds-001", "total_samples": 1281167, "shard_size": 10000})
    post = "curl -X POST -H 'Content-Type: application/json'"
    shell(cluster, f"{post} -d '{dataset}' http://localhost:3000/api/datasets")
    task = shell(cluster, f"{post} -d '{json.dumps(body)}' http://localhost:3000/api/tasks")
    logs = shell(cluster, f"curl http://localhost:3000/api/tasks/{task['task_id']}/logs")
    assert {entry["task_id"] for entry in logs} == {task["task_id"]}
    shell(cluster, f"curl -X POST http://localhost:3000/api/tasks/{task['task_id']}/stop")
