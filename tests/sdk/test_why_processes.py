"""Guards the answers of `why` about real worker processes: each test plants one cause."""

import signal
import time
from pathlib import Path

import pytest

from strata.timeline.desk import Desk
from strata.timeline.opening import open_timeline
from tests.sdk.harness import until

STOPPED_NS = 1_300_000_000
FAULTY = Path(__file__).with_name("faulty_trainee.py")


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


@pytest.fixture
def heartbeats(hub, tmp_path):
    """How many heartbeats of a worker are answered and stored."""

    def count(node):
        with open_timeline(tmp_path / "data") as timeline:
            return len(list(timeline.records(kinds={"ClockSampled"}, node=node)))

    return count


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
    def test_a_stopped_worker_is_told_from_a_slow_one(
        self, hub, trainees, ask, recorded, heartbeats
    ):
        given = {"world_size": 2, "barrier_every": 1}
        crowd = {n: trainees(hub.address, "train", worker_id=n, **given) for n in ("a", "b")}
        until(lambda: heartbeats("b") > 4)
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


@pytest.fixture
def slow_pair(hub, trainees, recorded, tmp_path):
    """Two workers, of which `b` becomes slow in one part of its steps; when it did."""

    def plant(cause, task=""):
        gate = tmp_path / f"gate-{cause}"
        given = {"world_size": 2, "cause": cause, "gate": str(gate), "victim": "b"}
        given |= {"script": FAULTY, "task_id": task} if task else {"script": FAULTY}
        crowd = [trainees(hub.address, "steps", worker_id=n, **given) for n in ("a", "b")]
        for trainee in crowd:
            trainee.says("step", count=400)
        began_ms = time.time() * 1000
        gate.touch()
        step = crowd[1].says("slow step", count=25)["step"]
        for node in ("a", "b"):
            recorded("StepFinished", node, step=step - 1)
        return began_ms

    return plant


class TestSlow:
    @pytest.mark.parametrize("cause", ["data", "compute"])
    def test_the_slow_worker_and_the_part_are_named(self, slow_pair, ask, cause):
        began_ms = slow_pair(cause)
        victim, other = ask("slow", worker="b"), ask("slow", worker="a")
        print(victim, other, sep="\n")
        assert victim.verdict == "yes"
        assert victim.answer.startswith(f"yes, in {cause} (")
        assert other.verdict == "no"
        assert other.findings[0].startswith("it waits for b, which takes")
        drop = ask("throughput", time_ms=began_ms)
        print(drop, ask("throughput"), sep="\n")
        assert drop.verdict == "yes"
        assert f"more in {cause}" in drop.answer
        assert "a step of b takes" in drop.answer
        found = ask("throughput")
        assert found.verdict == "yes"
        assert "a step of b takes" in found.answer

    def test_a_slow_link_is_told_from_a_slow_worker(self, slow_pair, ask):
        began_ms = slow_pair("communication")
        victim = ask("slow", worker="b")
        print(victim, ask("slow", worker="a"), sep="\n")
        assert victim.verdict == "yes"
        assert victim.answer.startswith("yes, in communication")
        drop = ask("throughput", time_ms=began_ms)
        print(drop)
        assert drop.verdict == "yes"
        assert "the exchange between the workers takes" in drop.answer
