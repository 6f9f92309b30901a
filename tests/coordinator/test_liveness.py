"""Detection of dead workers, with real processes: a stopped one by heartbeat timeout, a killed one
by its connection, a hanging one by its steps. Live workers are not lost, returning ones fenced."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import grpc
import pytest

from strata.config import Settings
from strata.core.cluster import CODEC
from strata.core.workers.fencing import WorkerFenced
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered
from strata.store.sqlite import SqliteStore
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator
from tests.coordinator.process import process
from tests.coordinator.test_rpc import Stream, open_session, refused

CHILD = Path(__file__).with_name("child_worker.py")
TIMEOUT_S = 20.0
FOREVER = 10**9
HOUR_S = 3600


class Cluster:
    """A coordinator, the facts it records, and the processes that join it."""

    def __init__(self, started) -> None:
        self.client = Client(started)
        self.address = f"127.0.0.1:{started.grpc_port}"
        self.engine = started.engine
        self._facts: SimpleQueue = SimpleQueue()
        self._children: list[Child] = []
        self.engine.follow(lambda events: [self._facts.put(event) for event in events])

    def fact(self, kind, timeout_s: float = TIMEOUT_S):
        """The next event of a kind; earlier ones of other kinds are skipped."""
        deadline = time.monotonic() + timeout_s
        while True:
            event = self._facts.get(timeout=max(deadline - time.monotonic(), 0.001))
            if isinstance(event.body, kind):
                return event

    def child(self, name: str, steps: int = FOREVER, *options: str) -> "Child":
        child = Child(self.address, name, steps, *options)
        self._children.append(child)
        return child

    def end(self) -> None:
        for child in self._children:
            child.process.kill()
            child.process.wait()
            child.reading.join()
            child.process.stdout.close()
        self.client.channel.close()


class Child:
    """A worker process; `wait_for_line` waits for a line of its output."""

    def __init__(self, address: str, name: str, steps: int, *options: str) -> None:
        command = [sys.executable, str(CHILD), address, name, str(steps), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.reading = threading.Thread(target=self._read)
        self.reading.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            if found := re.match(pattern, line):
                return found

    def signal(self, number: int) -> int:
        """Send a signal; returns the time on the clock of the facts."""
        self.process.send_signal(number)
        return time.monotonic_ns()


@contextmanager
def serving(folder, **settings):
    with coordinator(folder, **settings) as started:
        cluster = Cluster(started)
        try:
            yield cluster
        finally:
            cluster.end()


def seconds_after(moment_ns: int, event) -> float:
    return (event.mono_ns - moment_ns) / 1e9


STOPPABLE = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 1.0}


def test_killed_process_is_detected_by_its_connection(tmp_path):
    with serving(tmp_path) as cluster:
        child = cluster.child("w")
        child.wait_for_line("pulse")
        child.signal(signal.SIGKILL)
        lost = cluster.fact(WorkerLost).body
    assert (lost.worker, lost.signal, lost.reason) == ("w", "connection", "its connection broke")
    assert lost.evidence["silence_s"] >= Settings().connection_grace_s


def test_stopped_process_is_detected_by_heartbeat_timeout(tmp_path):
    with serving(tmp_path, **STOPPABLE) as cluster:
        child, other = cluster.child("stopped"), cluster.child("other")
        child.wait_for_line("pulse")
        other.wait_for_line("pulse")
        stopped_ns = child.signal(signal.SIGSTOP)
        event = cluster.fact(WorkerLost)
        other.wait_for_line("standing [0-9]+ 1$")  # the other worker continues without it
    lost = event.body
    assert (lost.worker, lost.signal) == ("stopped", "heartbeat")
    assert 0.8 < seconds_after(stopped_ns, event) < 2.0
    assert re.fullmatch(r"no heartbeat for 1\.\d s", lost.reason)
    assert lost.evidence["timeout_s"] == 1.0
    assert lost.evidence["silence_s"] >= 1.0


def test_zombie_is_fenced_and_registers_again(tmp_path):
    with serving(tmp_path, **STOPPABLE) as cluster:
        child = cluster.child("w")
        first = int(child.wait_for_line("registered ([0-9]+)")[1])
        child.wait_for_line("pulse")
        child.signal(signal.SIGSTOP)
        assert cluster.fact(WorkerLost).body.incarnation == first
        child.signal(signal.SIGCONT)
        refusal = child.wait_for_line("refused (.*)|broken")
        again = cluster.fact(WorkerRegistered).body
        standing = child.wait_for_line("standing ([0-9]+)")
    assert refusal[1] == "fenced register again; the worker then gets a new incarnation"
    assert again.worker == "w"
    assert again.incarnation > first
    assert int(standing[1]) == again.incarnation


def lose(cluster: Cluster, stream: Stream) -> None:
    """Let a worker be lost by heartbeat timeout while its stream stays open."""
    stream.next("standing")
    assert cluster.fact(WorkerLost).body.signal == "heartbeat"


BODIES = {
    "beat": {"beat": pb.Beat(step=1)},
    "arrival": {"arrive": pb.Arrive(barrier_id="x", arrival=1)},
    "entry": {"enter": pb.Enter(generation=1)},
    "leave": {"leave": pb.Leave(outcome="done")},
    "events": {
        "events": pb.EventBatch(
            first_seq=0, count=1, wall_from_ns=1, wall_to_ns=1, kinds=["X"], payload=b"late"
        )
    },
}


@pytest.mark.parametrize("said", sorted(BODIES.keys() - {"events"}))
def test_messages_of_a_zombie_are_refused_and_recorded_once(tmp_path, said):
    with serving(tmp_path, heartbeat_timeout_s=0.3) as cluster:
        stream = open_session(cluster.client, "w")
        lose(cluster, stream)
        for request in (1, 2):
            stream.send(request=request, **BODIES[said])
            answer = stream.next("refused")
            assert (answer.request, answer.refused.code) == (request, "fenced")
            assert "register again" in answer.refused.hint
        fenced = cluster.fact(WorkerFenced, timeout_s=2).body
        assert fenced.worker == "w"
        with pytest.raises(Empty):
            cluster.fact(WorkerFenced, timeout_s=0.2)
        stream.close()


def test_events_of_a_zombie_are_stored(tmp_path):
    """Its events happened before it was declared lost."""
    with serving(tmp_path, heartbeat_timeout_s=0.3) as cluster:
        stream = open_session(cluster.client, "w")
        lose(cluster, stream)
        stream.send(request=1, **BODIES["events"])
        assert stream.next("stored").stored.seq == 0
        stream.close()


def test_hello_of_a_zombie_is_refused_with_the_reason(tmp_path):
    with serving(tmp_path, heartbeat_timeout_s=0.3) as cluster:
        incarnation = cluster.client.register("w").incarnation
        assert cluster.fact(WorkerLost).body.signal == "heartbeat"
        stream = Stream(cluster.client, "w", incarnation)
        said = stream.next("refused").refused
        assert said.code == "fenced"
        assert "it was declared lost: no heartbeat for 0." in said.message
        assert cluster.fact(WorkerFenced).body.incarnation == incarnation
        beat = pb.HeartbeatRequest(worker_id="w", incarnation=incarnation)
        refusal = refused(
            grpc.StatusCode.FAILED_PRECONDITION, cluster.client.Heartbeat, beat, code="fenced"
        )
        assert "declared lost" in refusal
        stream.close()


HANGING = {"heartbeat_interval_s": 0.5, "heartbeat_timeout_s": 1.0, "hang_floor_s": 0.8}
HANGING["hang_report_s"] = 0.3  # these workers do not report their stacks


def test_hanging_worker_is_lost_and_waiting_worker_is_not(tmp_path):
    with serving(tmp_path, **HANGING) as cluster:
        waiting = cluster.child("waiting", 20, "--waiting")
        waiting.wait_for_line("pulse")
        hanging = cluster.child("hanging", 20)
        hanging.wait_for_line("pulse")
        lost = cluster.fact(WorkerLost).body
        assert (lost.worker, lost.signal) == ("hanging", "hang")
        assert "heartbeats arrive, but step 20 is" in lost.reason
        # Learned from its own steps, one in 50 ms: the limit is the floor or ten times the mean.
        assert lost.evidence["step_mean_s"] > 0.03
        limit_s = max(0.8, 10 * lost.evidence["step_mean_s"])
        assert lost.evidence["timeout_s"] == pytest.approx(limit_s)
        assert lost.evidence["stuck_s"] >= limit_s
        assert hanging.wait_for_line("refused (.*)")[1].startswith("fenced")
        with pytest.raises(Empty):
            cluster.fact(WorkerLost, timeout_s=limit_s)
        waiting.wait_for_line("pulse")


def test_slow_steps_are_not_a_hang(tmp_path):
    with serving(tmp_path, **HANGING) as cluster:
        cluster.child("w").wait_for_line("pulse")
        with pytest.raises(Empty):
            cluster.fact(WorkerLost, timeout_s=2.5)


def test_hang_detection_does_not_depend_on_heartbeat_timeout(tmp_path):
    with serving(tmp_path, **HANGING | {"heartbeat_timeout_s": 30.0}) as cluster:
        cluster.child("w", 20).wait_for_line("pulse")
        assert cluster.fact(WorkerLost, timeout_s=6).body.signal == "hang"


@pytest.mark.parametrize("skew_s", [-HOUR_S, HOUR_S])
def test_wrong_clock_of_a_worker_has_no_effect(tmp_path, skew_s):
    with serving(tmp_path, **STOPPABLE) as cluster:
        child = cluster.child("w", FOREVER, "--skew-s", str(skew_s))
        server_ns = int(child.wait_for_line("pulse ([0-9]+)")[1])
        assert abs(server_ns - time.time_ns()) < 60e9
        with pytest.raises(Empty):
            cluster.fact(WorkerLost, timeout_s=1.5)
        stopped_ns = child.signal(signal.SIGSTOP)
        event = cluster.fact(WorkerLost)
    assert event.body.signal == "heartbeat"
    assert 0.8 < seconds_after(stopped_ns, event) < 2.0
    assert abs(event.wall_ns - time.time_ns()) < 60e9


@pytest.mark.parametrize("skew_s", [-HOUR_S, HOUR_S])
def test_unary_heartbeat_counts_at_its_arrival(tmp_path, skew_s):
    with serving(tmp_path, heartbeat_timeout_s=0.6) as cluster:
        cluster.client.register("w")
        stamp = int((time.time() + skew_s) * 1000)
        beat = pb.HeartbeatRequest(worker_id="w", timestamp_ms=stamp)
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            answer = cluster.client.Heartbeat(beat)
            assert abs(answer.server_timestamp_ms - time.time() * 1000) < 60_000
            time.sleep(0.1)
        event = cluster.fact(WorkerLost)
    assert event.body.signal == "heartbeat"
    assert event.body.evidence["silence_s"] == pytest.approx(0.6, abs=0.4)


def test_paused_coordinator_declares_no_worker_lost(tmp_path):
    with process(tmp_path, **STOPPABLE) as up:
        child = Child(up.address, "w", FOREVER)
        try:
            child.wait_for_line("pulse")
            os.kill(up.pid, signal.SIGSTOP)
            time.sleep(3 * STOPPABLE["heartbeat_timeout_s"])
            os.kill(up.pid, signal.SIGCONT)
            for _ in range(30):
                child.wait_for_line("pulse")
        finally:
            child.process.kill()
            child.process.wait()
            child.reading.join()
            child.process.stdout.close()
        up.kill()
        with SqliteStore(up.store, CODEC) as store:
            facts = [event.body for event in store.read()]
    assert [fact for fact in facts if isinstance(fact, WorkerLost)] == []
    assert "the coordinator did not run for" in up.output()
