"""Fuzzing of requests: each is answered or refused with a code and a hint, and other clients are
served."""

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.errors import STATUS
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import ANSWERS, Client
from tests.coordinator.process import process
from tests.coordinator.test_rpc import Stream

KNOWN = ["a", "b", "data", "default-1", "made"]
TEXTS = st.sampled_from(["", *KNOWN, "nobody", "\x00", "\n", "é" * 300, "x" * 10_000, "../../etc"])
NUMBERS = [0, 1, -1, 2, 7, 1000]
CODES = {error.code for error in STATUS}
KINDS = [field.name for field in pb.WorkerMessage.DESCRIPTOR.oneofs_by_name["body"].fields]


def numbers(bits: int):
    edges = [2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    return st.sampled_from(NUMBERS + edges)


VALUES = {
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BYTES: st.sampled_from([b"", b"garbage", b"\x28\xb5\x2f\xfd" + bytes(20)]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: numbers(32),
    FieldDescriptor.TYPE_INT64: numbers(64),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([*range(9), 2**31 - 1]),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, -1.0, 1e308, float("nan"), float("inf")]),
}


def values(field: FieldDescriptor):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return st.dictionaries(TEXTS, VALUES[value.type], max_size=2)
    one = messages(field.message_type) if field.message_type else VALUES[field.type]
    return st.lists(one, max_size=3) if field.is_repeated else one


def messages(descriptor):
    """Any message of a type, with any subset of its fields."""
    fields = {field.name: values(field) for field in descriptor.fields}
    build = getattr(pb, descriptor.name)
    return st.fixed_dictionaries({}, optional=fields).map(lambda chosen: build(**chosen))


def requests(method: str):
    (found,) = [
        m for m in pb.DESCRIPTOR.services_by_name["Coordinator"].methods if m.name == method
    ]
    return messages(found.input_type)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A coordinator with two workers, a dataset and short timeouts."""
    with process(tmp_path_factory.mktemp("fuzz"), barrier_timeout_s=0.01) as started:
        started.limit_memory(4 * 2**30)
        client = Client(started)
        for worker in "ab":
            client.register(worker, nonce=worker)
        spec = {"dataset_id": "data", "total_samples": 100, "shard_size": 10}
        client.RegisterDataset(pb.RegisterDatasetRequest(**spec))
        yield client
        client.channel.close()


FUZZ = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("method", sorted(ANSWERS))
@FUZZ
@given(data=st.data())
def test_any_call_is_answered_or_refused(cluster, method, data):
    request = data.draw(requests(method))
    call = getattr(cluster, method).future(request, timeout=20)
    if call.exception() is not None:
        metadata = dict(call.trailing_metadata() or ())
        assert metadata.get("strata-code") in CODES, call
        assert metadata.get("strata-hint"), call
    assert cluster.register("a", nonce="a").assigned_id == "a"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"leave"}))
@FUZZ
@given(data=st.data())
def test_any_message_is_answered_or_refused(cluster, kind, data):
    body = data.draw(messages(pb.WorkerMessage.DESCRIPTOR.fields_by_name[kind].message_type))
    incarnation = cluster.register("fuzzer", nonce="fuzzer").incarnation
    stream = Stream(cluster, "fuzzer", incarnation, nonce="fuzzer")
    assert next(stream.call).WhichOneof("body") == "standing"
    stream.send(request=3, **{kind: body})
    stream.send(request=4, beat=pb.Beat(sent_mono_ns=4))
    for message in stream.call:
        if message.WhichOneof("body") == "refused":
            assert message.request == 3
            assert message.refused.code in CODES
        if message.request == 4:
            break
    else:
        raise AssertionError(f"the stream ended: {stream.call.code()} {stream.call.details()}")
    stream.close()
