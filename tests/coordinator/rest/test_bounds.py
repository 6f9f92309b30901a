"""Size of answers for a large cluster."""

import pytest

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.rest.routes.cluster_routes import DASHBOARD_BYTES
from strata.coordinator.sessions.last_heartbeats import LastHeartbeat
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.worker_lifecycle import RegisterWorker
from tests.coordinator.rest.served import Coordinator


@pytest.fixture(scope="module", params=[1000, pytest.param(10_000, marks=pytest.mark.slow)])
def crowd(request, tmp_path_factory):
    """Workers with long names and large heartbeats that wait at barriers."""
    with Coordinator(tmp_path_factory.mktemp("crowd"), memory=True) as coordinator:
        registered = []
        for first in range(0, request.param, 1000):
            registered += coordinator.submit(
                *(
                    RegisterWorker(
                        worker=f"{'host-with-a-long-name-' * 4}{number:05d}",
                        world_size=request.param,
                        hostname="a" * 60,
                        gpu_count=8,
                    )
                    for number in range(first, first + 1000)
                )
            )
        cards = [GpuMetrics(index, "NVIDIA H200", 99.5, 10**11, 10**11) for index in range(8)]
        used = ResourceMetrics(cpu_percent=99.9, memory_used_bytes=10**12, gpu_metrics=cards)
        for worker in registered:
            coordinator.heartbeats.note(
                worker.id, LastHeartbeat(worker.incarnation, 10**12, 10**6, 9, used)
            )
        coordinator.submit(
            *(
                ArriveAtBarrier(
                    worker=registered[0].id,
                    incarnation=registered[0].incarnation,
                    barrier=f"barrier-{number}",
                    request=number,
                )
                for number in range(200)
            ),
            *(SubmitTask(spec=TaskSpec(name="n" * 5000, entry="x")) for _ in range(300)),
        )
        coordinator.logs.extend(LogLine("info", "long " * 10_000) for _ in range(200))
        coordinator.workers = request.param
        yield coordinator


@pytest.fixture
def client(crowd):
    with crowd.client() as client:
        yield client


def test_dashboard_stays_below_256_kb(crowd, client):
    answer = client.get("/api/dashboard")
    assert DASHBOARD_BYTES // 4 < len(answer.content) <= DASHBOARD_BYTES
    state = answer.json()
    assert state["totals"]["workers"] == crowd.workers
    assert state["totals"]["workers_by_status"]["idle"] == crowd.workers
    assert state["totals"]["barriers"] == 200
    assert state["totals"]["tasks"] == 301
    assert all(state[name] for name in ("workers", "tasks", "barriers", "logs"))


def test_paging_reaches_every_worker(crowd, client):
    seen, cursor = set(), ""
    while True:
        answer = client.get("/api/workers", params={"limit": 1000, "cursor": cursor})
        seen |= {worker["id"] for worker in answer.json()}
        assert answer.headers["X-Total-Count"] == str(crowd.workers)
        cursor = answer.headers.get("X-Next-Cursor")
        if cursor is None:
            break
    assert len(seen) == crowd.workers


def test_lists_of_names_are_cut_and_counted(crowd, client):
    [barrier] = client.get("/api/barriers", params={"limit": 1}).json()
    assert barrier["missing_total"] == crowd.workers - 1
    assert len(barrier["missing"]) == 100
    task = client.get("/api/tasks/default-1").json()
    assert task["worker_ids_total"] == crowd.workers
    assert len(task["worker_ids"]) == 100


def test_answers_with_large_facts_are_bounded(crowd, client):
    answer = client.get("/api/events", params={"position": crowd.workers, "limit": 1000})
    assert len(answer.content) < 6 * 1024 * 1024
    assert answer.json()
