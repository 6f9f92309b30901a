"""Guards that answers stay small however large the cluster is."""

import pytest

from strata.coordinator.http.cluster import DASHBOARD_BYTES
from strata.coordinator.logs import Line
from strata.coordinator.observed import Seen
from strata.core.barriers import ArriveAtBarrier
from strata.core.resources import GpuMetrics, ResourceMetrics
from strata.core.scheduling import SubmitTask
from strata.core.tasks import TaskSpec
from strata.core.workers import RegisterWorker
from tests.coordinator.http.served import Coordinator


@pytest.fixture(scope="module", params=[1000, pytest.param(10_000, marks=pytest.mark.slow)])
def crowd(request, tmp_path_factory):
    """Workers with long names and full beats, who wait for one another."""
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
            coordinator.observed.note(worker.id, Seen(worker.incarnation, 10**12, 10**6, 9, used))
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
        coordinator.logs.extend(Line("info", "long " * 10_000) for _ in range(200))
        coordinator.workers = request.param
        yield coordinator


@pytest.fixture
def client(crowd):
    with crowd.client() as client:
        yield client


def test_the_dashboard_stays_below_256_kb(crowd, client):
    answer = client.get("/api/dashboard")
    assert DASHBOARD_BYTES // 4 < len(answer.content) <= DASHBOARD_BYTES
    state = answer.json()
    assert state["totals"]["workers"] == crowd.workers
    assert state["totals"]["workers_by_status"]["idle"] == crowd.workers
    assert state["totals"]["barriers"] == 200
    assert state["totals"]["tasks"] == 301
    assert all(state[name] for name in ("workers", "tasks", "barriers", "logs"))


def test_every_worker_is_reached_by_pages(crowd, client):
    seen, cursor = set(), ""
    while True:
        answer = client.get("/api/workers", params={"limit": 1000, "cursor": cursor})
        seen |= {worker["id"] for worker in answer.json()}
        assert answer.headers["X-Total-Count"] == str(crowd.workers)
        cursor = answer.headers.get("X-Next-Cursor")
        if cursor is None:
            break
    assert len(seen) == crowd.workers


def test_names_inside_an_item_are_cut_short_and_counted(crowd, client):
    [barrier] = client.get("/api/barriers", params={"limit": 1}).json()
    assert barrier["missing_total"] == crowd.workers - 1
    assert len(barrier["missing"]) == 100
    task = client.get("/api/tasks/default-1").json()
    assert task["worker_ids_total"] == crowd.workers
    assert len(task["worker_ids"]) == 100


def test_facts_that_name_everyone_do_not_fill_an_answer_without_end(crowd, client):
    answer = client.get("/api/events", params={"position": crowd.workers, "limit": 1000})
    assert len(answer.content) < 6 * 1024 * 1024
    assert answer.json()
