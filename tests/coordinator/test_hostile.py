"""Hostile requests: each is refused with a code and a hint, its cost is bounded, and other clients
are served."""

import asyncio
import threading
import time
from contextlib import contextmanager

import grpc
import msgspec
import pytest
import zstandard

from strata.core.cluster import CODEC
from strata.core.state import encode
from strata.core.workers.fencing import MAX_FENCED
from strata.store.event_batches import deflate
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import ANSWERS, Client, coordinator
from tests.coordinator.process import process
from tests.coordinator.test_rpc import Stream, open_session

TIMEOUT_S = 20.0
MEGABYTE = 2**20
LONG = "x" * 10_000
REFUSED_INPUT = {"invalid_argument", "limit_exceeded"}


def refusal(call, *given) -> grpc.RpcError:
    """The error of a call; it must have a message and a hint."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*given, timeout=TIMEOUT_S)
    metadata = dict(caught.value.trailing_metadata() or ())
    assert metadata.get("strata-hint"), caught.value
    assert len(caught.value.details()) <= 1_024
    return caught.value


def code_of(error: grpc.RpcError) -> str:
    code = dict(error.trailing_metadata() or ()).get("strata-code")
    assert code, error
    return code


def wait_until(condition) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextmanager
def one_turn(client: Client, requests: int):
    """Decide the requests made while the context is open in one turn, in order."""
    engine = client.coordinator.engine
    loop = engine._task.get_loop()
    held, released = threading.Event(), asyncio.Event()

    async def hold() -> None:
        async with engine.settled():
            held.set()
            await released.wait()

    holding = asyncio.run_coroutine_threadsafe(hold(), loop)
    assert held.wait(TIMEOUT_S)
    yield
    wait_until(lambda: engine.inbox_depth() >= requests)
    loop.call_soon_threadsafe(released.set)
    holding.result(TIMEOUT_S)


def dataset(name: str, **given) -> pb.RegisterDatasetRequest:
    spec = {"dataset_id": name, "total_samples": 100, "shard_size": 10}
    return pb.RegisterDatasetRequest(**spec | given)


@pytest.mark.parametrize("method", sorted(ANSWERS))
def test_malformed_request_is_invalid_argument(client, method):
    raw = client.channel.unary_unary(f"/strata.v1.Coordinator/{method}")
    assert code_of(refusal(raw, b"\xff\xff\xff")) == "invalid_argument"


def test_malformed_message_ends_only_its_session(client):
    other = open_session(client, "other")
    raw = client.channel.stream_stream("/strata.v1.Coordinator/Session")
    call = raw(iter([b"\xff\xff\xff"]))
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    other.send(beat=pb.Beat(sent_mono_ns=1))
    assert other.next("pulse").pulse.sent_mono_ns == 1
    other.close()


def test_message_above_the_limit_is_refused_with_a_hint(client):
    huge = pb.RegisterWorkerRequest(worker_id="w", hostname="h" * 5 * MEGABYTE)
    assert code_of(refusal(client.RegisterWorker, huge)) == "limit_exceeded"
    assert client.register("w").assigned_id == "w"


LARGE = "h" * 3 * MEGABYTE
LARGE_FIELDS = {
    "hostname": ("RegisterWorker", pb.RegisterWorkerRequest(worker_id="new", hostname=LARGE)),
    "nonce": ("RegisterWorker", pb.RegisterWorkerRequest(worker_id="new", nonce=LARGE)),
    "metadata": ("RegisterWorker", pb.RegisterWorkerRequest(metadata={"a": LARGE})),
    "much metadata": (
        "RegisterWorker",
        pb.RegisterWorkerRequest(metadata={f"key {number}": "v" for number in range(100_000)}),
    ),
    "reason": ("DeregisterWorker", pb.DeregisterWorkerRequest(worker_id="w", reason=LARGE)),
    "dataset path": ("RegisterDataset", dataset("d", path=LARGE)),
    "dataset metadata": ("RegisterDataset", dataset("d", metadata={"a": LARGE})),
    "barrier": ("WaitBarrier", pb.WaitBarrierRequest(worker_id="w", barrier_id=LARGE)),
    "checkpoint": (
        "NotifyCheckpoint",
        pb.NotifyCheckpointRequest(worker_id="w", checkpoint_id="c", storage_path=LARGE),
    ),
    "checkpoint metadata": (
        "NotifyCheckpoint",
        pb.NotifyCheckpointRequest(worker_id="w", metadata={"a": LARGE}),
    ),
}


@pytest.mark.parametrize("field", LARGE_FIELDS)
def test_large_field_is_refused(client, field):
    """A stored field would stay in the log, in memory and in answers."""
    client.register("w")
    method, request = LARGE_FIELDS[field]
    call = getattr(client, method).future(request)
    if call.exception(TIMEOUT_S) is not None:
        assert code_of(call) in REFUSED_INPUT
    kernel = client.coordinator.engine.kernel
    kept = sum(len(CODEC.encode([event])) for event in kernel.store.read())
    assert kept < MEGABYTE, f"{kept} bytes are in the log"
    assert len(encode(kernel.state)) < MEGABYTE


ODD_IDS = {
    "long": LONG,
    "NUL": "a\x00b",
    "newline": "a\nb",
    "escape": "a\x1b[31mb",
    "bidi": "a\u202eb",
}
ID_FIELDS = {
    "worker": lambda odd: ("RegisterWorker", pb.RegisterWorkerRequest(worker_id=odd)),
    "dataset": lambda odd: ("RegisterDataset", dataset(odd)),
    "barrier": lambda odd: ("WaitBarrier", pb.WaitBarrierRequest(worker_id="w", barrier_id=odd)),
    "checkpoint": lambda odd: (
        "NotifyCheckpoint",
        pb.NotifyCheckpointRequest(worker_id="w", checkpoint_id=odd, storage_path="/c"),
    ),
}


@pytest.mark.parametrize("odd", ODD_IDS)
@pytest.mark.parametrize("field", ID_FIELDS)
def test_invalid_id_is_refused(client, field, odd):
    client.register("w")
    method, request = ID_FIELDS[field](ODD_IDS[odd])
    assert code_of(refusal(getattr(client, method), request)) == "invalid_argument"


UNKNOWN_IDS = {
    "Heartbeat": lambda name: pb.HeartbeatRequest(worker_id=name),
    "DeregisterWorker": lambda name: pb.DeregisterWorkerRequest(worker_id=name),
    "GetDataShards": lambda name: pb.GetDataShardsRequest(worker_id="w", dataset_id=name),
    "GetDataShard": lambda name: pb.GetDataShardRequest(worker_id=name, dataset_id="d"),
    "AdvanceEpoch": lambda name: pb.AdvanceEpochRequest(worker_id="w", dataset_id=name),
    "NotifyCheckpoint": lambda name: pb.NotifyCheckpointRequest(worker_id=name),
    "GetLatestCheckpoint": lambda name: pb.GetLatestCheckpointRequest(worker_id="w", task_id=name),
    "WaitBarrier": lambda name: pb.WaitBarrierRequest(worker_id=name, barrier_id="x"),
    "RegisterWorker": lambda name: pb.RegisterWorkerRequest(worker_id="new", task_id=name),
}


@pytest.mark.parametrize("name", ["nobody", LONG, "é\n\x00" * 5_000], ids=["short", "long", "odd"])
@pytest.mark.parametrize("method", UNKNOWN_IDS)
def test_unknown_id_is_not_found(client, method, name):
    client.register("w")
    error = refusal(getattr(client, method), UNKNOWN_IDS[method](name))
    assert (error.code(), code_of(error)) == (grpc.StatusCode.NOT_FOUND, "not_found")


def test_dataset_with_too_many_shards_is_refused(tmp_path):
    with process(tmp_path, heartbeat_timeout_s=60.0) as started:
        started.limit_memory(3 * 2**30)
        client = Client(started)
        client.register("a")
        before = started.rss_bytes()
        huge = dataset("huge", total_samples=2**40, shard_size=1)
        call = client.RegisterDataset.future(huge, timeout=5)
        if call.exception() is None:
            shards = pb.GetDataShardsRequest(worker_id="a", dataset_id="huge")
            call = client.GetDataShards.future(shards, timeout=5)
        assert call.exception() is not None
        assert code_of(call) in REFUSED_INPUT
        assert client.Heartbeat(pb.HeartbeatRequest(worker_id="a"), timeout=1).acknowledged
        assert started.peak_bytes() - before < 50 * MEGABYTE
        client.channel.close()


def test_too_many_lanes_are_refused(tmp_path):
    with process(tmp_path, heartbeat_timeout_s=60.0) as started:
        started.limit_memory(3 * 2**30)
        client = Client(started)
        stream = open_session(client, "a")
        stream.next("standing")
        client.RegisterDataset(dataset("d"))
        attach = pb.AttachDataset(dataset_id="d", unit="lane", global_batch=2**40, lanes=2**40)
        stream.send(request=1, attach=attach)
        assert stream.next("refused").refused.code in REFUSED_INPUT
        assert client.Heartbeat(pb.HeartbeatRequest(worker_id="a"), timeout=1).acknowledged
        stream.close()
        client.channel.close()


def test_invented_incarnation_is_fenced(client):
    given = client.register("w")
    for incarnation in (given.incarnation + 1, -1, 2**63 - 1):
        beat = pb.HeartbeatRequest(worker_id="w", incarnation=incarnation)
        assert code_of(refusal(client.Heartbeat, beat)) == "fenced"
        leave = pb.DeregisterWorkerRequest(worker_id="w", incarnation=incarnation)
        assert code_of(refusal(client.DeregisterWorker, leave)) == "fenced"
        stream = Stream(client, "w", incarnation)
        assert stream.next("refused").refused.code == "fenced"
        stream.close()
    assert client.Heartbeat(pb.HeartbeatRequest(worker_id="w")).acknowledged


def test_records_of_invented_incarnations_are_bounded(client):
    client.register("w")
    stream = Stream(client, "w", 0)
    for number in range(1, 500):
        stream.send(hello=pb.Hello(worker_id="w", incarnation=-number))
    stream.send(request=9, hello=pb.Hello(worker_id="nobody"))
    while stream.next("refused").request != 9:
        pass
    assert len(client.coordinator.engine.kernel.state.workers["w"].fenced) <= MAX_FENCED
    stream.close()


def test_session_belongs_to_one_worker(client):
    """Two Hello messages at once: the second must not replace another worker's session."""
    first = client.register("first").incarnation
    Stream(client, "first", first).next("standing")
    victim = open_session(client, "victim")
    claimed = victim.next("standing").standing.incarnation
    with one_turn(client, 1):
        stream = Stream(client, "first", first)
        stream.send(request=2, hello=pb.Hello(worker_id="victim", incarnation=claimed))
        time.sleep(0.1)
    for message in stream.call:
        assert message.standing.worker_id != "victim", "it speaks for two workers"
        if message.WhichOneof("body") == "refused":
            break
    assert message.request == 2
    victim.send(beat=pb.Beat(sent_mono_ns=5))
    assert victim.next("pulse").pulse.sent_mono_ns == 5
    stream.close()
    victim.close()


def test_messages_directly_after_hello_are_processed(client):
    """A client need not wait for its standing, at the first connection and at later ones."""
    incarnation = client.register("w").incarnation
    for request in (1, 2):
        stream = Stream(client, "w", incarnation)
        stream.send(request=request, arrive=pb.Arrive(barrier_id="x", arrival=request))
        for message in stream.call:
            assert message.WhichOneof("body") != "refused", message.refused
            if message.WhichOneof("body") == "barrier":
                break
        stream.call.cancel()


def test_barrier_ignores_workers_of_other_tasks(client):
    for worker in "ab":
        client.register(worker)
    waiting = client.WaitBarrier.future(pb.WaitBarrierRequest(worker_id="a", barrier_id="x"))
    outsider = pb.WaitBarrierRequest(worker_id="outsider", barrier_id="x")
    assert code_of(refusal(client.WaitBarrier, outsider)) == "not_found"
    old = pb.WaitBarrierRequest(worker_id="b", barrier_id="x", incarnation=1)
    assert code_of(refusal(client.WaitBarrier, old)) == "fenced"
    stream = Stream(client, "outsider", 1)
    stream.send(request=2, arrive=pb.Arrive(barrier_id="x", arrival=1))
    codes = {stream.next("refused").refused.code for _ in range(2)}
    assert codes == {"not_found", "invalid_argument"}
    assert not waiting.done()
    assert (
        client.WaitBarrier(pb.WaitBarrierRequest(worker_id="b", barrier_id="x")).participants == 2
    )
    assert waiting.result(TIMEOUT_S).released
    stream.close()


def test_barrier_ignores_workers_without_rank(client):
    client.register("early", world_size=2)
    early = pb.WaitBarrierRequest(worker_id="early", barrier_id="x")
    assert code_of(refusal(client.WaitBarrier, early)) == "not_allowed_now"


def arrive(barrier: str, arrival: int = 1) -> dict[str, pb.Arrive]:
    return {"arrive": pb.Arrive(barrier_id=barrier, arrival=arrival)}


def test_early_arrival_for_the_next_round_does_not_affect_this_one(client):
    a, b = (open_session(client, worker) for worker in "ab")
    a.send(request=1, **arrive("x"))
    a.send(beat=pb.Beat())
    a.next("pulse")
    wait_until(lambda: client.coordinator.sessions.barriers._waiters)
    with one_turn(client, 2):
        b.send(request=1, **arrive("x", 1))
        b.send(request=2, **arrive("x", 2))
    outcome = a.next("barrier").barrier.outcome
    assert outcome.released, outcome
    assert outcome.participants == 2
    assert b.next("barrier").barrier.outcome.released
    a.close()
    b.close()


def test_worker_at_hundreds_of_barriers_does_not_affect_others(client):
    a, b, c = (open_session(client, worker) for worker in "abc")
    a.send(request=1, **arrive("x"))
    c.send(request=1, **arrive("x"))
    waiting = client.coordinator.sessions.barriers._waiters
    wait_until(lambda: any(len(outcome) == 2 for _, outcome in waiting.values()))
    with one_turn(client, 401):
        b.send(request=1, **arrive("x"))
        for number in range(200):
            b.send(request=2 + number, **arrive(f"y{number}"))
            c.send(request=2 + number, **arrive(f"z{number}"))
    assert a.next("barrier").barrier.outcome.released
    assert {stream.next("refused").refused.code for stream in (b, c)} == {"not_allowed_now"}
    assert client.register("d", nonce="d").assigned_id == "d"
    for stream in (a, b, c):
        stream.close()


def batch(first_seq: int, count: int, payload: bytes) -> dict[str, pb.EventBatch]:
    header = {"first_seq": first_seq, "count": count, "wall_from_ns": 1, "wall_to_ns": 2}
    return {"events": pb.EventBatch(**header, kinds=["X"], payload=payload)}


def bomb(elements: int) -> bytes:
    """A list of zeros: a few kilobytes that decompress to a large list."""
    return deflate(b"\xdd" + elements.to_bytes(4, "big") + bytes(elements))


def claiming(size_bytes: int) -> bytes:
    """A compressed frame that declares a large size and has no content."""
    made = zstandard.ZstdCompressor().compress(bytes(size_bytes))
    return made[:20]


GARBAGE = {
    "text": b"garbage",
    "nothing": b"",
    "not a list": deflate(msgspec.msgpack.encode({"a": 1})),
    "too few": deflate(msgspec.msgpack.encode([1])),
    "deep": deflate(b"\x91" * 100_000 + b"\x00"),
    "cut short": claiming(60 * MEGABYTE),
    "states too much": claiming(100 * MEGABYTE),
}


OVERLAPS = {
    "from the last on": [(0, 3), (1, 4)],
    "below a gap": [(10, 2), (0, 3), (1, 4)],
    "around": [(4, 2), (3, 4)],
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("overlap", OVERLAPS.values(), ids=OVERLAPS)
def test_invalid_events_do_not_affect_others(client, payload, overlap):
    """Stored or refused; other requests of the same turn are answered."""
    bad = open_session(client, "bad")
    assert bad.next("standing").standing.stored_seq == -1
    *before, (first, count) = overlap
    for range_before in before:
        bad.send(request=1, **batch(*range_before, payload))
        bad.next("stored")
    with one_turn(client, 1):
        bad.send(request=2, **batch(first, count, payload))  # partly received, and cannot be split
        bad.send(beat=pb.Beat(sent_mono_ns=2))
        received = [next(bad.call)]
        while received[-1].WhichOneof("body") != "pulse":
            received.append(next(bad.call))
        registered = client.RegisterDataset.future(dataset("d"))
    assert registered.result(TIMEOUT_S).total_shards == 10
    while not any(message.request == 2 for message in received):
        received.append(next(bad.call))
    assert {m.refused.code for m in received if m.request == 2} <= {"corrupt", "invalid_argument"}
    bad.send(request=3, **batch(20, 2, b"more"))
    assert bad.next("stored").stored.seq == 21
    bad.close()


def test_invalid_events_do_not_delay_heartbeat_timeouts(tmp_path):
    with coordinator(tmp_path, heartbeat_timeout_s=0.6) as started:
        client = Client(started)
        client.register("silent")
        bad = open_session(client, "bad")
        bad.next("standing")
        bad.send(**batch(10, 3, b"garbage"))
        bad.send(**batch(0, 3, b"garbage"))
        deadline = time.monotonic() + TIMEOUT_S
        while started.engine.kernel.state.workers["silent"].alive:
            assert time.monotonic() < deadline, "it is not noticed that it is silent"
            bad.send(**batch(1, 4, b"garbage"))
            bad.send(beat=pb.Beat())
            time.sleep(0.05)
        bad.close()
        client.channel.close()


def test_decompressed_size_of_events_is_bounded(tmp_path):
    with process(tmp_path) as started:
        client = Client(started)
        bad = open_session(client, "bad")
        bad.next("standing")
        before = started.peak_bytes()
        for first in (10, 0):
            bad.send(**batch(first, 3, bomb(8_000_000)))
            bad.next("stored")
        bad.send(request=2, **batch(1, 4, bomb(8_000_000)))
        assert bad.next("refused").request == 2
        assert started.peak_bytes() - before < 100 * MEGABYTE
        bad.close()
        client.channel.close()


@pytest.mark.parametrize(
    "cards", [[pb.GpuMetrics()] * 100_000, [pb.GpuMetrics(name=LONG)]], ids=["many", "long names"]
)
def test_resources_in_a_heartbeat_are_bounded(client, cards):
    """Resources are kept while the worker lives."""
    stream = open_session(client, "w")
    stream.next("standing")
    measured = pb.ResourceMetrics(gpu_metrics=cards)
    stream.send(request=1, beat=pb.Beat(resources=measured))
    assert stream.next("refused").refused.code == "limit_exceeded"
    beat = pb.HeartbeatRequest(worker_id="w", resources=measured)
    assert code_of(refusal(client.Heartbeat, beat)) == "limit_exceeded"
    stream.send(beat=pb.Beat(sent_mono_ns=1))
    assert stream.next("pulse").pulse.sent_mono_ns == 1
    stream.close()


def test_log_lines_are_bounded(client):
    stream = open_session(client, "w")
    stream.next("standing")
    line = pb.LogLine(level="info", message="m")
    stream.send(request=1, logs=pb.LogLines(lines=[line] * 20_000))
    assert stream.next("refused").refused.code == "limit_exceeded"
    for numbered in ({"first": -1}, {"first": 2**63 - 1}, {"first": 1, "sender": LONG}):
        stream.send(request=3, logs=pb.LogLines(lines=[line], **numbered))
        assert stream.next("refused").refused.code == "invalid_argument"
    odd = pb.LogLine(level="\x00", message="\x1b[2J" + LARGE, stream=LONG, timestamp_ms=-(2**63))
    stream.send(request=2, logs=pb.LogLines(lines=[odd], dropped=-1))
    stream.send(beat=pb.Beat(sent_mono_ns=2))
    assert stream.next("pulse").pulse.sent_mono_ns == 2
    stream.close()
