"""Events of a running task move out of the log, stay readable, also after a restart of the
coordinator, and are part of the archived run."""

import httpx
import pytest

from strata.coordinator.archive import run_archiver
from strata.coordinator.archive.event_mover import EventMover
from strata.core.record.record_retention import EventsMoved
from strata.timeline.archive.run_archive import open_anywhere
from strata.timeline.archive.segmented_log import stretch_names
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until

MOST_BYTES = 3_000
SETTINGS = {
    "heartbeat_interval_s": 0.25,
    "archive_after_s": 0.5,
    "running_events_bytes": MOST_BYTES,
    "keep_events_days": 0.0,
}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(run_archiver, "LOOK_S", 0.1)
    monkeypatch.setattr(run_archiver, "KEEPING_S", 0.1)
    monkeypatch.setattr(run_archiver, "RETRY_S", 0.1)


def steps_of(started, **params) -> list[int]:
    """The steps that worker `a` has finished, read from the API."""
    wanted = {"kind": "StepFinished", "node": "a", "limit": 1_000} | params
    answer = httpx.get(f"{started.http_url}/api/timeline/events", params=wanted)
    return [int(each["tags"]["step"]) for each in answer.json()] if answer.is_success else []


def test_events_of_a_running_task_move_and_stay_readable(tmp_path, trainees):
    data = tmp_path / "data"
    with coordinator(data, **SETTINGS) as started:
        hub = Hub(started)
        trainee = trainees(hub.address, "train", worker_id="a", step_s=0.01, steps=600)
        until(lambda: len(stretch_names(data / "stretches")) >= 2, what="two stretches")
        (task,) = hub.state.tasks
        assert not hub.state.tasks[task].ended
        known = until(lambda: steps_of(started), what="steps")
        assert known == list(range(len(known)))
        trainee.says("left")
        run = until(lambda: listed(started, task), what="the archive")
        until(lambda: stretch_names(data / "stretches") == [], what="no stretches")
        assert started.engine.kernel.store.sizes() == {}
        assert steps_of(started, run=run["name"]) == list(range(600))
        facts = [event.body for event in started.engine.kernel.store.read()]
        moves = [fact for fact in facts if isinstance(fact, EventsMoved)]
        assert len({move.stretch for move in moves}) == len(moves) >= 2
    with open_anywhere(str(data / "runs"), task) as kept:
        (stream,) = kept.reader.streams()
        numbers = [event.seq for event in kept.reader.stream(*stream)]
        assert numbers == list(range(len(numbers)))


def listed(started, task):
    rows = httpx.get(f"{started.http_url}/api/runs").json()
    return next((row for row in rows if row["tasks"] == [task]), None)


def test_move_that_a_crash_interrupted_is_finished_at_the_next_start(
    tmp_path, trainees, monkeypatch
):
    data = tmp_path / "data"

    tries = []

    async def dies(self, run, found):
        tries.append(run.name)
        raise OSError("the coordinator dies here")

    with monkeypatch.context() as crash, coordinator(data, **SETTINGS) as started:
        crash.setattr(EventMover, "_release", dies)
        trainees(Hub(started).address, "train", worker_id="a", step_s=0.05)
        until(lambda: len(tries) >= 3, what="a move that fails again and again")
        assert stretch_names(data / "stretches") == ["default-1-000001"]
        before = until(lambda: steps_of(started), what="steps")
        assert before == list(range(len(before)))
    with coordinator(data, **SETTINGS | {"running_events_bytes": 2**30}) as started:
        until(lambda: started.engine.kernel.store.released_batches(), what="the release")
        found = until(lambda: steps_of(started), what="steps")
        assert found[: len(before)] == before
        assert found == list(range(len(found)))
