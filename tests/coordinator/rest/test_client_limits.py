"""One client cannot use up what others need: connections, streams, threads, or the time of the
coordinator by guessing tokens. A request above a limit is refused with a time to wait."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from strata.config import Settings
from strata.coordinator.rest.request_checks import HttpLimits
from strata.coordinator.server import with_token
from strata.coordinator.wrong_tokens import MIN_TOKEN_CHARS, WrongTokenLimits, WrongTokens
from strata.errors import Overloaded, SettingError, Unauthenticated
from tests.coordinator.rest.served import Coordinator, wait_for

TOKEN = "correct-horse-battery"
WAIT_S = 60
SLOW_BODY = (
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    b"Content-Type: application/json\r\n\r\n{"
)


def connected(coordinator) -> socket.socket:
    return socket.create_connection(("127.0.0.1", coordinator.port), timeout=WAIT_S)


def answered(connection: socket.socket) -> bytes:
    """All that arrives until the coordinator closes."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def retry_after(answer) -> int:
    return int(answer.headers["Retry-After"])


def test_idle_connections_give_way_to_new_clients(tmp_path):
    limits = HttpLimits(connections=20, head_timeout_s=600)
    with Coordinator(tmp_path, limits=limits) as coordinator, ExitStack() as stack:
        held = [stack.enter_context(connected(coordinator)) for _ in range(60)]
        with coordinator.client() as newcomer:
            assert newcomer.get("/api/status").status_code == 200
        assert answered(held[0]) == b""


def test_connections_in_use_are_not_closed_for_others(tmp_path):
    limits = HttpLimits(connections=20)
    with Coordinator(tmp_path, limits=limits) as coordinator, ExitStack() as stack:
        held = [stack.enter_context(connected(coordinator)) for _ in range(20)]
        for connection in held:
            connection.sendall(SLOW_BODY)
        wait_for(lambda: coordinator.guard.admission.running == 20)
        answer = answered(stack.enter_context(connected(coordinator)))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        held[0].sendall(b" " * 98 + b"}")
        assert held[0].recv(65_536).startswith(b"HTTP/1.1 400 ")  # a task needs a name
        with coordinator.client() as again:
            assert again.get("/api/status").status_code == 200


def test_running_requests_of_one_client_are_limited(tmp_path):
    limits = HttpLimits(requests_each=3)
    with (
        Coordinator(tmp_path, limits=limits) as coordinator,
        coordinator.client() as client,
        ExitStack() as stack,
    ):
        for _ in range(3):
            stack.enter_context(connected(coordinator)).sendall(SLOW_BODY)
        wait_for(lambda: coordinator.guard.admission.running == 3)
        answer = client.get("/api/status")
        assert (answer.status_code, retry_after(answer)) == (429, 1)
        stack.close()
        wait_for(lambda: coordinator.guard.admission.running == 0)
        assert client.get("/api/status").status_code == 200


def test_streams_of_one_client_are_limited(tmp_path):
    with (
        Coordinator(tmp_path, limits=HttpLimits(streams=8, streams_each=2)) as coordinator,
        coordinator.client() as client,
        ExitStack() as stack,
    ):
        for _ in range(2):
            stack.enter_context(client.stream("GET", "/api/stream"))
        answer = client.get("/api/live")
        assert (answer.status_code, retry_after(answer)) == (429, 5)
        assert "2 of them from 127.0.0.1" in answer.json()["error"]["message"]


def test_searches_of_the_log_do_not_delay_changes(tmp_path, monkeypatch):
    """Searches that do not end: others are refused, and facts are written all the same."""
    ending = threading.Event()
    with Coordinator(tmp_path) as coordinator, ThreadPoolExecutor(40) as pool:
        found = coordinator.logs.recent
        monkeypatch.setattr(
            coordinator.logs, "recent", lambda *given: ending.wait(WAIT_S) and found(*given)
        )

        def search(_):
            with coordinator.client() as client:
                return client.get("/api/logs", params={"search": "x"}, timeout=WAIT_S)

        searches = [pool.submit(search, number) for number in range(40)]
        wait_for(lambda: sum(each.done() for each in searches) == 24)
        with coordinator.client() as client:
            assert client.post("/api/tasks", json={"name": "n"}).status_code == 201
            assert client.get("/api/status").status_code == 200
        ending.set()
        answers = [each.result(WAIT_S) for each in searches]
    assert sorted(answer.status_code for answer in answers) == [200] * 16 + [429] * 24
    assert {retry_after(answer) for answer in answers if answer.status_code == 429} == {1}


def test_wrong_tokens_are_limited_and_the_right_one_is_not(tmp_path):
    with Coordinator(tmp_path, token=TOKEN) as coordinator, coordinator.client() as client:
        wrong = {"Authorization": "Bearer wrong"}
        answers = [client.get("/api/status", headers=wrong) for _ in range(60)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[:20] == [401] * 20
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert retry_after(refused) == 1
        assert "STRATA_TOKEN" in refused.json()["error"]["hint"]
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/status", headers=right).status_code == 200
        assert client.get("/api/status").status_code == 401
        assert client.get("/", params={"token": TOKEN}).status_code == 303


def test_limit_of_wrong_tokens_is_per_network_and_recovers():
    now = [0.0]
    limits = WrongTokenLimits(burst=2, per_s=0.5, networks=3)
    wrong, refusal = WrongTokens(lambda: now[0], limits), Unauthenticated("no")
    assert [wrong.answer("2001:db8::1", refusal) for _ in range(2)] == [refusal] * 2
    over = wrong.answer("2001:db8::2", refusal)  # the same /64
    assert isinstance(over, Overloaded)
    assert over.retry_after_s == pytest.approx(2.0)
    assert wrong.answer("10.0.0.1", refusal) is refusal
    now[0] = 2.0
    assert wrong.answer("2001:db8::3", refusal) is refusal
    for number in range(100):
        wrong.answer(f"10.1.0.{number}", refusal)
    assert len(wrong._tallies) == 3


def test_short_token_is_refused_where_other_machines_reach_it():
    short = Settings(token="x" * (MIN_TOKEN_CHARS - 1), http_host="0.0.0.0")
    with pytest.raises(SettingError, match="guess"):
        with_token(short)
    assert with_token(Settings(token="x")).token == "x"
    assert with_token(Settings(token="x" * MIN_TOKEN_CHARS, http_host="0.0.0.0"))
