"""A training script has the token of its task alone: it trains, and can do nothing else.

The script here tries what a token should not allow, with the token from its environment.
"""

import json

import grpc
import httpx
import pytest

from strata.cli.support.exit_codes import DENIED
from strata.wire.v1 import coordinator_pb2 as pb
from tests.agent.harness import TRAIN, WAIT_S, Agent, Api, until
from tests.coordinator.process import process

ADMIN = "the-administrators-token"

HOSTILE = """
import json, os, urllib.error, urllib.request
import grpc, strata
from strata.wire.v1 import coordinator_pb2 as pb
plan = json.loads(os.environ["TASK_CONFIG"])
mine = os.environ["STRATA_TOKEN"]
found = {"token": mine, "environment": sorted(os.environ.values())}

def http(name, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {mine}", "Content-Type": "application/json"}
    asked = urllib.request.Request(plan["url"] + path, data, headers, method=method)
    try:
        found[name] = urllib.request.urlopen(asked, timeout=60).status
    except urllib.error.HTTPError as error:
        found[name] = error.code

def call(name, method, request, stream=False):
    with grpc.insecure_channel(os.environ["COORDINATOR_ADDR"]) as channel:
        kind = channel.stream_stream if stream else channel.unary_unary
        rpc = kind(f"/strata.v1.Coordinator/{method}", lambda m: m.SerializeToString(), bytes)
        sent = {"metadata": [("authorization", f"Bearer {mine}")], "timeout": 60}
        try:
            if stream:
                for answer in rpc(iter([request]), **sent):
                    refused = pb.CoordinatorMessage.FromString(answer).refused
                    found[name] = refused.code.upper() or "OK"
                    break
            else:
                rpc(request, **sent)
                found[name] = "OK"
        except grpc.RpcError as error:
            found[name] = error.code().name

victim, task = plan["worker"], plan["task"]
http("submit", "POST", "/api/tasks", {"name": "n", "entry": "/bin/sh"})
http("stop", "POST", f"/api/tasks/{task}/stop")
http("read", "GET", f"/api/tasks/{task}")
http("tokens", "POST", "/api/tokens", {"name": "n", "role": "admin"})
call("join", "RegisterWorker", pb.RegisterWorkerRequest(task_id=task))
call("take over", "RegisterWorker", pb.RegisterWorkerRequest(worker_id=victim))
call("deregister", "DeregisterWorker", pb.DeregisterWorkerRequest(worker_id=victim))
call("checkpoint", "GetLatestCheckpoint", pb.GetLatestCheckpointRequest(task_id=task))
call("folder", "ReadWorkdir", pb.ReadWorkdirRequest(workdir="0" * 64))
hello = pb.WorkerMessage(hello=pb.Hello(worker_id=victim, incarnation=1))
call("session", "Session", hello, stream=True)
agent = pb.AgentMessage(hello=pb.AgentHello(agent_id="mine", slots=8))
call("agent", "AgentSession", agent, stream=True)
with open(plan["out"], "w") as out:
    json.dump(found, out)
with strata.join() as run:
    while run.steps < 5:
        run.mark_step(loss=1.0)
"""


@pytest.fixture
def coordinator(tmp_path):
    (tmp_path / "up").mkdir()
    given = {"heartbeat_interval_s": 0.2, "heartbeat_timeout_s": 20.0, "stop_grace_s": 10.0}
    with process(tmp_path / "up", token=ADMIN, **given) as started:
        started.http_url = started.http_url.partition("/?")[0]
        yield started


class AdminApi(Api):
    """The API with the administrator's token."""

    def get(self, path, **params):
        return self._ask("GET", path, params=params)

    def post(self, path, **body):
        return self._ask("POST", path, json=body)

    def _ask(self, method, path, **given):
        url, headers = (
            f"{self.coordinator.http_url}/api{path}",
            {"Authorization": f"Bearer {ADMIN}"},
        )
        answer = httpx.request(method, url, headers=headers, timeout=WAIT_S, **given)
        return answer.raise_for_status().json()


def test_script_can_train_and_nothing_else(coordinator, tmp_path):
    api = AdminApi(coordinator)
    secret = api.post("/tokens", name="hosts", role="agent")["secret"]
    agent = Agent(tmp_path, coordinator.address, 2, STRATA_TOKEN=secret)
    try:
        victim, hostile = tmp_path / "victim.py", tmp_path / "hostile.py"
        victim.write_text(TRAIN, "utf-8")
        hostile.write_text(HOSTILE, "utf-8")
        other = api.submit(victim, 1, env={"KEY": "a-secret-of-the-other-task"})
        worker = api.reaches(other, "running")["worker_ids"][0]
        until(lambda: api.lines(search="joined"), "the other task's worker joining")
        out = tmp_path / "found.json"
        config = {"url": coordinator.http_url, "worker": worker, "task": other, "out": str(out)}
        task = api.submit(hostile, 1, config=config)
        ended = api.reaches(task, "completed", "failed", "stopped")
        assert ended["status"] == "completed", api.lines(task_id=task)

        found = json.loads(out.read_text("utf-8"))
        token, environment = found.pop("token"), found.pop("environment")
        assert not {ADMIN, secret, "a-secret-of-the-other-task"} & set(environment)
        http = ("submit", "stop", "read", "tokens")
        assert {name: found.pop(name) for name in http} == dict.fromkeys(http, 403)
        assert set(found.values()) == {"PERMISSION_DENIED"}, found
        assert api.task(other)["status"] == "running"
        assert [fact["agent"] for fact in api.facts("AgentRegistered")] == ["a"]

        assert_ended(coordinator, token, task)
        api.post("/tokens/hosts/revoke")
        assert agent.process.wait(WAIT_S) == DENIED, agent.said()
    finally:
        agent.close()


def assert_ended(coordinator, token, task):
    """The token of an ended task is refused, also where it was allowed before."""
    with grpc.insecure_channel(coordinator.address) as channel:
        register = channel.unary_unary(
            "/strata.v1.Coordinator/RegisterWorker",
            request_serializer=pb.RegisterWorkerRequest.SerializeToString,
            response_deserializer=pb.RegisterWorkerResponse.FromString,
        )
        metadata = [("authorization", f"Bearer {token}")]
        with pytest.raises(grpc.RpcError) as refused:
            register(pb.RegisterWorkerRequest(), metadata=metadata, timeout=WAIT_S)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert f"task {task!r} has ended" in refused.value.details()
