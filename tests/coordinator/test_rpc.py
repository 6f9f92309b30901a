"""The gRPC service through a real server and a plain grpcio channel."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from queue import SimpleQueue

import grpc
import pytest

from strata.store.event_store import Window
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator


def refused(status, call, *given, code=""):
    with pytest.raises(grpc.RpcError) as caught:
        call(*given)
    error = caught.value
    assert error.code() is status, error
    metadata = dict(error.trailing_metadata())
    assert not code or metadata["strata-code"] == code
    return error.details()


def test_worker_registers_sends_heartbeats_and_leaves(client):
    given = client.register("w", hostname="h", gpu_count=8)
    assert (given.assigned_id, given.rank, given.world_size) == ("w", 0, 1)
    assert given.heartbeat_interval_ms == 5000
    beat = pb.HeartbeatRequest(worker_id="w", state=pb.WORKER_STATE_TRAINING, current_step=7)
    assert client.Heartbeat(beat).acknowledged
    assert client.DeregisterWorker(pb.DeregisterWorkerRequest(worker_id="w")).success
    details = refused(grpc.StatusCode.FAILED_PRECONDITION, client.Heartbeat, beat, code="fenced")
    assert "left" in details


def test_ranks_are_dense_and_ids_generated(client):
    answers = [client.register() for _ in range(4)]
    assert [answer.rank for answer in answers] == [0, 1, 2, 3]
    assert len({answer.assigned_id for answer in answers}) == 4


def test_live_id_cannot_be_claimed_and_resend_is_recognised(client):
    first = client.register("w", nonce="mine")
    assert client.register("w", nonce="mine").incarnation == first.incarnation
    refused(grpc.StatusCode.ALREADY_EXISTS, client.register, "w", code="already_exists")


def test_unknown_worker_gets_not_found(client):
    beat = pb.HeartbeatRequest(worker_id="nobody")
    assert "not registered" in refused(grpc.StatusCode.NOT_FOUND, client.Heartbeat, beat)


def test_shards_cover_the_dataset_and_follow_the_members(client):
    for worker in "abc":
        client.register(worker)
    spec = {"dataset_id": "d", "total_samples": 1005, "shard_size": 10, "shuffle": True, "seed": 1}
    assert client.RegisterDataset(pb.RegisterDatasetRequest(**spec)).total_shards == 101

    def owned(worker: str, epoch: int = 0):
        asked = pb.GetDataShardsRequest(worker_id=worker, dataset_id="d", epoch=epoch)
        return list(client.GetDataShards(asked).shards)

    held = {worker: owned(worker) for worker in "abc"}
    samples = sorted((s.start_index, s.end_index) for shards in held.values() for s in shards)
    assert samples[0][0] == 0
    assert samples[-1][1] == 1005
    assert all(end == start for (_, end), (start, _) in pairwise(samples))
    again = [s.shard_id for s in owned("a", 1)]
    assert sorted(again) == sorted(s.shard_id for s in held["a"])
    assert again != [s.shard_id for s in held["a"]]
    client.DeregisterWorker(pb.DeregisterWorkerRequest(worker_id="c"))
    assert sum(len(owned(worker)) for worker in "ab") == 101
    one = client.GetDataShard(pb.GetDataShardRequest(worker_id="a", dataset_id="d", index=1))
    assert one.shard_id == owned("a")[1].shard_id
    beyond = pb.GetDataShardRequest(worker_id="a", dataset_id="d", index=1000)
    refused(grpc.StatusCode.NOT_FOUND, client.GetDataShard, beyond)


def test_invalid_dataset_error_names_the_field(client):
    bad = pb.RegisterDatasetRequest(dataset_id="d", total_samples=10, shard_size=0)
    assert "shard_size" in refused(grpc.StatusCode.INVALID_ARGUMENT, client.RegisterDataset, bad)


def test_epoch_advances_once_for_many_requests(client):
    client.register("a")
    client.register("b")
    client.RegisterDataset(
        pb.RegisterDatasetRequest(dataset_id="d", total_samples=10, shard_size=1)
    )
    client.GetDataShards(pb.GetDataShardsRequest(worker_id="a", dataset_id="d"))
    for worker in "ab":
        asked = pb.AdvanceEpochRequest(dataset_id="d", worker_id=worker, from_epoch=0)
        assert client.AdvanceEpoch(asked).epoch == 1


def test_barrier_waits_for_all_workers(client):
    for worker in "abc":
        client.register(worker)
    with ThreadPoolExecutor(3) as pool:
        early = [
            pool.submit(client.WaitBarrier, pb.WaitBarrierRequest(worker_id=w, barrier_id="x"))
            for w in "ab"
        ]
        assert not any(waiting.done() for waiting in early)
        last = client.WaitBarrier(pb.WaitBarrierRequest(worker_id="c", barrier_id="x"))
        outcomes = [waiting.result(5) for waiting in early]
    assert last.released
    assert last.participants == 3
    assert sorted([o.arrival_order for o in outcomes] + [last.arrival_order]) == [0, 1, 2]


def test_barrier_can_be_reused(client):
    client.register("a")
    for _ in range(3):
        assert client.WaitBarrier(pb.WaitBarrierRequest(worker_id="a", barrier_id="x")).released


def test_failed_barrier_names_the_missing_workers(tmp_path):
    with coordinator(tmp_path, barrier_timeout_s=0.2) as started:
        client = Client(started)
        client.register("here")
        client.register("absent")
        wait = pb.WaitBarrierRequest(worker_id="here", barrier_id="x")
        details = refused(grpc.StatusCode.DEADLINE_EXCEEDED, client.WaitBarrier, wait)
        assert "absent" in details


def test_cancelled_barrier_wait_does_not_affect_others(client):
    for worker in "ab":
        client.register(worker)
    wait = pb.WaitBarrierRequest(worker_id="a", barrier_id="x", request=1)
    with pytest.raises(grpc.RpcError):
        client.WaitBarrier(wait, timeout=0.1)
    assert client.WaitBarrier(pb.WaitBarrierRequest(worker_id="b", barrier_id="x")).released
    assert client.WaitBarrier(wait).released


def test_checkpoint_is_committed_by_the_last_rank_and_found(client):
    for worker in "ab":
        client.register(worker)
    empty = client.GetLatestCheckpoint(pb.GetLatestCheckpointRequest(worker_id="a"))
    assert not empty.has_checkpoint

    def notify(worker: str) -> pb.CheckpointAck:
        given = {"worker_id": worker, "step": 50, "epoch": 1, "storage_path": f"/c/{worker}"}
        return client.NotifyCheckpoint(pb.NotifyCheckpointRequest(**given, size_bytes=10))

    first = notify("a")
    assert (first.success, first.status) == (True, "in_progress")
    assert notify("b").status == "completed"
    found = client.GetLatestCheckpoint(pb.GetLatestCheckpointRequest(worker_id="a"))
    assert (found.resume_step, found.resume_epoch) == (50, 1)
    assert found.latest_checkpoint.size_bytes == 20


def test_grpc_state_survives_a_restart(tmp_path):
    with coordinator(tmp_path) as started:
        before = Client(started).register("a", nonce="n")
    with coordinator(tmp_path) as started:
        client = Client(started)
        assert client.register("a", nonce="n").incarnation == before.incarnation
        assert client.register("b").incarnation > before.incarnation


class Stream:
    """A session that the test drives."""

    def __init__(self, client: Client, worker: str, incarnation: int, nonce: str = ""):
        self.outgoing = SimpleQueue()
        self.call = client.session(iter(self.outgoing.get, None))
        self.send(hello=pb.Hello(worker_id=worker, incarnation=incarnation, nonce=nonce))

    def send(self, request: int = 0, **body):
        self.outgoing.put(pb.WorkerMessage(request=request, **body))

    def next(self, kind: str) -> pb.CoordinatorMessage:
        for message in self.call:
            if message.WhichOneof("body") == kind:
                return message
        raise AssertionError(f"the stream ended without {kind}")

    def close(self):
        self.outgoing.put(None)


def open_session(client: Client, worker: str, nonce: str = "", **given) -> Stream:
    incarnation = client.register(worker, nonce=nonce, **given).incarnation
    return Stream(client, worker, incarnation, nonce)


def test_session_receives_its_standing_and_every_change(client):
    a = open_session(client, "a")
    assert a.next("standing").standing.world_size == 1
    b = open_session(client, "b")
    standing = a.next("standing").standing
    while standing.world_size != 2:
        standing = a.next("standing").standing
    assert standing.generation == 2
    b.close()
    while a.next("standing").standing.world_size != 1:
        pass  # the broken connection was detected and a generation without b formed
    a.close()


def test_barrier_in_sessions(client):
    streams = [open_session(client, name) for name in "abcd"]
    for stream in streams:
        stream.send(request=9, arrive=pb.Arrive(barrier_id="x", arrival=1))
    for stream in streams:
        message = stream.next("barrier")
        assert message.request == 9
        assert message.barrier.outcome.released
        assert message.barrier.outcome.participants == 4
        stream.close()


def test_heartbeats_are_answered_and_events_stored_once(client):
    stream = open_session(client, "a")
    assert stream.next("standing").standing.stored_seq == -1
    stream.send(beat=pb.Beat(sent_mono_ns=5, state=pb.WORKER_STATE_TRAINING, step=3))
    assert stream.next("pulse").pulse.sent_mono_ns == 5
    batch = pb.EventBatch(
        first_seq=0, count=3, wall_from_ns=1, wall_to_ns=2, kinds=["X"], payload=b"opaque"
    )
    for _ in range(2):
        stream.send(events=batch)
        assert stream.next("stored").stored.seq == 2
    store = client.coordinator.engine.kernel.store
    assert [found.payload for found in store.batches(Window(node="a"))] == [b"opaque"]
    stream.close()


def test_zombie_session_is_fenced(client):
    stream = open_session(client, "a")
    stream.next("standing")
    client.DeregisterWorker(pb.DeregisterWorkerRequest(worker_id="a"))
    stream.send(request=4, beat=pb.Beat())
    answer = stream.next("refused")
    assert (answer.request, answer.refused.code) == (4, "fenced")
    stream.close()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"arrive": pb.Arrive(barrier_id="x", arrival=1)}, "invalid_argument"),
        ({"hello": pb.Hello(worker_id="nobody", incarnation=1)}, "not_found"),
        ({}, "invalid_argument"),
    ],
)
def test_session_without_hello_is_refused(client, body, code):
    outgoing = SimpleQueue()
    call = client.session(iter(outgoing.get, None))
    outgoing.put(pb.WorkerMessage(request=1, **body))
    assert next(call).refused.code == code
    outgoing.put(None)


def test_worker_cannot_affect_another_session(client):
    a = open_session(client, "a")
    a.next("standing")
    a.send(request=1, events=pb.EventBatch(first_seq=-5, count=0))
    assert a.next("refused").refused.code == "invalid_argument"
    a.send(request=2, leave=pb.Leave(outcome="nonsense"))
    assert a.next("refused").refused.code == "invalid_argument"
    a.send(beat=pb.Beat(sent_mono_ns=1))
    assert a.next("pulse").pulse.sent_mono_ns == 1
    a.close()


def test_malformed_messages_are_invalid_argument(client):
    raw = client.channel.unary_unary("/strata.v1.Coordinator/RegisterWorker")
    refused(grpc.StatusCode.INVALID_ARGUMENT, raw, b"\xff\xff\xff", code="invalid_argument")


def test_many_workers_at_once(client):
    names = [f"w{number}" for number in range(100)]
    with ThreadPoolExecutor(16) as pool:
        ranks = sorted(answer.rank for answer in pool.map(client.register, names))
    assert ranks == list(range(100))


def test_grpc_calls_need_the_token(tmp_path):
    with coordinator(tmp_path, token="secret") as started:
        client = Client(started)
        refused(grpc.StatusCode.UNAUTHENTICATED, client.register, "a", code="unauthenticated")
        request = pb.RegisterWorkerRequest(worker_id="a")
        answer = client.RegisterWorker(request, metadata=[("authorization", "Bearer secret")])
        assert answer.assigned_id == "a"


def test_broken_connection_is_detected(client):
    stream = open_session(client, "a", nonce="n")
    stream.next("standing")
    lost = threading.Event()
    engine = client.coordinator.engine
    engine.follow(
        lambda events: lost.set() if any(e.kind == "WorkerLost" for e in events) else None
    )
    stream.call.cancel()
    assert lost.wait(10)


def test_worker_address_is_that_of_its_connection(client):
    client.register("w")
    assert client.coordinator.engine.kernel.state.workers["w"].address == "127.0.0.1"
