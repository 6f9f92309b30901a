"""Proof of identity: ids and incarnations are public, the nonce of a registration is not; without
it sessions, heartbeats and deregistrations are refused."""

import httpx
import pytest

from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator
from tests.coordinator.test_hostile import code_of, refusal
from tests.coordinator.test_rpc import Stream, open_session

SECRET = "a-secret-that-only-the-worker-knows"


@pytest.fixture
def victim(client):
    stream = open_session(client, "victim", nonce=SECRET)
    stream.incarnation = stream.next("standing").standing.incarnation
    yield stream
    stream.close()


def still_there(victim) -> bool:
    victim.send(beat=pb.Beat(sent_mono_ns=7))
    return victim.next("pulse").pulse.sent_mono_ns == 7


@pytest.mark.parametrize("nonce", ["", "guessed", SECRET[:-1], SECRET.upper()])
def test_session_cannot_be_taken_over_without_the_nonce(client, victim, nonce):
    thief = Stream(client, "victim", victim.incarnation, nonce)
    assert thief.next("refused").refused.code == "permission_denied"
    thief.send(request=2, leave=pb.Leave())
    assert thief.next("refused").refused.code == "invalid_argument"
    assert still_there(victim)
    thief.close()


def test_invented_incarnation_opens_no_session(client, victim):
    """An attacker registers, and uses its own new incarnation with another worker's id."""
    own = client.register("thief", nonce="thief").incarnation
    for nonce in ("thief", ""):
        thief = Stream(client, "victim", own, nonce)
        assert thief.next("refused").refused.code == "fenced"
        thief.close()
    assert still_there(victim)


def test_worker_reconnects_with_its_nonce(client, victim):
    again = Stream(client, "victim", victim.incarnation, SECRET)
    assert again.next("standing").standing.incarnation == victim.incarnation
    assert still_there(again)
    again.close()


@pytest.mark.parametrize("named", [0, 1], ids=["no-incarnation", "incarnation"])
@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("Heartbeat", pb.HeartbeatRequest),
        ("DeregisterWorker", pb.DeregisterWorkerRequest),
        ("WaitBarrier", lambda **given: pb.WaitBarrierRequest(barrier_id="b", **given)),
        ("NotifyCheckpoint", lambda **given: pb.NotifyCheckpointRequest(step=1, **given)),
    ],
)
def test_unary_calls_need_the_nonce_of_the_worker(client, victim, method, request_of, named):
    who = {"worker_id": "victim", "incarnation": victim.incarnation * named}
    error = refusal(getattr(client, method), request_of(**who))
    assert code_of(error) == "permission_denied"
    getattr(client, method)(request_of(**who, nonce=SECRET), timeout=20)


def test_nonce_is_never_stored_or_shown(tmp_path):
    with coordinator(tmp_path) as started:
        client = Client(started)
        stream = open_session(client, "victim", nonce=SECRET)
        stream.next("standing")
        client.register("again", nonce=SECRET)
        paths = ("workers", "dashboard", "events?limit=1000", "logs?limit=1000", "status")
        for path in paths:
            assert SECRET not in httpx.get(f"{started.http_url}/api/{path}").text
        stream.close()
        client.channel.close()
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_nonce_is_checked_after_a_restart(tmp_path):
    with coordinator(tmp_path) as started:
        incarnation = Client(started).register("w", nonce=SECRET).incarnation
    with coordinator(tmp_path) as started:
        client = Client(started)
        thief = Stream(client, "w", incarnation, "guessed")
        assert thief.next("refused").refused.code == "permission_denied"
        worker = Stream(client, "w", incarnation, SECRET)
        assert worker.next("standing").standing.incarnation == incarnation
        thief.close()
        worker.close()


def test_worker_registered_without_nonce_needs_none(client):
    """Clients that know only the contract do this."""
    stream = open_session(client, "plain")
    assert stream.next("standing").standing.worker_id == "plain"
    assert client.Heartbeat(pb.HeartbeatRequest(worker_id="plain")).acknowledged
    stream.close()
