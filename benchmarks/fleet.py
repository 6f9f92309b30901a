"""A fleet of workers at a coordinator, and of replicas at torchft's lighthouse, both as swarms."""

import time
from random import Random

from swarm import Swarm, frames, head

from strata.core.events import Envelope, Fact
from strata.core.record.event_codec import CODEC
from strata.core.workers.worker_facts import StepFinished, TrainingFinished, TrainingStarted
from strata.sdk.session.heartbeat_thread import SEND_INTERVAL_S
from strata.store.event_batches import pack
from strata.wire.grpc.grpc_call import PREFIX_BYTES, frame
from strata.wire.http2.http2_frames import DATA
from strata.wire.v1 import coordinator_pb2 as pb

SERVICE = "/strata.v1.Coordinator/"
LIGHTHOUSE_QUORUM = "/torchft.LighthouseService/Quorum"
IN_FLIGHT = 1_000
BEAT_EVERY_S = 5.0


def message_of(taken: tuple[int, int, bytes]) -> pb.CoordinatorMessage:
    """The coordinator's message in a frame."""
    return pb.CoordinatorMessage.FromString(taken[2][PREFIX_BYTES:])


class Fleet:
    """Registered workers of one group, each with a session open."""

    def __init__(self, port: int, workers: int, per_connection: int = 1) -> None:
        self.size = workers
        self.swarm = Swarm(port, workers, per_connection)
        began = time.perf_counter()
        incarnations = self._register()
        self.registered_s = time.perf_counter() - began
        self.streams, joined = self._say_hello(incarnations)
        self.joined_s = joined - began
        self._beats = [
            self._frames(worker, pb.WorkerMessage(beat=beat_of(worker)))
            for worker in range(workers)
        ]
        self._arrivals = self._round = 0
        self._beaten = 0.0
        self.beat()
        self.swarm.settle(0.5 + workers / 5_000)  # the first beats change states, which are facts

    def _register(self) -> list[int]:
        """Register every worker; returns the incarnations."""
        swarm, path = self.swarm, head(SERVICE + "RegisterWorker")
        who: dict[tuple[int, int], int] = {}
        for first in range(0, self.size, IN_FLIGHT):
            some = range(first, min(first + IN_FLIGHT, self.size))
            for worker in some:
                request = pb.RegisterWorkerRequest(
                    worker_id=f"worker-{worker}", hostname=f"host-{worker // 8}", gpu_count=1
                )
                request.world_size = self.size
                stream, call = swarm.call(worker, path, request.SerializeToString())
                who[swarm.of(worker).index, stream] = worker
                swarm.send(worker, call)
            swarm.receive(ends=len(some))
        incarnations = [0] * self.size
        for connection, stream, data in swarm.taken:
            answer = pb.RegisterWorkerResponse.FromString(data[PREFIX_BYTES:])
            incarnations[who[connection, stream]] = answer.incarnation
        assert all(incarnations), "a worker was not registered"
        swarm.taken.clear()
        return incarnations

    def _say_hello(self, incarnations: list[int]) -> tuple[list[int], float]:
        """Open the session of every worker; returns the streams and when all were answered."""
        swarm, path = self.swarm, head(SERVICE + "Session")
        streams = []
        for worker, incarnation in enumerate(incarnations):
            streams.append(swarm.open(worker, path))
            hello = pb.Hello(worker_id=f"worker-{worker}", incarnation=incarnation)
            message = pb.WorkerMessage(request=1, hello=hello).SerializeToString()
            swarm.send(worker, frames(DATA, 0, streams[-1], frame(message)))
        joined = swarm.receive(messages=self.size)
        swarm.settle()
        assert message_of(swarm.taken[-1]).standing.world_size == self.size
        return streams, joined

    def _frames(self, worker: int, message: pb.WorkerMessage) -> bytes:
        return frames(DATA, 0, self.streams[worker], frame(message.SerializeToString()))

    def beat(self) -> None:
        """Send a heartbeat of every worker and receive the answers."""
        self.swarm.taken.clear()
        for worker, data in enumerate(self._beats):
            self.swarm.send(worker, data)
        self.swarm.receive(messages=self.size)
        self._beaten = time.perf_counter()

    def beats(self, waves: int, ahead: int = 2) -> float:
        """Send this many heartbeats of every worker, a few waves in flight; returns the seconds."""
        self.swarm.taken.clear()
        began = time.perf_counter()
        for wave in range(waves + ahead):
            if wave < waves:
                for worker, data in enumerate(self._beats):
                    self.swarm.send(worker, data)
            if wave >= ahead:
                self.swarm.receive(messages=(wave - ahead + 1) * self.size)
        return time.perf_counter() - began

    def beat_evenly(self, seconds: float) -> int:
        """Send a heartbeat of every worker every five seconds, spread evenly; returns their
        number."""
        self.swarm.taken.clear()
        began, sent = time.perf_counter(), 0
        while (now := time.perf_counter() - began) < seconds:
            while sent < now / BEAT_EVERY_S * self.size:
                worker = sent % self.size
                self.swarm.send(worker, self._beats[worker])
                sent += 1
            self.swarm.answer_pings(0.01)
        self._beaten = time.perf_counter()
        return sent

    def train_evenly(self, seconds: float, step_s: float) -> tuple[int, int]:
        """Send heartbeats every five seconds and recorded events every two, spread evenly over
        the workers; returns the number of batches of events, and their bytes."""
        swarm = self.swarm
        swarm.taken.clear()
        steps = round(SEND_INTERVAL_S / step_s)
        began, beats, sent, sent_bytes = time.perf_counter(), 0, 0, 0
        wave, batch = -1, pb.EventBatch()
        while (now := time.perf_counter() - began) < seconds:
            while beats < now / BEAT_EVERY_S * self.size:
                swarm.send(beats % self.size, self._beats[beats % self.size])
                beats += 1
            while sent < now / SEND_INTERVAL_S * self.size:
                if sent // self.size > wave:
                    wave = sent // self.size
                    batch = recorded(wave * steps, steps)
                worker = sent % self.size
                data = self._frames(worker, pb.WorkerMessage(events=batch))
                swarm.send(worker, data)
                sent += 1
                sent_bytes += len(data)
            swarm.answer_pings(0.01)
        self._beaten = time.perf_counter()
        return sent, sent_bytes

    def stay_alive(self) -> None:
        """Send the heartbeats that are due; separate from `meet`, so that it does not count
        them."""
        if time.perf_counter() - self._beaten > BEAT_EVERY_S:
            self.beat()

    def meet(self, at_once: bool) -> float:
        """One round of a barrier: seconds from the last arrival to the last release."""
        swarm, last = self.swarm, self.size - 1
        self._arrivals += 1
        arrive = pb.Arrive(
            barrier_id="step",
            arrival=self._arrivals,
            step=self._arrivals,
            generation=1,
            after=self._round,
        )
        message = pb.WorkerMessage(request=self._arrivals, arrive=arrive)
        ready = [self._frames(worker, message) for worker in range(self.size)]
        swarm.taken.clear()
        for worker in range(last):
            swarm.send(worker, ready[worker])
        if not at_once:
            swarm.settle(0.05 + self.size / 10_000)
        began = time.perf_counter()
        swarm.send(last, ready[last])
        took = swarm.receive(messages=self.size) - began
        outcomes = [message_of(taken).barrier.outcome for taken in swarm.taken]
        assert all(outcome.released for outcome in outcomes)
        (self._round,) = {outcome.round for outcome in outcomes}
        return took


def recorded(first_step: int, steps: int) -> pb.EventBatch:
    """The events that a worker records for some steps on a dataset."""
    facts: list[Fact] = []
    draw = Random(first_step)
    for step in range(first_step, first_step + steps):
        loss = draw.random()
        batch, digest = f"samples@{step}", draw.getrandbits(63)
        about = {"batch": batch, "step": step, "dataset": "samples", "generation": 1}
        facts.append(TrainingStarted(**about, samples=32, digest=digest))
        facts.append(TrainingFinished(**about, samples=32, digest=digest, loss=loss))
        facts.append(
            StepFinished(
                step=step,
                data_s=draw.random() / 50,
                compute_s=draw.random() / 50,
                communication_s=draw.random() / 50,
                wait_s=draw.random() / 50,
                loss=loss,
            )
        )
    now_ns = time.time_ns()
    events = [
        Envelope(seq=seq, wall_ns=now_ns + seq * 1_000, mono_ns=now_ns + seq * 1_000, body=fact)
        for seq, fact in enumerate(facts, 3 * first_step)
    ]
    packed = pack(CODEC, "worker", 1, events)
    return pb.EventBatch(
        first_seq=packed.first_seq,
        count=packed.count,
        wall_from_ns=packed.wall_from_ns,
        wall_to_ns=packed.wall_to_ns,
        kinds=packed.kinds,
        payload=packed.payload,
    )


def beat_of(worker: int) -> pb.Beat:
    """A heartbeat as the SDK sends it."""
    measured = pb.ResourceMetrics(
        cpu_percent=93.5,
        memory_used_bytes=12_345_678_901,
        disk_read_bytes=1_234_567,
        disk_write_bytes=7_654_321,
        network_rx_bytes=123_456_789,
        network_tx_bytes=987_654_321,
        disk_free_bytes=98_765_432_100,
    )
    card = measured.gpu_metrics.add()
    card.index, card.name, card.utilization_percent = 0, "NVIDIA H100 80GB HBM3", 97.0
    card.memory_used_bytes, card.memory_total_bytes = 65_432_109_876, 85_899_345_920
    return pb.Beat(
        state=pb.WORKER_STATE_TRAINING,
        attempt=1,
        generation=1,
        step=1_000 + worker,
        resources=measured,
        sent_mono_ns=time.monotonic_ns(),
        sent_wall_ns=time.time_ns(),
    )


class Replicas:
    """Replicas that request a quorum from torchft's lighthouse."""

    def __init__(self, port: int, replicas: int) -> None:
        self.size = replicas
        self.swarm = Swarm(port, replicas)
        self._path = head(LIGHTHOUSE_QUORUM)

    def stay_alive(self) -> None:
        """Do nothing: a request for a quorum is a heartbeat."""

    def meet(self, at_once: bool) -> float:
        """One quorum: seconds from the last request to the last answer."""
        swarm, last = self.swarm, self.size - 1
        ready = [swarm.call(each, self._path, quorum_request(each))[1] for each in range(self.size)]
        swarm.taken.clear()
        for replica in range(last):
            swarm.send(replica, ready[replica])
        if not at_once:
            swarm.settle(0.05 + self.size / 10_000)
        began = time.perf_counter()
        swarm.send(last, ready[last])
        took = swarm.receive(ends=self.size) - began
        answers = b"".join(data for connection, _, data in swarm.taken if connection == last)
        assert answers.count(b"replica-") == self.size, "the quorum is not of everyone"
        return took


def quorum_request(replica: int) -> bytes:
    """A torchft.LighthouseQuorumRequest with only the requester set."""
    name, address = f"replica-{replica}".encode(), f"http://host-{replica}:29512".encode()
    store = f"host-{replica}:29500".encode()
    texts = b"".join(
        bytes((number << 3 | 2, len(text))) + text
        for number, text in enumerate((name, address, store), 1)
    )
    member = texts + bytes((4 << 3, 7, 5 << 3, 8))
    return bytes((1 << 3 | 2, len(member))) + member
