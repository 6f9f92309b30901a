"""The record of a worker's requests: submitted, and completed with their outcome."""

import pytest

import strata
from strata import TrainingOrchestrator
from strata.errors import DeadlineExceeded, InvalidArgument
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until


@pytest.fixture
def impatient(tmp_path):
    """A coordinator with a short barrier timeout."""
    with coordinator(
        tmp_path / "data", heartbeat_interval_s=0.25, barrier_timeout_s=0.5
    ) as started:
        yield Hub(started)


def requests(data, worker):
    """A worker's requests in order: type, barrier, outcome and error."""
    timeline = open_timeline(data)
    answers = {
        (each.incarnation, each.get("request")): (each.get("ok"), each.text("error"))
        for each in timeline.records(node=worker, kinds={"RequestCompleted"})
    }
    asked = timeline.records(node=worker, kinds={"RequestSubmitted"})
    return [
        (each.text("type"), each.text("barrier"), *answers.get(_key(each), (None, "no answer")))
        for each in asked
    ]


def _resources(hub, worker):
    seen = hub.running.sessions.heartbeats.workers.get(worker)
    return seen is not None and seen.resources is not None


def _key(record):
    return record.incarnation, record.get("request")


@pytest.mark.parametrize("automatic", [True, False])
def test_failed_barrier_is_recorded_as_failed_with_its_reason(impatient, tmp_path, automatic):
    other = TrainingOrchestrator(impatient.address)
    other.register_worker("other")
    worker = TrainingOrchestrator(impatient.address, automatic_heartbeats=automatic)
    worker.register_worker("one")
    with pytest.raises(DeadlineExceeded, match="other"):
        worker.barrier("b", step=1)
    worker.close()
    other.close()
    found = requests(tmp_path / "data", "one")
    [(_, _, ok, error)] = [each for each in found if each[1] == "b"]
    assert ok is False
    assert "missing: other" in error


def test_registration_dataset_and_leaving_are_recorded_as_requests(impatient, tmp_path):
    worker = TrainingOrchestrator(impatient.address)
    worker.register_worker("one")
    worker.register_dataset("d", 100, 10)
    with pytest.raises(InvalidArgument):
        worker.register_dataset("d2", 0, 10)
    worker.get_shards("d")
    worker.deregister()
    worker.close()
    found = requests(tmp_path / "data", "one")
    assert [each[0] for each in found] == [
        "register",
        "register_dataset",
        "register_dataset",
        "get_data_shards",
        "leave",
    ]
    assert [each[2] for each in found] == [True, True, False, True, True]
    assert "total_samples" in found[2][3]


def test_joined_worker_records_its_registration_and_its_leaving(impatient, tmp_path):
    with strata.join(impatient.address, "one", spool_dir=tmp_path / "spool", capture=False) as run:
        run.barrier("b")
    found = requests(tmp_path / "data", "one")
    assert (found[0][0], found[-1][0]) == ("register", "leave")
    assert all(each[2] is True for each in found)
    assert list((tmp_path / "spool").glob("*.events")) == []


def test_registration_is_the_first_fact_before_run_started(impatient, tmp_path):
    with strata.join(impatient.address, "one", spool_dir=tmp_path / "spool", capture=False):
        pass
    first = list(open_timeline(tmp_path / "data").records(node="one"))[:3]
    assert [each.kind for each in first] == ["RequestSubmitted", "RequestCompleted", "RunStarted"]
    assert first[0].event.mono_ns < first[1].event.mono_ns <= first[2].event.mono_ns


@pytest.mark.parametrize("automatic", [True, False])
def test_orchestrator_worker_records_what_a_joined_one_does(impatient, tmp_path, automatic):
    worker = TrainingOrchestrator(impatient.address, automatic_heartbeats=automatic)
    worker.register_worker("one")
    worker.heartbeat(step=7, epoch=1)
    until(lambda: _resources(impatient, "one"), what="resources")
    worker.deregister("enough")
    worker.close()
    with strata.join(impatient.address, "two", spool_dir=tmp_path / "spool", capture=False):
        pass
    timeline = open_timeline(tmp_path / "data")
    kinds = {each.kind for each in timeline.records(node="one")}
    assert kinds >= {
        "RunStarted",
        "RunEnded",
        "CoordinatorStateSeen",
        "ConnectionChanged",
        "ResourceSnapshot",
        "ClockSampled",
    }
    [ended] = timeline.records(node="one", kinds={"RunEnded"})
    assert (ended.text("outcome"), ended.text("reason"), ended.get("steps")) == (
        "done",
        "enough",
        7,
    )
    answer = TimelineQueries(timeline).why("trust", params={})
    found = [each.text for each in TimelineQueries(timeline).trust().findings if each.node == "one"]
    assert (answer.verdict, found) == ("yes", [])


def test_lost_orchestrator_worker_records_as_a_new_incarnation(hub, tmp_path):
    worker = TrainingOrchestrator(hub.address)
    worker.register_worker("one")
    session = worker._worker.session
    pulse = session.heartbeat
    pulse.automatic = False
    until(lambda: hub.state.workers["one"].state == "lost", what="the loss")
    pulse.automatic = True
    pulse.beat_soon()
    until(lambda: session.identity.incarnation > 1 and session.attached, what="the new session")
    worker.close()
    timeline = open_timeline(tmp_path / "data")
    started = list(timeline.records(node="one", kinds={"RunStarted"}))
    assert len({each.incarnation for each in started}) == 2
    last = max(each.incarnation for each in started)
    asked = [
        each.text("type")
        for each in timeline.records(node="one", kinds={"RequestCompleted"})
        if each.incarnation == last
    ]
    assert (asked[0], asked[-1]) == ("register", "leave")
