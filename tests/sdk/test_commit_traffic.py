"""A commit needs no round trip: messages are counted at the coordinator, for workers that train
with and without data."""

from collections import Counter
from pathlib import Path

import httpx
import pytest

from strata.coordinator.sessions.worker_sessions import WorkerSession
from tests.sdk.harness import until

LEARNER = Path(__file__).with_name("learner.py")
SAMPLES, BATCH = 400, 8
BY_THE_CLOCK = {"beat", "events", "logs", "preview"}


@pytest.fixture
def train(hub, trainees, monkeypatch):
    """Train with two workers: `train(scene, **given)` returns the number of messages by kind."""
    heard: dict[str, Counter[str]] = {}
    on_message = WorkerSession.on_message

    def counted(session, message):
        on_message(session, message)
        heard.setdefault(session.worker, Counter())[message.WhichOneof("body")] += 1

    monkeypatch.setattr(WorkerSession, "on_message", counted)
    body = {"dataset_id": "numbers", "total_samples": SAMPLES, "shard_size": 50}
    httpx.post(f"{hub.running.http_url}/api/datasets", json=body).raise_for_status()

    def run(scene, steps, **given):
        asked = {"name": scene, "worker_count": 2}
        answer = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).raise_for_status()
        task = answer.json()["task_id"]
        names = [f"{task}-{rank}" for rank in range(2)]
        workers = [
            trainees(hub.address, scene, script=LEARNER, task=task, worker_id=name, **given)
            for name in names
        ]
        assert [worker.ends() for worker in workers] == [0, 0]
        until(lambda: hub.state.tasks[task].committed == steps, what="the last commit")
        return sum((heard[name] for name in names), Counter())

    return run


def test_commit_needs_no_message_of_its_own(train):
    plain = [train("agree", steps, rounds=steps) for steps in (50, 200)]
    fed = [train("learn", 50 * epochs, total=SAMPLES, epochs=epochs) for epochs in (1, 4)]
    for few, many in (plain, fed):
        asked = {kind for kind in few | many if kind not in BY_THE_CLOCK}
        assert {kind: many[kind] for kind in asked} == {kind: few[kind] for kind in asked}
        assert many["beat"] < 2 * 200 / 4
    assert fed[0]["attach"] == 2
