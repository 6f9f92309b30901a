"""Without a token only the user that started a coordinator, and root, may use it."""

import json
import os
import socket
import subprocess
import sys

import pytest

from strata.wire import peer_user as module
from strata.wire.peer_user import peer_user
from tests.cli.conftest import WAIT_S

NOBODY = 65_534
ASK = """
import encodings.idna, http.client, json, os, sys
import grpc
from strata.wire.v1 import coordinator_pb2 as pb
user, http_port, grpc_port = map(int, sys.argv[1:4])
headers = {"Authorization": f"Bearer {sys.argv[4]}"} if sys.argv[4:] else {}
os.setgid(user)
os.setuid(user)
def ask(path):
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
def call():
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        rpc = channel.unary_unary(
            "/strata.v1.Coordinator/GetDataset",
            request_serializer=pb.GetDatasetRequest.SerializeToString,
            response_deserializer=bytes,
        )
        try:
            sent = [(name.lower(), text) for name, text in headers.items()]
            rpc(pb.GetDatasetRequest(), timeout=20, metadata=sent)
            return "OK"
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
print(json.dumps([ask("/api/health"), ask("/api/workers"), call()]))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def asked_as(user, up, *token):
    """What a process of a user gets: the health, the workers, and the answer to a call."""
    arguments = [str(user), str(up.http_port), str(up.grpc_port), *token]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_another_user_is_refused_and_root_is_not(up):
    up.start()
    health, workers, called = asked_as(NOBODY, up)
    assert health[0] == 200
    assert workers[0] == 401
    assert "answers only the user that started it" in workers[1]
    assert called.startswith("UNAUTHENTICATED: this coordinator has no token")
    _, workers, called = asked_as(0, up)
    assert workers == [200, "[]"]
    assert not called.startswith("UNAUTHENTICATED")


def test_token_lets_another_user_in(up):
    up.start("--token", "known")
    _, workers, called = asked_as(NOBODY, up, "known")
    assert workers == [200, "[]"]
    assert not called.startswith("UNAUTHENTICATED")
    _, workers, called = asked_as(NOBODY, up, "other")
    assert workers[0] == 401
    assert called.startswith("UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_connection_that_its_process_closed_belongs_to_nobody(family, host):
    with socket.create_server((host, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
        with accepted:
            ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
            assert peer_user(*ends) == os.geteuid()
            client.close()
            assert peer_user(*ends) is None


def test_table_of_the_kernel_says_the_same(monkeypatch):
    """Where sockets cannot be asked for one by one, as in some sandboxes."""
    monkeypatch.setattr(module, "NETLINK_SOCK_DIAG", 31)
    test_connection_that_its_process_closed_belongs_to_nobody(socket.AF_INET, "127.0.0.1")
