"""Lists and single resources of the API: the fields of the contract, from a real state."""

import json
from collections import Counter

import pytest

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.rest.views import state_views
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.core.barriers.barrier_rules import ArriveAtBarrier, FailBarrier
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint, FailCheckpoint
from strata.core.cluster import CODEC
from strata.core.datasets.dataset_rules import AttachDataset
from strata.core.datasets.shard_leases import AcquireLease, ReturnLease
from strata.core.generations.recovery import CommitSteps, EnterGeneration
from strata.core.state import WorkerState
from strata.core.task_state import CheckpointState
from strata.core.tasks.placement import StopTask
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.host_agents import RegisterAgent
from strata.core.workers.worker_lifecycle import DeclareLost, DeregisterWorker, RegisterWorker
from tests.coordinator.rest.served import Coordinator, wait_for
from tests.coordinator.rest.test_live import patches
from tests.coordinator.rest.test_stream import stream

FIELDS = {
    "/api/workers": "id ip port status gpu_count last_heartbeat assigned_shards current_epoch "
    "current_step current_task resources",
    "/api/datasets": "id name total_samples shard_size shard_count format shuffle registered_at",
    "/api/checkpoints": "id step epoch size path created_at worker_id status",
    "/api/barriers": "id name arrived total status created_at missing",
    "/api/tasks": "id name type status worker_ids dataset_id started_at completed_at progress logs",
    "/api/logs": "id timestamp level message source task_id worker_id",
}


def save(coordinator, worker, step, *, generation=1):
    begun = BeginCheckpoint(
        worker=worker.id,
        incarnation=worker.incarnation,
        generation=generation,
        step=step,
        manifest=False,
    )
    [checkpoint] = coordinator.submit(begun)
    return checkpoint


def acknowledge(worker, checkpoint, size_bytes=100, **details):
    return AckPart(
        worker=worker.id,
        incarnation=worker.incarnation,
        checkpoint=checkpoint.id,
        path=f"/data/{checkpoint.id}",
        size_bytes=size_bytes,
        **details,
    )


def arrive(worker, barrier, request=1):
    return ArriveAtBarrier(
        worker=worker.id, incarnation=worker.incarnation, barrier=barrier, request=request
    )


@pytest.mark.parametrize("path", FIELDS)
def test_lists_have_the_fields_of_the_contract(coordinator, client, path):
    first, _ = coordinator.train(2)
    save(coordinator, first, 5)
    coordinator.submit(arrive(first, "epoch"))
    coordinator.logs.append(LogLine("info", "hello", "worker", first.task, first.id))
    [item] = client.get(path, params={"limit": 1}).json()
    assert set(FIELDS[path].split()) <= item.keys()


def test_status_of_the_coordinator(coordinator, client):
    assert client.get("/api/health").json() == {"status": "ok", "mode": "live"}
    status = client.get("/api/status").json()
    assert status["connected"] is True
    assert status["address"] == "127.0.0.1:50051"
    assert (status["version"], status["mode"], status["cluster"]) == ("1.2.3", "live", "tests")
    assert status["position"] == coordinator.position()
    assert 0 <= status["uptime"] < 3600


def test_every_state_of_a_worker_has_a_status_unless_it_has_left():
    assert {state for state in WorkerState.__args__ if state not in state_views.WORKER_STATUS} == {
        "left"
    }


def test_every_state_of_a_checkpoint_has_a_status_unless_it_is_deleted():
    states = set(CheckpointState.__args__)
    assert {state for state in states if state not in state_views.CHECKPOINT_STATUS} == {"deleted"}


def test_worker_has_its_last_heartbeat(coordinator, client):
    worker, _ = coordinator.train(2)
    used = ResourceMetrics(
        cpu_percent=12.5, gpu_metrics=[GpuMetrics(index=0, utilization_percent=80.0)]
    )
    coordinator.heartbeats.note(
        "w0", LastHeartbeat(worker.incarnation, 1_700_000_000_123, 42, 3, used)
    )
    shown = client.get("/api/workers/w0").json()
    assert (shown["status"], shown["state"], shown["rank"]) == ("active", "training", 0)
    assert (shown["current_step"], shown["current_epoch"]) == (42, 3)
    assert shown["last_heartbeat"] == 1_700_000_000_123
    assert shown["resources"]["cpu_percent"] == 12.5
    assert shown["resources"]["network_rx_bytes"] is None  # it was not reported
    assert shown["resources"]["gpu_metrics"][0]["utilization_percent"] == 80.0
    assert shown["assigned_shards"] == 5


def test_heartbeat_of_an_older_incarnation_is_not_shown(coordinator, client):
    worker, _ = coordinator.train(2)
    coordinator.heartbeats.note("w0", LastHeartbeat(worker.incarnation - 1, 5, 42, 3))
    shown = client.get("/api/workers/w0").json()
    assert shown["current_step"] == 0
    assert shown["last_heartbeat"] > 5


def test_lost_workers_are_failed_and_left_workers_are_hidden(coordinator, client):
    first, second, _ = coordinator.train(3)
    coordinator.submit(
        DeclareLost(
            worker=first.id,
            incarnation=first.incarnation,
            signal="heartbeat",
            reason="no heartbeat",
        ),
        DeregisterWorker(worker=second.id, incarnation=second.incarnation),
    )
    shown = {worker["id"]: worker for worker in client.get("/api/workers").json()}
    assert shown.keys() == {"w0", "w2"}
    assert (shown["w0"]["status"], shown["w0"]["reason"]) == ("failed", "no heartbeat")
    assert client.get("/api/workers/w1").status_code == 404
    [failed] = client.get("/api/workers", params={"status": "failed"}).json()
    assert failed["id"] == "w0"


def test_lost_worker_keeps_last_heartbeat_without_resources(coordinator, client):
    first, second = coordinator.train(2)
    for worker in (first, second):
        used = ResourceMetrics(cpu_percent=50.0)
        seen = LastHeartbeat(worker.incarnation, 1_000, 7, 0, used, loss=0.5)
        coordinator.heartbeats.note(worker.id, seen)
    lost = DeclareLost(
        worker=first.id, incarnation=first.incarnation, signal="heartbeat", reason="no heartbeat"
    )
    coordinator.submit(lost)
    engine = coordinator.engine
    coordinator.heartbeats.follow(engine.recent, engine.kernel.state.workers)
    shown = client.get(f"/api/workers/{first.id}").json()
    assert (shown["last_heartbeat"], shown["current_step"]) == (1_000, 7)
    assert (shown["resources"], shown["loss"]) == (None, None)
    assert client.get(f"/api/workers/{second.id}").json()["resources"]["cpu_percent"] == 50.0


def test_heartbeats_of_unknown_workers_are_pruned():
    heartbeats = Heartbeats()
    for number in range(5_000):
        heartbeats.note(f"w{number}", LastHeartbeat(1, 1))
        heartbeats.follow((), {f"w{number}"})
    assert len(heartbeats.workers) <= 1_001


def test_pages_have_no_gap_and_no_repetition(coordinator, client):
    coordinator.train(25)
    seen, cursor = [], ""
    while True:
        answer = client.get("/api/workers", params={"limit": 10, "cursor": cursor})
        assert answer.headers["X-Total-Count"] == "25"
        seen += [worker["id"] for worker in answer.json()]
        cursor = answer.headers.get("X-Next-Cursor", "")
        if not cursor:
            break
    assert seen == [f"w{rank}" for rank in range(25)]


@pytest.mark.parametrize("cursor", ["?", "é", "AAAA", "WzFd", "eyJhIjoxfQ"])
def test_invalid_cursor_is_refused(client, cursor):
    answer = client.get("/api/workers", params={"cursor": cursor})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_argument"


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "ten", "1.5", ""])
def test_limit_out_of_range_is_refused(client, limit):
    answer = client.get("/api/workers", params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("limit: ")


def test_owned_shards_are_leased_to_their_owners(coordinator, client):
    coordinator.train(2, shards=10)
    answer = client.get("/api/datasets/digits/shards", params={"limit": 4})
    assert answer.headers["X-Total-Count"] == "10"
    assert answer.headers["X-Next-Cursor"] == "4"
    shards = answer.json()
    shards += client.get("/api/datasets/digits/shards", params={"cursor": "4"}).json()
    assert [shard["shard_id"] for shard in shards] == list(range(10))
    assert {shard["state"] for shard in shards} == {"leased"}
    assert {shard["worker_id"] for shard in shards} == {"w0", "w1"}
    assert (shards[-1]["start_index"], shards[-1]["end_index"]) == (90, 95)


def test_leased_shards_are_todo_then_leased_then_consumed(coordinator, client):
    worker, _ = coordinator.train(2)
    client.post(
        "/api/datasets", json={"dataset_id": "spare", "total_samples": 40, "shard_size": 10}
    )
    coordinator.submit(AttachDataset(task=worker.task, dataset="spare", unit="lease", epochs=2))
    held = {"worker": worker.id, "incarnation": worker.incarnation, "dataset": "spare"}
    first, second, _ = coordinator.submit(*[AcquireLease(**held)] * 3)
    coordinator.submit(
        ReturnLease(**held, lease=first.id),
        ReturnLease(**held, lease=second.id, consumed=False, reason="gave up"),
    )
    shards = client.get("/api/datasets/spare/shards").json()
    assert [shard["state"] for shard in shards] == ["consumed", "todo", "leased", "todo"]
    assert [shard["worker_id"] for shard in shards] == [None, None, "w0", None]
    task = client.get(f"/api/tasks/{worker.task}").json()
    assert task["progress"] == 12.5


@pytest.fixture
def by_steps(coordinator, client):
    """A dataset of 400 samples that two workers train in steps of 8; one of them."""
    task = client.post("/api/tasks", json={"name": "fit", "worker_count": 2}).json()["task_id"]
    workers = coordinator.submit(
        *(RegisterWorker(worker=name, task=task, syncs=True) for name in ("w0", "w1"))
    )
    client.post(
        "/api/datasets", json={"dataset_id": "text", "total_samples": 400, "shard_size": 10}
    )
    coordinator.submit(
        AttachDataset(task=task, dataset="text", unit="lane", global_batch=8, lanes=4, epochs=2),
        *(
            EnterGeneration(worker=each.id, incarnation=each.incarnation, generation=1)
            for each in workers
        ),
    )
    return task


def test_shards_of_steps_have_ranges_owners_and_states(coordinator, client, by_steps):
    def listed(**asked):
        return client.get("/api/datasets/text/shards", params=asked).json()

    shards = listed()
    ranges = [(shard["start_index"], shard["end_index"]) for shard in shards]
    assert ranges == [(start, start + 10) for start in range(0, 400, 10)]
    assert {shard["unit"] for shard in shards} == {"shard"}
    assert {shard["layout"] for shard in shards} == {"epoch"}
    owners = Counter(shard["worker_id"] for shard in shards)
    workers = client.get("/api/workers", params={"task_id": by_steps}).json()
    assert {each["id"]: each["assigned_shards"] for each in workers} == owners
    assert owners == {"w0": 20, "w1": 20}
    coordinator.submit(CommitSteps(task=by_steps, attempt=1, generation=1, steps=30))
    states = [shard["state"] for shard in listed()]
    assert states == (["consumed"] * 6 + ["leased"] * 4) * 4  # 60 of the 100 samples of each lane
    coordinator.submit(CommitSteps(task=by_steps, attempt=1, generation=1, steps=50))
    assert {(shard["epoch"], shard["state"]) for shard in listed()} == {(1, "leased")}
    assert {(shard["epoch"], shard["state"]) for shard in listed(epoch=0)} == {(0, "consumed")}
    assert [shard["shard_id"] for shard in listed(cursor="37")] == [37, 38, 39]


def test_preview_has_shard_and_worker_of_each_sample(coordinator, client, by_steps):
    shards = client.get("/api/datasets/text/shards").json()
    sent = json.dumps([{"id": str(p), "features": {}, "position": p} for p in range(8)])
    for worker in ("w0", "w1"):
        coordinator.api.previews.note("text", worker, sent)
    shown = client.get("/api/datasets/text/preview").json()
    assert sorted(sample["position"] for sample in shown) == list(range(8))
    for sample in shown:
        shard = shards[sample["shard_id"]]
        assert shard["worker_id"] == sample["worker_id"]
        assert shard["start_index"] <= sample["place"] < shard["end_index"]


def test_progress_counts_committed_steps(coordinator, client):
    task = client.post("/api/tasks", json={"name": "fit", "worker_count": 1}).json()["task_id"]
    [worker] = coordinator.submit(RegisterWorker(worker="solo", task=task, syncs=True))
    client.post(
        "/api/datasets", json={"dataset_id": "text", "total_samples": 400, "shard_size": 10}
    )
    coordinator.submit(
        AttachDataset(task=task, dataset="text", unit="lane", global_batch=8, lanes=4, epochs=2),
        EnterGeneration(worker="solo", incarnation=worker.incarnation, generation=1),
        CommitSteps(task=task, attempt=1, generation=1, steps=25),
    )
    shown = client.get(f"/api/tasks/{task}").json()
    assert (shown["status"], shown["committed_steps"], shown["progress"]) == ("running", 25, 25.0)


def test_shards_of_an_unused_dataset_are_todo(client):
    client.post("/api/datasets", json={"dataset_id": "d", "total_samples": 25, "shard_size": 10})
    shards = client.get("/api/datasets/d/shards").json()
    assert [shard["state"] for shard in shards] == ["todo"] * 3
    assert client.get("/api/datasets/d/preview").json() == []
    assert client.get("/api/datasets/none/shards").status_code == 404
    assert client.get("/api/datasets/none/preview").status_code == 404
    assert client.get("/api/datasets/d/shards", params={"cursor": "x"}).status_code == 400
    assert client.get("/api/datasets/d/shards", params={"task_id": "x"}).status_code == 404


def test_checkpoints_are_listed_newest_first_with_status(coordinator, client):
    first, second = coordinator.train(2)
    done = save(coordinator, first, 10)
    coordinator.submit(acknowledge(first, done), acknowledge(second, done, 50))
    failed = save(coordinator, first, 20)
    coordinator.submit(FailCheckpoint(task=first.task, checkpoint=failed.id, reason="disk full"))
    save(coordinator, second, 30)
    shown = client.get("/api/checkpoints").json()
    assert [(each["step"], each["status"]) for each in shown] == [
        (30, "in_progress"),
        (20, "failed"),
        (10, "completed"),
    ]
    assert shown[1]["reason"] == "disk full"
    assert (shown[2]["size"], shown[2]["worker_id"], shown[2]["parts"]) == (150, "w0", 2)
    [completed] = client.get("/api/checkpoints", params={"status": "completed"}).json()
    assert completed["id"] == done.id
    assert client.get("/api/checkpoints", params={"task_id": "none"}).status_code == 404


def test_barriers_list_missing_workers(coordinator, client):
    first, second, third = coordinator.train(3)
    coordinator.submit(arrive(first, "epoch"))
    [waiting] = client.get("/api/barriers").json()
    assert (waiting["status"], waiting["arrived"], waiting["total"]) == ("waiting", 1, 3)
    assert waiting["missing"] == ["w1", "w2"]
    coordinator.submit(
        FailBarrier(task=first.task, barrier="epoch", round=1, reason="too late"),
        arrive(first, "end", 2),
        arrive(second, "end"),
        arrive(third, "end"),
    )
    released, failed = client.get("/api/barriers").json()
    assert (released["name"], released["status"], released["missing"]) == ("end", "released", [])
    assert (failed["status"], failed["missing_total"]) == ("failed", 2)


def test_logs_are_found_by_task_worker_level_and_text(coordinator, client):
    worker, _ = coordinator.train(2)
    coordinator.logs.extend(
        [
            LogLine("info", "begins", "worker", worker.task, "w0"),
            LogLine("error", "Disk Full", "worker", worker.task, "w1"),
            LogLine("info", "listens", "coordinator"),
        ]
    )

    def messages(path, **params):
        return [entry["message"] for entry in client.get(path, params=params).json()]

    assert messages("/api/logs") == ["listens", "Disk Full", "begins"]
    assert messages("/api/logs", limit=1) == ["listens"]
    assert messages("/api/logs", worker_id="w0") == ["begins"]
    assert messages("/api/logs", level="warn") == ["Disk Full"]
    assert messages("/api/logs", source="coordinator") == ["listens"]
    assert messages("/api/logs", search="disk") == ["Disk Full"]
    assert messages(f"/api/tasks/{worker.task}/logs") == ["Disk Full", "begins"]
    assert client.get("/api/tasks/none/logs").status_code == 404
    assert client.get("/api/logs", params={"level": "loud"}).status_code == 400
    [task] = client.get("/api/tasks").json()
    assert task["logs"] == ["begins", "Disk Full"]


def test_log_pages_have_no_gap(coordinator, client):
    coordinator.logs.extend(LogLine("info", f"line {n}") for n in range(25))
    first = client.get("/api/logs", params={"limit": 10})
    assert first.headers["X-Total-Count"] == "25"
    second = client.get("/api/logs", params={"cursor": first.headers["X-Next-Cursor"]})
    messages = [entry["message"] for entry in first.json() + second.json()]
    assert messages == [f"line {n}" for n in reversed(range(25))]


def test_answer_with_long_lines_is_cut_and_its_cursor_continues(coordinator, client):
    coordinator.logs.extend(LogLine("info", f"{n} {'x' * 60_000}") for n in range(100))
    first = client.get("/api/logs", params={"limit": 100})
    assert len(first.content) < 5 * 1024 * 1024
    assert len(first.json()) < 100
    second = client.get("/api/logs", params={"cursor": first.headers["X-Next-Cursor"]})
    numbers = [int(entry["message"].split()[0]) for entry in first.json() + second.json()]
    assert numbers == list(reversed(range(100)))


def test_agents_show_their_slots(coordinator, client):
    coordinator.submit(RegisterAgent(agent="host-1", hostname="host", slots=4))
    client.post("/api/tasks", json={"name": "run", "worker_count": 3, "entry": "train.py"})
    [agent] = client.get("/api/agents").json()
    assert (agent["id"], agent["slots"], agent["slots_used"], agent["up"]) == ("host-1", 4, 3, True)


def test_facts_are_listed_from_a_position_with_causes(coordinator, client):
    coordinator.train(2)
    answer = client.get("/api/events", params={"limit": 5})
    assert [fact["position"] for fact in answer.json()] == [0, 1, 2, 3, 4]
    assert answer.headers["X-Total-Count"] == str(coordinator.position())
    assert answer.headers["X-Next-Cursor"] == "5"
    lost = client.get("/api/events", params={"kinds": "GenerationChanged"}).json()
    assert {fact["kind"] for fact in lost} == {"GenerationChanged"}
    cause = int(lost[0]["cause"][0].removeprefix("@"))
    [registered] = client.get("/api/events", params={"position": cause, "limit": 1}).json()
    assert registered["kind"] == "WorkerRegistered"
    assert client.get("/api/events", params={"position": 10**9}).json() == []
    unknown = client.get("/api/events", params={"kinds": "Nonsense"})
    assert unknown.status_code == 400
    assert "Nonsense" in unknown.json()["error"]["message"]


def test_environment_values_of_a_task_are_not_shown(coordinator, client):
    body = {"name": "run", "entry": "train.py", "env": {"API_KEY": "s3cret"}}
    task = client.post("/api/tasks", json=body).json()["task_id"]
    assert client.get(f"/api/tasks/{task}").json()["env_names"] == ["API_KEY"]
    for path in ("/api/events", f"/api/tasks/{task}", "/api/tasks", "/api/dashboard"):
        assert "s3cret" not in client.get(path).text
    spec = coordinator.engine.kernel.state.tasks[task].spec
    assert coordinator.api.vault.read(spec.env_key) == {"API_KEY": "s3cret"}
    assert b"s3cret" not in b"".join(
        CODEC.encode([event]) for event in coordinator.engine.kernel.store.read()
    )


def test_old_fact_is_read_from_the_store(coordinator, client):
    coordinator.train(2)
    coordinator.loop.call_soon_threadsafe(coordinator.engine.recent.clear)
    wait_for(lambda: not coordinator.engine.recent)
    facts = client.get("/api/events", params={"limit": 1000}).json()
    assert [fact["position"] for fact in facts] == list(range(coordinator.position()))


def test_metrics_in_both_formats(coordinator, client):
    coordinator.train(2)
    figures = client.get("/api/metrics").json()
    assert (figures["active_workers"], figures["total_workers"]) == (2, 2)
    assert figures["coordinator_rps"] == 0, "asking for figures is no work of the cluster"
    assert figures["barrier_latency_p99"] is None
    assert figures["shard_assignment_time"] > 0
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "\nstrata_active_workers 2" in answer.text


def test_settings_are_shown_without_secrets(tmp_path):
    with Coordinator(tmp_path, token="hush-hush") as guarded, guarded.client() as client:
        answer = client.get("/api/settings", headers={"Authorization": "Bearer hush-hush"})
    assert answer.json()["token_needed"] is True
    assert answer.json()["values"]["token"] == "***"
    assert answer.json()["values"]["heartbeat_timeout_s"] == 30.0
    assert "hush-hush" not in answer.text


def test_checkpoint_detail_has_the_part_of_each_rank(coordinator, client):
    first, second = coordinator.train(2)
    saved = save(coordinator, first, 10)
    coordinator.submit(acknowledge(second, saved, 50))
    shown = client.get(f"/api/checkpoints/{saved.id}").json()
    assert (shown["parts"], shown["parts_expected"], shown["status"]) == (1, 2, "in_progress")
    [part] = shown["written"]
    assert (part["rank"], part["worker_id"], part["size"]) == (second.rank, "w1", 50)
    assert client.get("/api/checkpoints/none").status_code == 404


def test_logs_are_filtered_by_time(coordinator, client):
    coordinator.logs.extend(LogLine("info", f"line {n}", timestamp=1000 + n) for n in range(5))
    span = {"since_ms": 1001, "until_ms": 1003}
    found = client.get("/api/logs", params=span).json()
    assert [entry["message"] for entry in found] == ["line 2", "line 1"]


def lose(coordinator, worker, reason="no heartbeat"):
    coordinator.submit(
        DeclareLost(
            worker=worker.id, incarnation=worker.incarnation, signal="heartbeat", reason=reason
        )
    )


def ids(answer):
    return [worker["id"] for worker in answer.json()]


def test_lost_worker_is_shown_until_its_task_ends(coordinator, client):
    first, second = coordinator.train(2)
    lose(coordinator, first)
    assert ids(client.get("/api/workers", params={"status": "failed"})) == ["w0"]
    lose(coordinator, second)
    coordinator.submit(StopTask(task=first.task))
    assert coordinator.engine.kernel.state.tasks[first.task].ended
    listed = client.get("/api/workers")
    assert (ids(listed), listed.headers["X-Total-Count"]) == ([], "0")
    shown = client.get("/api/dashboard").json()
    assert (shown["workers"], shown["totals"]["workers"]) == ([], 0)
    assert shown["totals"]["workers_by_status"]["failed"] == 0
    asked = client.get("/api/workers", params={"ended": True})
    assert ids(asked) == ["w0", "w1"]
    assert [worker["assigned_shards"] for worker in asked.json()] == [0, 0]
    assert client.get("/api/workers/w0").json()["status"] == "failed"
    shards = client.get("/api/datasets/digits/shards").json()
    assert {(shard["state"], shard["worker_id"]) for shard in shards} == {("todo", None)}


def test_live_stream_drops_lost_workers_when_their_task_ends(coordinator, client):
    first, second = coordinator.train(2)
    with stream(client, "/api/live") as answer:
        found = patches(answer)
        assert len(next(found)["workers"]) == 2
        lose(coordinator, first)
        lose(coordinator, second)
        coordinator.submit(StopTask(task=first.task))
        gone = set()
        while gone != {"w0", "w1"}:
            gone |= set(next(found).get("gone", {}).get("workers", []))
