"""Clients that flood a coordinator, most of them without its token: meanwhile a run trains on and
an operator's requests are answered; afterwards everything is served as before."""

import socket
import threading
from contextlib import ExitStack, suppress

import grpc
import httpx

from tests.agent.harness import TRAIN, Agent, until
from tests.coordinator.process import process

TOKEN = "the token of the operator"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
IDLE = 200
ROUNDS = 20
WAIT_S = 60.0
MEGABYTE = 2**20


class Flood:
    """Threads that send, each a bounded number of times, and the statuses they got."""

    def __init__(self, url: str, grpc_port: int) -> None:
        self.url, self.grpc_port = url, grpc_port
        self.statuses: set[int] = set()
        self.codes: set[str] = set()
        targets = [self.guess_by_http, self.guess_by_grpc] + [self.read] * 3
        self.threads = [threading.Thread(target=target) for target in targets]

    def __enter__(self) -> "Flood":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:
            thread.join(WAIT_S)

    def guess_by_http(self) -> None:
        for number in range(ROUNDS):
            self.get("/api/status", {"Authorization": f"Bearer wrong-{number}"})

    def guess_by_grpc(self) -> None:
        wrong = [("authorization", "Bearer wrong")]
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            call = channel.unary_unary("/strata.v1.Coordinator/Heartbeat")
            for _ in range(ROUNDS):
                try:
                    call(b"", metadata=wrong, timeout=WAIT_S)
                except grpc.RpcError as error:
                    self.codes.add(error.code().name)

    def read(self) -> None:
        for _ in range(ROUNDS):
            self.get("/api/logs?search=q.*z&regex=true", RIGHT)
            self.get("/api/timeline/lanes", RIGHT)

    def get(self, path: str, headers: dict[str, str]) -> None:
        with suppress(httpx.TransportError):
            answer = httpx.get(self.url + path, headers=headers, timeout=WAIT_S, trust_env=False)
            self.statuses.add(answer.status_code)


def test_run_trains_on_and_the_operator_is_answered_during_floods(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN, "utf-8")
    with (
        ExitStack() as stack,
        process(tmp_path, token=TOKEN, heartbeat_interval_s=0.5) as started,
        httpx.Client(
            base_url=started.http_url, headers=RIGHT, timeout=WAIT_S, trust_env=False
        ) as operator,
    ):
        agent = Agent(tmp_path, started.address, 1, token=TOKEN)
        stack.callback(agent.close)
        task = {"name": "n", "entry": str(script), "env": {"PWD": str(tmp_path)}}
        assert operator.post("/api/tasks", json=task).status_code == 201

        def step() -> int:
            workers = operator.get("/api/workers").raise_for_status().json()
            return max((worker["current_step"] for worker in workers), default=0)

        def incarnations() -> list[int]:
            return [worker["incarnation"] for worker in operator.get("/api/workers").json()]

        until(lambda: step() > 0, "the first step", WAIT_S)
        before, before_bytes = incarnations(), started.rss_bytes()
        port = httpx.URL(started.http_url).port
        for _ in range(IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S))
        with Flood(started.http_url, started.port) as flood:
            at = step()
            until(lambda: step() > at, "a step during the flood", WAIT_S)
            assert any(thread.is_alive() for thread in flood.threads)
            data = {"id": "d", "total_samples": 10, "shard_size": 5}
            assert operator.post("/api/datasets", json=data).status_code == 201
        assert 429 in flood.statuses or "RESOURCE_EXHAUSTED" in flood.codes
        assert flood.statuses <= {200, 401, 429}
        assert flood.codes <= {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"}
        assert started.rss_bytes() - before_bytes < 100 * MEGABYTE
        assert incarnations() == before, "the worker was not lost"
        assert operator.get("/api/logs", params={"search": "joined"}).status_code == 200
        (tmp_path / "finish").touch()
        until(lambda: operator.get("/api/tasks").json()[0]["status"] == "completed", "the end")
