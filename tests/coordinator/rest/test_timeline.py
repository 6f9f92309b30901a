"""Timeline endpoints: bounded, typed, with the usual errors, and without blocking the engine."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from strata.config import Settings
from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.rest import read_queue
from strata.coordinator.rest.views import past_state
from strata.errors import Overloaded
from strata.timeline.queries import TimelineQueries
from tests.coordinator.rest.served import Coordinator


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as running:
        running.logs.append(LogLine("info", "something was said"))
        running.train(2)
        yield running


@pytest.fixture
def get(coordinator):
    with coordinator.client() as client:
        yield lambda path, **params: client.get(f"/api/timeline/{path}", params=params)


def test_span_counts_recorded_events(get, coordinator):
    span = get("span").json()
    assert span["last_position"] == coordinator.engine.position
    assert span["facts"] == sum(bucket["facts"] for bucket in get("density").json()["buckets"])
    assert span["nodes"][0]["role"] == "coordinator"


def test_past_moment_has_the_fields_of_the_dashboard(get, coordinator):
    with coordinator.client() as client:
        now = client.get("/api/dashboard").json()
    then = get("at", position=coordinator.engine.position).json()
    assert now.keys() <= then.keys()
    assert then["as_of"] == {
        "time_ms": then["as_of"]["time_ms"],
        "position": coordinator.engine.position,
        "live": False,
        "doubt": "",
    }
    assert {worker["id"] for worker in then["workers"]} == {w["id"] for w in now["workers"]}
    assert {node["id"] for node in then["nodes"]} == {w["id"] for w in now["workers"]}
    happened = [
        [(each["ref"], each["summary"]) for each in when["happened"]] for when in (then, now)
    ]
    assert happened[0] == happened[1] != []
    assert then["logs"] == now["logs"] != []
    assert get("at", position=1).json()["workers"] == []


def test_event_has_causes_and_effects(get):
    events = get("events", kind="WorkerRegistered").json()
    detail = get(f"event/{events[0]['ref']}").json()
    assert detail["kind"] == "WorkerRegistered"
    assert detail["position"] == int(events[0]["ref"].removeprefix("@"))
    again = get("events", limit=1)
    following = get("events", limit=1, cursor=again.headers["X-Next-Cursor"]).json()
    assert following[0]["ref"] != again.json()[0]["ref"]


def test_event_has_the_same_id_in_all_endpoints(coordinator, get):
    with coordinator.client() as client:
        facts = client.get("/api/events", params={"limit": 1000}).json()
    assert facts[0]["id"] == "@0"
    listed = {each["ref"]: each["kind"] for each in get("events", limit=1000).json()}
    caused = [fact for fact in facts if fact["cause"]]
    assert caused
    for fact in facts:
        assert listed[fact["id"]] == fact["kind"]
        assert set(fact["cause"]) <= listed.keys()
    detail = get(f"event/{caused[0]['id']}").json()
    assert detail["ref"] == caused[0]["id"]
    assert [each["ref"] for each in detail["causes"]] == caused[0]["cause"]


def test_why_story_and_diff(get):
    assert len(get("questions").json()) == 19
    assert get("why", question="trust").json()["verdict"] in ("yes", "no")
    registered = get("events", kind="WorkerRegistered").json()[0]
    assert get("why", ref=registered["ref"]).json()["chain"]
    assert get("story", subject=f"worker:{registered['tags']['worker']}").json()["entries"]
    span = get("span").json()
    changes = get("diff", a=span["from_ms"], b=span["to_ms"]).json()["changes"]
    assert any(change["subject"].startswith("worker:") for change in changes)
    found = get("seek", predicate="kind=WorkerRegistered").json()
    assert found["ref"] == registered["ref"]


def test_every_listed_question_can_be_asked(get):
    for question in get("questions").json():
        params = {param["name"]: "1" for param in question["params"]}
        answer = get("why", question=question["name"], **params)
        assert answer.status_code in (200, 404), (question["name"], answer.text)


def test_newest_events_come_first(get):
    oldest_first = [each["ref"] for each in get("events", limit=1000).json()]
    newest = [each["ref"] for each in get("events", newest=True, limit=5).json()]
    assert newest == oldest_first[::-1][:5]


def test_lanes_of_one_worker(get):
    registered = get("events", kind="WorkerRegistered").json()
    wanted = registered[-1]["tags"]["worker"]
    assert len(get("lanes").json()["lanes"]) > 1
    found = get("lanes", node=wanted, limit=1).json()
    assert [lane["node"] for lane in found["lanes"]] == [wanted]
    assert not found["truncated"]


def test_endpoints_of_a_past_moment(get, coordinator):
    """At the present moment the timeline equals the live API; at an earlier one it differs."""
    with coordinator.client() as client:
        (dataset,) = (row["id"] for row in client.get("/api/datasets").json())
        now = client.get(f"/api/datasets/{dataset}/shards").json()
        facts = client.get("/api/events", params={"newest": True, "kinds": "AssignmentChanged"})
    assert get("shards", dataset_id=dataset).json() == now
    assert get("facts", kinds="AssignmentChanged").json() == facts.json() != []
    joined = get("events", kind="WorkerRegistered").json()
    before_ms = joined[0]["at_ms"] - 0.01
    assert get("facts", kinds="AssignmentChanged", time_ms=before_ms).json() == []
    assert get("shards", dataset_id=dataset, time_ms=before_ms).json() == []
    history = get("metrics").json()
    assert (history["active_workers"][-1], history["total_workers"][-1]) == (2, 2)
    assert set(history["coordinator_rps"]) == {None}
    assert get("metrics", time_ms=before_ms).json()["total_workers"][-1] == 0


def test_unrecorded_values_are_null_in_the_past(get, coordinator):
    shown = get("at").json()
    assert shown["metrics"]["coordinator_rps"] is None
    assert shown["metrics"]["shard_assignment_time"] is None
    past = shown["coordinator"]
    assert [past[name] for name in ("connected", "address", "mode")] == [None] * 3
    started = get("events", kind="CoordinatorStarted").json()[-1]
    assert past["started_at"] == int(started["at_ms"])
    assert past["uptime"] == int((shown["as_of"]["time_ms"] - started["at_ms"]) / 1000)
    assert past["version"] == get(f"event/{started['ref']}").json()["body"]["release"]
    with coordinator.client() as client:
        live = client.get("/api/status").json()
    assert all(value is not None for value in live.values())


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("event/@999999", {}, 404),
        ("event/nonsense", {}, 400),
        ("story", {"subject": "planet:mars"}, 400),
        ("why", {"question": "nonsense"}, 400),
        ("why", {"question": "lost"}, 404),
        ("why", {"question": "barrier"}, 400),
        ("why", {"question": "lost", "worker": "nobody"}, 404),
        ("why", {"question": "differs", "other": "/etc"}, 400),
        ("why", {}, 400),
        ("at", {"position": 10**9}, 400),
        ("at", {"position": 1, "step": 1}, 400),
        ("density", {"buckets": 1001}, 400),
        ("density", {"from_ms": 5, "to_ms": 4}, 400),
        ("seek", {"predicate": "kind=Nothing"}, 404),
        ("lanes", {"limit": 201}, 400),
        ("span", {"run": "nothing"}, 404),
        ("span", {"run": "../data"}, 404),
        ("usage", {}, 400),
    ],
)
def test_timeline_error_has_a_hint(get, path, params, status):
    refused = get(path, **params)
    assert refused.status_code == status
    assert refused.json()["error"]["hint"]


def test_timeline_queries_do_not_block_the_engine(coordinator):
    """While timeline queries run, the rest of the API answers at once."""
    asking, answered = threading.Event(), threading.Event()

    def slow(queries):
        asking.set()
        assert answered.wait(30)

    reader = past_state.PastReader(coordinator.engine, Settings())
    future = asyncio.run_coroutine_threadsafe(reader.ask(slow), coordinator.loop)
    assert asking.wait(30)
    with coordinator.client() as client:
        assert client.get("/api/status").status_code == 200
    assert not future.done()
    answered.set()
    future.result(30)
    reader.close()


def test_full_query_queue_is_refused(coordinator, monkeypatch):
    monkeypatch.setattr(past_state, "QUEUE_LIMIT", 0)
    reader = past_state.PastReader(coordinator.engine, Settings())
    with pytest.raises(Overloaded):
        coordinator.run(reader.ask(lambda queries: None))
    reader.close()


def test_query_of_a_disconnected_client_is_not_started(coordinator, monkeypatch):
    """When the cursor moves, the page cancels its requests; queued ones are dropped."""
    taken, freed, begun = threading.Semaphore(0), threading.Event(), []
    span, facts = TimelineQueries.span, TimelineQueries.facts_before

    def slow(queries):
        taken.release()
        assert freed.wait(30)
        return span(queries)

    def noted(queries, at_ns, *rest):
        begun.append(at_ns)
        return facts(queries, at_ns, *rest)

    monkeypatch.setattr(TimelineQueries, "span", slow)
    monkeypatch.setattr(TimelineQueries, "facts_before", noted)
    with ThreadPoolExecutor() as threads, coordinator.client() as client:
        holding = [
            threads.submit(client.get, "/api/timeline/span") for _ in range(read_queue.THREADS)
        ]
        for _ in holding:
            assert taken.acquire(timeout=30)
        with pytest.raises(httpx.ReadTimeout):
            client.get("/api/timeline/facts", params={"time_ms": 1000}, timeout=0.2)
        waiting = threads.submit(client.get, "/api/timeline/facts", params={"time_ms": 2000})
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        freed.set()
        assert waiting.result(30).status_code == 200
        assert [held.result(30).status_code for held in holding] == [200] * read_queue.THREADS
    assert [at_ns // 10**9 for at_ns in begun] == [2]
