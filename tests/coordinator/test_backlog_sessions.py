"""Limits on unanswered requests of workers and agents, on a real coordinator with a busy disk;
refused events are sent again and not lost."""

import asyncio
import threading
from contextlib import contextmanager

import grpc
import pytest

from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client
from tests.coordinator.test_agent_sessions import Agent
from tests.coordinator.test_hostile import TIMEOUT_S, batch, wait_until
from tests.coordinator.test_rpc import Stream, open_session

MEGABYTE = 2**20
LARGE = b"x" * (3 * MEGABYTE)


@contextmanager
def busy(client: Client):
    """Delay all answers while the context is open, like a slow disk."""
    engine = client.coordinator.engine
    loop = engine._task.get_loop()
    held, released = threading.Event(), asyncio.Event()

    async def hold() -> None:
        async with engine.settled():
            held.set()
            await released.wait()

    holding = asyncio.run_coroutine_threadsafe(hold(), loop)
    assert held.wait(TIMEOUT_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(released.set)
        holding.result(TIMEOUT_S)


def shared_bytes(client: Client) -> int:
    return client.coordinator.sessions.backlog.held_bytes


def test_unanswered_events_of_a_worker_are_bounded_and_resent_in_order(client):
    worker = open_session(client, "w")
    worker.next("standing")
    with busy(client):
        for number in range(4):
            worker.send(request=number + 1, **batch(3 * number, 3, LARGE))
        refused = [worker.next("refused") for _ in range(2)]
        assert [message.request for message in refused] == [3, 4]
        assert {message.refused.code for message in refused} == {"overloaded"}
        worker.send(request=5, **batch(12, 3, b"small"))
        worker.send(beat=pb.Beat())
        worker.next("pulse")
        assert 6 * MEGABYTE < shared_bytes(client) < 7 * MEGABYTE
    stored_seqs = [worker.next("stored").stored.seq for _ in range(3)]
    assert stored_seqs[-1] == max(stored_seqs) == 5, (
        "nothing after the refused events may be told as stored"
    )
    worker.send(request=6, **batch(6, 3, LARGE))
    assert worker.next("stored").stored.seq == 8
    worker.send(request=7, **batch(9, 3, LARGE))
    assert worker.next("stored").stored.seq == 14
    assert shared_bytes(client) == 0
    worker.close()


def test_requests_before_hello_is_decided_are_bounded(client):
    incarnation = client.register("w").incarnation
    first = Stream(client, "w", incarnation)
    first.next("standing")
    with busy(client):
        worker = Stream(client, "w", incarnation)
        worker.send(request=1, arrive=pb.Arrive(barrier_id="x" * 10, arrival=1))
        for number in range(4):
            worker.send(request=number + 2, **batch(3 * number, 3, LARGE))
        with pytest.raises(grpc.RpcError) as caught:
            for _ in worker.call:
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_until(lambda: shared_bytes(client) < MEGABYTE)
    wait_until(lambda: shared_bytes(client) == 0)
    first.close()
    again = Stream(client, "w", incarnation)
    assert again.next("standing").standing.stored_seq == -1
    again.close()


def test_unanswered_events_of_an_agent_are_bounded(client):
    incarnation = client.register("w").incarnation
    agent = Agent(client)
    agent.hello()
    with busy(client):
        for number in range(3):
            events = batch(3 * number, 3, LARGE)["events"]
            agent.send(left=pb.LeftEvents(worker_id="w", incarnation=incarnation, events=events))
        assert agent.next_order("refused").code == "overloaded"
        assert shared_bytes(client) < 7 * MEGABYTE
    assert [agent.next_order("left_settled").first_seq for _ in range(2)] == [0, 3]
    assert shared_bytes(client) == 0


def test_hello_messages_of_an_agent_are_bounded(client):
    agent = Agent(client)
    with busy(client):
        for _ in range(2_000):
            agent.send(hello=pb.AgentHello(agent_id="a", hostname="h", slots=1, nonce="n"))
        assert agent.next_order("refused").code == "overloaded"
        assert client.coordinator.engine.inbox_depth() < 1_100
