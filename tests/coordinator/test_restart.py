"""Restarts: the coordinator is killed at random moments while eight workers send heartbeats and
events and meet at barriers. They continue by themselves, as the same incarnations, and nothing that
was acknowledged is lost, repeated or counted twice."""

import random
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import grpc
import pytest

from strata.coordinator.sessions.unary_calls import SERVICE
from strata.core.barriers.barrier_rules import BarrierArrived, BarrierFailed, BarrierReleased
from strata.core.cluster import CODEC, CoordinatorStarted
from strata.core.generations.generation_members import GenerationChanged
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered
from strata.store.event_batches import unpack
from strata.store.event_store import Window
from strata.store.sqlite import SqliteStore
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import ANSWERS
from tests.coordinator.process import Process, process
from tests.store import kinds

WORKERS = 8
EVENTS_PER_ROUND = 5
TIMEOUT_S = 30.0
RETRY_S = 0.02
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


def call_until_answered(address: str, name: str, request):
    """A unary call, retried while the coordinator is down."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with grpc.insecure_channel(address, OPTIONS) as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=ANSWERS[name].FromString,
            )
            try:
                return call(request, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() not in GONE or time.monotonic() > deadline:
                    raise
        time.sleep(RETRY_S)


class Goal:
    """The round after which all workers leave; set after the last kill."""

    last_round = 2**62


class Worker(threading.Thread):
    """Meets the others in each round, and records what was acknowledged.

    It only reacts to messages: a standing makes it repeat what may be lost, a release starts the
    next round.
    """

    def __init__(self, address: str, name: str, goal: "Goal") -> None:
        super().__init__(name=name)
        self.address = address
        self.goal = goal
        self.incarnation = 0
        self.round = 1
        self.sent_events = 0
        self.acknowledged_seq = -1
        self.standings: list[tuple[int, int]] = []
        self.connections = 0
        self.released: list[int] = []
        self.left: list[pb.LeftBarrier] = []
        self.arrived_in: dict[int, int] = {}
        self.faults: list[str] = []
        self.beats = 0

    def register(self) -> None:
        request = pb.RegisterWorkerRequest(worker_id=self.name)
        self.incarnation = call_until_answered(self.address, "RegisterWorker", request).incarnation

    def run(self) -> None:
        deadline = time.monotonic() + 3 * TIMEOUT_S
        while not self._connect() and time.monotonic() < deadline:
            time.sleep(RETRY_S)

    def _connect(self) -> bool:
        """Run one session until it breaks (False) or the worker has left (True)."""
        outgoing: SimpleQueue[pb.WorkerMessage | None] = SimpleQueue()
        hello = pb.Hello(worker_id=self.name, incarnation=self.incarnation, left=self.left[-1:])
        outgoing.put(pb.WorkerMessage(hello=hello))
        with grpc.insecure_channel(self.address, OPTIONS) as channel:
            call = channel.stream_stream(
                f"/{SERVICE}/Session",
                request_serializer=pb.WorkerMessage.SerializeToString,
                response_deserializer=pb.CoordinatorMessage.FromString,
            )
            self._begun = False
            try:
                return any(self._hear(m, outgoing) for m in call(iter(outgoing.get, None)))
            except grpc.RpcError as error:
                if error.code() not in GONE:
                    self.faults.append(str(error))
                return False
            finally:
                outgoing.put(None)

    def _hear(self, message: pb.CoordinatorMessage, outgoing) -> bool:
        """Handle one message; True after the last."""
        kind = message.WhichOneof("body")
        if kind == "standing":
            self._hear_standing(message.standing)
            if not self._begun:
                self._begun = True
                self.connections += 1
                self._speak(outgoing, message.standing.stored_seq + 1)
        elif kind == "stored":
            self.acknowledged_seq = max(self.acknowledged_seq, message.stored.seq)
        elif kind == "pulse":
            self.beats += 1
        elif kind == "barrier" and self._released(message.barrier):
            self._speak(outgoing, self.sent_events)
        elif kind == "refused":
            self.faults.append(str(message.refused))
        return kind == "done"

    def _hear_standing(self, standing: pb.Standing) -> None:
        self.standings.append((standing.incarnation, standing.generation))
        if standing.stored_seq < self.acknowledged_seq:
            self.faults.append(f"events to {self.acknowledged_seq} were stored, then forgotten")

    def _speak(self, outgoing, first_seq: int) -> None:
        """A heartbeat, the events from a number on, and the arrival at the round's barrier."""
        if self.round > self.goal.last_round:
            outgoing.put(pb.WorkerMessage(leave=pb.Leave(outcome="done")))
            return
        self.sent_events = max(self.sent_events, self.round * EVENTS_PER_ROUND)
        beat = pb.Beat(state=pb.WORKER_STATE_TRAINING, step=self.round, sent_mono_ns=self.round)
        outgoing.put(pb.WorkerMessage(beat=beat))
        if first_seq < self.sent_events:
            batch = kinds.batch(first_seq, self.sent_events, self.name, self.incarnation)
            fields = {
                name: getattr(batch, name) for name in pb.EventBatch.DESCRIPTOR.fields_by_name
            }
            outgoing.put(pb.WorkerMessage(events=pb.EventBatch(**fields)))
        arrive = pb.Arrive(
            barrier_id="round",
            step=self.round,
            arrival=self.round,
            generation=self.arrived_in.setdefault(self.round, self.standings[-1][1]),
            after=self.left[-1].round if self.left else 0,
        )
        outgoing.put(pb.WorkerMessage(request=self.round, arrive=arrive))

    def _released(self, message: pb.BarrierOutcome) -> bool:
        if message.arrival != self.round or not message.outcome.released:
            self.faults.append(f"in round {self.round} got {message}")
            return False
        self.released.append(message.arrival)
        left = pb.LeftBarrier(
            barrier_id="round",
            round=message.outcome.round,
            generation=message.outcome.generation,
            participants=message.outcome.participants,
            step=self.round,
        )
        self.left.append(left)
        self.round += 1
        return True


class Visitors(threading.Thread):
    """Join and leave repeatedly, to force new generations."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.enough = threading.Event()
        self.promised: list[tuple[str, int, int]] = []

    def run(self) -> None:
        while not self.enough.is_set():
            name = f"visitor-{len(self.promised)}"
            request = pb.RegisterWorkerRequest(worker_id=name, nonce=name)
            given = call_until_answered(self.address, "RegisterWorker", request)
            self.promised.append((name, given.incarnation, given.generation))
            who = {"worker_id": name, "incarnation": given.incarnation, "nonce": name}
            self._leave(pb.DeregisterWorkerRequest(**who))
            self.enough.wait(0.05)

    def _leave(self, request: pb.DeregisterWorkerRequest) -> None:
        try:
            call_until_answered(self.address, "DeregisterWorker", request)
        except grpc.RpcError as error:
            # The answer to an earlier attempt was lost: the worker has left.
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise


def run_through(coordinator: Process, kills: int, seed: int) -> tuple[list[Worker], Visitors]:
    """Eight workers while the coordinator is killed and restarted."""
    chance = random.Random(seed)
    goal = Goal()
    workers = [Worker(coordinator.address, f"w{number}", goal) for number in range(WORKERS)]
    visitors = Visitors(coordinator.address)
    for worker in workers:
        worker.register()
    for thread in (*workers, visitors):
        thread.start()
    try:
        for _ in range(kills):
            target = max(worker.round for worker in workers) + 2
            wait_until(partial(all_reached, workers, target), workers)
            time.sleep(chance.uniform(0.0, 0.3))
            coordinator.kill()
            time.sleep(chance.uniform(0.0, 0.2))
            coordinator.start()
    finally:
        visitors.enough.set()
        visitors.join(TIMEOUT_S)
        goal.last_round = max(worker.round for worker in workers) + 20
        for worker in workers:
            worker.join(TIMEOUT_S)
    return workers, visitors


def all_reached(workers: list[Worker], target: int) -> bool:
    return all(worker.round >= target for worker in workers)


def wait_until(condition, workers: list[Worker]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        progress = {worker.name: (worker.round, worker.faults) for worker in workers}
        assert time.monotonic() < deadline, f"the workers do not go on: {progress}"
        time.sleep(0.01)


def check_workers(workers: list[Worker], kills: int, last_round: int) -> None:
    for worker in workers:
        assert worker.faults == []
        assert not worker.is_alive()
        assert worker.connections >= kills + 1, "it was connected before and after each kill"
        assert {incarnation for incarnation, _ in worker.standings} == {worker.incarnation}
        generations = [generation for _, generation in worker.standings]
        assert generations == sorted(generations)
        assert worker.released == list(range(1, last_round + 1))
        met = [left.round for left in worker.left]
        assert met == [left.round for left in workers[0].left], "they met in the same rounds"
        assert worker.acknowledged_seq == worker.sent_events - 1
        assert worker.beats >= last_round


def check_people(bodies: list, workers: list[Worker], visitors: Visitors, kills: int) -> None:
    def every(kind):
        return [body for body in bodies if isinstance(body, kind)]

    assert [fact.incarnation for fact in every(CoordinatorStarted)] == list(range(1, kills + 2))
    registered = [(fact.worker, fact.incarnation) for fact in every(WorkerRegistered)]
    promised = [(worker.name, worker.incarnation) for worker in workers]
    promised += [(name, incarnation) for name, incarnation, _ in visitors.promised]
    assert sorted(registered) == sorted(promised), "each registered once, and was not forgotten"
    numbers = [incarnation for _, incarnation in registered]
    assert numbers == sorted(set(numbers))
    generations = [fact.generation for fact in every(GenerationChanged)]
    assert generations == sorted(set(generations))
    assert {generation for _, _, generation in visitors.promised} <= set(generations)
    assert every(WorkerLost) == []


def check_barriers(bodies: list, last_round: int) -> None:
    assert [body for body in bodies if isinstance(body, BarrierFailed)] == []
    released = [body.round for body in bodies if isinstance(body, BarrierReleased)]
    assert len(released) == len(set(released)), "a round was released twice"
    arrived = [body for body in bodies if isinstance(body, BarrierArrived)]
    assert max(Counter((body.worker, body.request) for body in arrived).values()) == 1
    assert max(Counter((body.worker, body.round) for body in arrived).values()) == 1
    meetings: dict[int, set[int]] = {}
    for body in arrived:
        meetings.setdefault(body.request, set()).add(body.round)
    # A release that was sent before a kill and not stored may have no arrival.
    learnt = sum(bool(body.told) for body in bodies if isinstance(body, BarrierReleased))
    assert set(meetings) <= set(range(1, last_round + 1))
    assert len(meetings) >= last_round - learnt
    assert all(len(rounds) == 1 and rounds <= set(released) for rounds in meetings.values())


def check_events(store: SqliteStore, workers: list[Worker]) -> None:
    for worker in workers:
        batches = list(store.batches(Window(node=worker.name)))
        events = [event for batch in batches for event in unpack(kinds.CODEC, batch)]
        assert events == kinds.events(0, worker.sent_events)
        assert store.gaps(worker.name, worker.incarnation) == []
    assert store.streams() == sorted((worker.name, worker.incarnation) for worker in workers)


@contextmanager
def reading(coordinator: Process):
    """The store of a coordinator that has ended."""
    with SqliteStore(coordinator.store, CODEC) as store:
        assert store.verify() == []
        yield store


def check_kills(folder, kills: int, seed: int) -> None:
    with process(folder) as coordinator:
        workers, visitors = run_through(coordinator, kills, seed)
        coordinator.kill()
    last_round = workers[0].goal.last_round
    check_workers(workers, kills, last_round)
    with reading(coordinator) as store:
        facts = list(store.read())
        assert [fact.seq for fact in facts] == list(range(len(facts)))
        bodies = [fact.body for fact in facts]
        check_people(bodies, workers, visitors, kills)
        check_barriers(bodies, last_round)
        check_events(store, workers)


def test_killed_coordinator_loses_nothing(tmp_path):
    check_kills(tmp_path, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_repeatedly_killed_coordinator_loses_nothing(tmp_path, seed):
    check_kills(tmp_path, kills=10, seed=seed)


def test_worker_that_does_not_reconnect_is_absent(tmp_path):
    with process(tmp_path, reattach_grace_s=2.5) as coordinator:
        goal = Goal()
        staying = Worker(coordinator.address, "staying", goal)
        request = pb.RegisterWorkerRequest(worker_id="gone")
        call_until_answered(coordinator.address, "RegisterWorker", request)
        staying.register()
        staying.start()
        wait_until(lambda: staying.connections == 1, [staying])
        coordinator.kill()
        coordinator.start()
        # It waits at a barrier for the lost worker, and is released without it.
        wait_until(lambda: staying.round > 1, [staying])
        goal.last_round = staying.round
        staying.join(TIMEOUT_S)
        coordinator.kill()
    assert staying.faults == []
    with reading(coordinator) as store:
        (lost,) = [fact.body for fact in store.read() if isinstance(fact.body, WorkerLost)]
    assert (lost.worker, lost.signal) == ("gone", "absent")
    assert lost.reason == "it did not return within 2.5 s"
    assert lost.evidence["silence_s"] >= 2.5
