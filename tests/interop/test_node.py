"""A Node.js client generated from the proto: registration, heartbeats, sessions, shards, barriers,
health checking and reflection."""

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.process import process
from tests.programs import program

NODE = Path(__file__).parent / "node"
PROTO = Path(__file__).parents[2] / "proto" / "strata" / "v1" / "coordinator.proto"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The answers of a real coordinator to the client."""
    node = program("node")
    if not (NODE / "node_modules").is_dir():
        pytest.fail(
            f"the client's packages are not installed: run make test, or npm ci --prefix {NODE}",
            pytrace=False,
        )
    with process(tmp_path_factory.mktemp("node")) as coordinator:
        command = [node, str(NODE / "client.js"), coordinator.address, str(PROTO)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        assert coordinator.stop() == 0
    return json.loads(ended.stdout)


def test_package_lock_has_hashes_and_no_hosts():
    text = (NODE / "package-lock.json").read_text("utf-8")
    assert not re.search(r"://|resolved", text)
    packages = json.loads(text)["packages"]
    assert [name for name, entry in packages.items() if name and "integrity" not in entry] == []


def test_node_client_registers_and_sends_heartbeats(found):
    registered, second = found["registered"], found["second"]
    assert (registered["assigned_id"], registered["rank"]) == ("js-1", 0)
    assert (second["assigned_id"], second["rank"], second["world_size"]) == ("js-2", 1, 2)
    assert second["incarnation"] > registered["incarnation"]
    assert found["beat"]["acknowledged"]
    assert found["left"]["success"]


def test_node_client_gets_shards(found):
    assert found["dataset"]["total_shards"] == 11
    first, second = found["shards"]
    assert first
    assert second
    expected = [[start, min(start + 10, 105)] for start in range(0, 105, 10)]
    assert sorted(first + second) == expected


def test_node_client_opens_a_session(found):
    session = found["session"]
    assert session["standing"]["worker_id"] == "js-1"
    assert session["standing"]["incarnation"] == found["registered"]["incarnation"]
    assert session["standing"]["world_size"] == 2
    assert (session["pulse"]["request"], session["pulse"]["sent_mono_ns"]) == (5, 11)
    assert session["stored"]["seq"] == 1
    assert session["done"]["request"] == 8


def test_node_clients_meet_at_a_barrier(found):
    streamed, unary = found["session"]["barrier"]
    outcome = streamed["outcome"]
    assert (streamed["request"], streamed["barrier_id"], streamed["arrival"]) == (7, "here", 1)
    assert outcome["released"]
    assert unary["released"]
    assert outcome["participants"] == unary["participants"] == 2
    assert sorted([outcome["arrival_order"], unary["arrival_order"]]) == [0, 1]


def test_node_client_gets_error_code_and_hint(found):
    refusal = found["refusal"]
    assert (refusal["status"], refusal["code"]) == ("NOT_FOUND", "not_found")
    assert refusal["hint"] == "register it first"
    assert "nobody" in refusal["details"]


def test_node_client_uses_health_and_reflection(found):
    assert found["health"] == "SERVING"
    assert {"strata.v1.Coordinator", "grpc.health.v1.Health"} <= set(found["services"])
    files = [FileDescriptorProto.FromString(base64.b64decode(file)) for file in found["files"]]
    assert pb.DESCRIPTOR.serialized_pb in [file.SerializeToString() for file in files]
