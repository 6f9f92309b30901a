"""Made tokens at a running coordinator: roles, revocation, expiry, restart."""

import re
import time
from contextlib import contextmanager
from queue import SimpleQueue

import grpc
import httpx
import pytest

from strata.coordinator.access.required_roles import REST
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator

ADMIN = "the-administrators-token"
WAIT_S = 60.0
CODE = grpc.StatusCode
TASK = {"name": "t", "worker_count": 1}


class Served:
    """A coordinator with a token, and its clients."""

    def __init__(self, running):
        self.running = running
        self.grpc = Client(running)

    def http(self, token=ADMIN, method="GET", path="/api/tasks", **given):
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.running.http_url}{path}"
        return httpx.request(method, url, headers=sent, trust_env=False, timeout=WAIT_S, **given)

    def make(self, name, role, **given):
        """The secret of a new token."""
        body = {"name": name, "role": role, **given}
        answer = self.http(method="POST", path="/api/tokens", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["secret"]

    def revoke(self, name):
        return self.http(method="POST", path=f"/api/tokens/{name}/revoke").status_code

    def call(self, token, method, request):
        """The status of a gRPC call, with its message."""
        try:
            metadata = [("authorization", f"Bearer {token}")]
            getattr(self.grpc, method)(request, metadata=metadata, timeout=WAIT_S)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return CODE.OK, ""


@contextmanager
def serving(folder):
    with coordinator(folder, token=ADMIN) as running:
        served = Served(running)
        yield served
        served.grpc.channel.close()


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path) as running:
        yield running


def test_role_decides_what_a_token_may_do(served):
    tokens = {role: served.make(role, role) for role in ("read", "submit", "worker", "agent")}
    tokens["admin"] = served.make("second", "admin")
    submit = {"method": "POST", "json": TASK}
    administer = {"path": "/api/tokens"}
    found = {
        role: (
            served.http(token).status_code,
            served.http(token, **submit).status_code,
            served.http(token, **administer).status_code,
            served.call(token, "RegisterWorker", pb.RegisterWorkerRequest())[0],
        )
        for role, token in tokens.items()
    }
    denied = CODE.PERMISSION_DENIED
    assert found == {
        "read": (200, 403, 403, denied),
        "submit": (200, 201, 403, denied),
        "worker": (403, 403, 403, CODE.OK),
        "agent": (403, 403, 403, denied),
        "admin": (200, 201, 200, CODE.OK),
    }
    refusal = served.http(tokens["read"], **submit).json()["error"]
    assert "token read has the role read" in refusal["message"]
    assert "needs the role submit or admin" in refusal["message"]


def test_every_endpoint_names_the_roles_that_it_needs(served):
    secret = served.make("host", "agent")
    for endpoint, roles in REST.items():
        method, path = endpoint.split()
        refused = served.http(secret, method=method, path=re.sub(r"{\w+}", "x", path))
        needed = " or ".join([*roles, "admin"])
        assert refused.status_code == 403, endpoint
        assert refused.json()["error"]["message"].endswith(f"needs the role {needed}"), endpoint


@pytest.mark.parametrize("given", ["", "other", f"{ADMIN}x", "strata_unknown", "strata-task.x.y"])
def test_unknown_token_is_refused(served, given):
    assert served.http(given).status_code == 401
    found = served.call(given, "Heartbeat", pb.HeartbeatRequest())
    assert found == (CODE.UNAUTHENTICATED, "a valid token is needed")


def test_secret_is_shown_once_and_stored_nowhere(served, tmp_path):
    secret = served.make("ci", "read")
    events = served.http(path="/api/events?limit=1000").text
    assert "TokenMade" in events
    assert secret not in events
    assert secret not in served.http(path="/api/tokens").text
    assert ADMIN not in events + served.http(path="/api/settings").text
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "log.db" for file in files)
    for file in files:
        assert secret.encode() not in file.read_bytes(), file


def test_tokens_survive_a_restart(tmp_path):
    with serving(tmp_path) as first:
        kept, revoked = first.make("kept", "submit"), first.make("revoked", "submit")
        assert first.revoke("revoked") == 200
    with serving(tmp_path) as second:
        assert second.http(kept).status_code == 200
        assert second.http(revoked).status_code == 401
        names = [each["name"] for each in second.http(path="/api/tokens").json()]
        assert names == ["kept"]


def test_expired_token_is_refused_and_says_so(served):
    secret = served.make("short", "read", expires_in_s=1.0)
    deadline = time.monotonic() + WAIT_S
    while (answer := served.http(secret)).status_code == 200:
        assert time.monotonic() < deadline, "the token does not expire"
        time.sleep(0.05)
    assert answer.status_code == 401
    assert "'short' expired at" in answer.json()["error"]["message"]
    code, message = served.call(secret, "GetLatestCheckpoint", pb.GetLatestCheckpointRequest())
    assert code is CODE.UNAUTHENTICATED
    assert "expired" in message


def test_name_is_taken_until_its_token_is_revoked(served):
    served.make("ci", "read")
    again = {"method": "POST", "path": "/api/tokens", "json": {"name": "ci", "role": "read"}}
    assert served.http(**again).status_code == 409
    assert served.revoke("ci") == 200
    assert served.revoke("ci") == 404
    assert served.http(**again).status_code == 201


def test_revocation_ends_an_open_stream_of_the_page(served):
    secret = served.make("page", "read")
    url = f"{served.running.http_url}/api/live"
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.stream("GET", url, headers=headers, trust_env=False, timeout=WAIT_S) as stream:
        parts = stream.iter_raw()
        assert next(parts)
        assert served.revoke("page") == 200
        for _ in parts:
            pass  # the stream ends
    assert served.http(secret).status_code == 401


def test_revocation_ends_an_open_session_at_its_next_message(served):
    secret = served.make("w", "worker")
    metadata = [("authorization", f"Bearer {secret}")]
    request = pb.RegisterWorkerRequest(worker_id="w0")
    worker = served.grpc.RegisterWorker(request, metadata=metadata, timeout=WAIT_S)
    sent = SimpleQueue()
    open_session = served.grpc.channel.stream_stream(
        "/strata.v1.Coordinator/Session",
        request_serializer=pb.WorkerMessage.SerializeToString,
        response_deserializer=pb.CoordinatorMessage.FromString,
    )
    session = open_session(iter(sent.get, None), metadata=metadata, timeout=WAIT_S)
    hello = pb.Hello(worker_id="w0", incarnation=worker.incarnation)
    sent.put(pb.WorkerMessage(hello=hello))
    assert next(session).HasField("standing")
    assert served.revoke("w") == 200
    sent.put(pb.WorkerMessage(request=7, beat=pb.Beat()))
    with pytest.raises(grpc.RpcError) as ended:
        for _ in session:
            pass
    sent.put(None)
    assert ended.value.code() is CODE.UNAUTHENTICATED
    assert "token w was revoked" in ended.value.details()


def test_page_opened_with_a_made_token_may_read_only(served):
    secret = served.make("page", "read")
    with httpx.Client(base_url=served.running.http_url, trust_env=False, timeout=WAIT_S) as page:
        login = page.get("/", params={"token": secret})
        assert login.status_code == 303
        assert secret not in login.headers["set-cookie"]
        assert page.get("/api/tasks").status_code == 200
        assert page.post("/api/tasks", json=TASK).status_code == 403
        assert served.revoke("page") == 200
        assert page.get("/api/tasks").status_code == 401
        assert page.get("/", params={"token": served.make("a", "agent")}).status_code == 403


def test_task_token_is_only_for_its_task(served):
    mine, other = (
        served.http(method="POST", json={**TASK, "name": name}).json()["task_id"]
        for name in ("mine", "other")
    )
    secret = served.make("w", "worker", task_id=mine)
    assert (
        served.call(secret, "RegisterWorker", pb.RegisterWorkerRequest(worker_id="m0"))[0]
        is CODE.OK
    )
    assert served.http(path="/api/workers/m0").json()["current_task"] == mine
    admin = pb.RegisterWorkerRequest(worker_id="o0", task_id=other)
    assert served.call(ADMIN, "RegisterWorker", admin)[0] is CODE.OK
    for method, request in (
        ("RegisterWorker", pb.RegisterWorkerRequest(worker_id="m1", task_id=other)),
        ("RegisterWorker", pb.RegisterWorkerRequest(worker_id="o0")),
        ("DeregisterWorker", pb.DeregisterWorkerRequest(worker_id="o0")),
        ("Heartbeat", pb.HeartbeatRequest(worker_id="o0")),
        ("GetLatestCheckpoint", pb.GetLatestCheckpointRequest(task_id=other)),
        ("GetLatestCheckpoint", pb.GetLatestCheckpointRequest(worker_id="o0")),
        ("NotifyCheckpoint", pb.NotifyCheckpointRequest(worker_id="o0")),
    ):
        code, message = served.call(secret, method, request)
        assert code is CODE.PERMISSION_DENIED, method
        assert f"is only for task {mine!r}" in message


def test_task_needs_the_role_worker(served):
    body = {"name": "x", "role": "submit", "task_id": "t-1"}
    assert served.http(method="POST", path="/api/tokens", json=body).status_code == 400
