"""The coordinator sends only what is on disk."""

import queue
import threading
from contextlib import suppress

import grpc
import pytest

from strata.errors import Unavailable
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator


class Gate:
    """Blocks the appends of a store until it is opened, then lets them fail or continue."""

    def __init__(self, store):
        self._append = store.append
        self._open = threading.Event()
        self._open.set()
        self.failing = False
        self.waiting = threading.Event()
        store.append = self.append

    def append(self, events, **given):
        if events and not self._open.is_set():
            self.waiting.set()
            assert self._open.wait(20)
        if events and self.failing:
            raise Unavailable("the disk is full", hint="free some space")
        return self._append(events, **given)

    def close(self):
        self.waiting.clear()
        self._open.clear()

    def open(self, failing=False):
        self.failing = failing
        self._open.set()


@pytest.fixture
def started(tmp_path):
    with coordinator(tmp_path) as started:
        client = Client(started)
        yield client, Gate(started.engine.kernel.store)
        client.channel.close()


def session(client, registered):
    """A session with a queue of answers and a function that sends messages."""
    said: queue.Queue = queue.Queue()
    hello = pb.Hello(worker_id=registered.assigned_id, incarnation=registered.incarnation)
    said.put(pb.WorkerMessage(request=1, hello=hello))
    answers: queue.Queue = queue.Queue()
    call = client.session(iter(said.get, None))

    def read() -> None:
        with suppress(grpc.RpcError):  # the end of the session
            for message in call:
                answers.put(message)

    threading.Thread(target=read, daemon=True).start()
    return said, answers


def test_standing_is_sent_after_its_generation_is_stored(started):
    client, gate = started
    first = client.register("a", world_size=2)
    gate.close()
    other = client.RegisterWorker.future(pb.RegisterWorkerRequest(worker_id="b", world_size=2))
    assert gate.waiting.wait(10)
    said, answers = session(client, first)
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.5)
    gate.open(failing=True)
    assert other.exception(timeout=10).code() == grpc.StatusCode.UNAVAILABLE
    standing = answers.get(timeout=10)
    gate.failing = False
    assert standing.WhichOneof("body") == "refused" or standing.standing.generation == 0
    said.put(None)


def test_reads_of_a_worker_wait_for_the_disk(started):
    client, gate = started
    client.RegisterDataset(
        pb.RegisterDatasetRequest(dataset_id="d", total_samples=100, shard_size=10)
    )
    client.register("a")
    asked = pb.GetDataShardsRequest(worker_id="a", dataset_id="d")
    generation = client.GetDataShards(asked).generation
    gate.close()
    other = client.RegisterWorker.future(pb.RegisterWorkerRequest(worker_id="b"))
    assert gate.waiting.wait(10)
    shards = client.GetDataShards.future(asked)
    with pytest.raises(grpc.FutureTimeoutError):
        shards.result(timeout=0.3)
    gate.open(failing=True)
    assert other.exception(timeout=10).code() == grpc.StatusCode.UNAVAILABLE
    answer = shards.result(timeout=10)
    assert (answer.generation, len(answer.shards)) == (generation, 10)
