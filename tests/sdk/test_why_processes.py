"""Guards the answers of `why` about real worker processes: each test plants one cause."""

import signal
import time

import pytest

from strata.timeline.desk import Desk
from strata.timeline.opening import open_timeline
from tests.sdk.harness import until

STOPPED_NS = 1_300_000_000


@pytest.fixture
def ask(hub, tmp_path):
    """Asks a question about the log as it is now."""

    def asked(question, **params):
        with open_timeline(tmp_path / "data") as timeline:
            given = {name: str(value) for name, value in params.items()}
            return Desk(timeline).why(question, params=given)

    return asked


@pytest.fixture
def recorded(hub, tmp_path):
    """Waits until a worker's own event is stored; the last of them."""

    def found(kind, node, **fields):
        with open_timeline(tmp_path / "data") as timeline:
            records = [
                each
                for each in timeline.records(kinds={kind}, node=node)
                if all(each.get(name) == value for name, value in fields.items())
            ]
            return records[-1] if records else None

    return lambda kind, node, **fields: until(lambda: found(kind, node, **fields), what=kind)


def events(hub, kind):
    return [event for event in hub.store.read() if event.kind == kind]


def stuck_barrier(hub):
    """The barrier that has been open for a while."""
    ended = {each.body.round for each in events(hub, "BarrierReleased")}
    for opened in events(hub, "BarrierOpened"):
        age_ns = time.monotonic_ns() - opened.mono_ns
        if opened.body.round not in ended and age_ns > STOPPED_NS:
            return opened.body
    return None


class TestBarrier:
    def test_a_stopped_worker_is_told_from_a_slow_one(self, hub, trainees, ask, recorded):
        given = {"world_size": 2, "barrier_every": 1}
        crowd = {n: trainees(hub.address, "train", worker_id=n, **given) for n in ("a", "b")}
        for trainee in crowd.values():
            trainee.says("met", count=20)
        crowd["b"].signal(signal.SIGSTOP)
        stuck = until(lambda: stuck_barrier(hub))
        crowd["b"].signal(signal.SIGCONT)
        recorded("RequestCompleted", "b", barrier=stuck.barrier)
        recorded("RequestCompleted", "a", barrier=stuck.barrier)
        answer = ask("barrier", barrier=stuck.barrier)
        print(answer)
        assert answer.verdict == "yes"
        assert answer.answer.startswith("yes: b arrived last")
        assert "not even a heartbeat" in answer.answer
        assert "stopped or starved" in answer.answer
        assert answer.findings[0].startswith("a arrived after 0 µs and was told after ")
        assert answer.findings[1].startswith("b arrived after ")
