"""`strata.join` in worker processes with a real coordinator."""

import signal
from contextlib import suppress

import pytest

import strata
from strata.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Fenced,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from strata.sdk.session.registration import Enrolment
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client
from tests.coordinator.process import free_port
from tests.coordinator.test_rpc import open_session
from tests.sdk.conftest import HEARTBEAT_TIMEOUT_S
from tests.sdk.harness import until


def test_equal_settings_have_equal_hashes():
    def joined(config="{}", start=1, weight=1):
        request = pb.RegisterWorkerRequest(start=start, weight=weight)
        answer = pb.RegisterWorkerResponse(config={"config": config})
        return Enrolment(None, request).started(answer).parameters_hash

    assert joined(start=2) == joined()
    assert len({joined(), joined('{"lr": 0.1}'), joined('{"lr": 0.2}'), joined(weight=2)}) == 4


def test_workers_get_ranks_and_pass_barriers(hub, trainees):
    pair = [trainees(hub.address, "meet", world_size=2) for _ in range(2)]
    joined = [each.says("joined") for each in pair]
    assert sorted(each["rank"] for each in joined) == [0, 1]
    assert {each["world_size"] for each in joined} == {2}
    assert {each["generation"] for each in joined} == {1}
    assert [each.ends() for each in pair] == [0, 0]
    assert all(len([s for s in each.said if s["say"] == "met"]) == 3 for each in pair)
    (task,) = hub.state.tasks.values()
    assert task.state == "completed"
    assert task.committed == 3


def test_barrier_returns_each_workers_arrival_order(hub, trainees):
    crowd = [trainees(hub.address, "meet", world_size=4, rounds=1) for _ in range(4)]
    met = [each.says("met") for each in crowd]
    assert sorted(each["order"] for each in met) == [0, 1, 2, 3]
    assert {each["participants"] for each in met} == {4}


@pytest.mark.parametrize(
    ("number", "noticed"), [(signal.SIGKILL, "connection"), (signal.SIGSTOP, "heartbeat")]
)
def test_crash_is_logged_as_an_error(hub, trainees, number, noticed):
    victim = trainees(hub.address, "train", worker_id="victim")
    victim.says("joined")
    victim.signal(number)

    def said():
        lines = hub.lines("victim")
        return [level for level, line in lines if f"victim is lost ({noticed})" in line]

    assert until(said, what="the line about the loss") == ["error"]


def test_killed_worker_is_lost_by_its_connection_before_the_heartbeat_timeout(hub, trainees):
    victim = trainees(hub.address, "train", worker_id="victim")
    victim.says("joined")
    victim.signal(signal.SIGKILL)
    (lost,) = until(lambda: hub.facts("WorkerLost"), 30)
    assert lost.signal == "connection"


def test_paused_worker_is_lost_and_rejoins_as_a_new_incarnation(hub, trainees):
    sleeper = trainees(hub.address, "train", worker_id="sleeper")
    first = sleeper.says("joined")
    sleeper.signal(signal.SIGSTOP)
    (lost,) = until(lambda: hub.facts("WorkerLost"))
    assert lost.signal == "heartbeat"
    assert lost.evidence["silence_s"] >= HEARTBEAT_TIMEOUT_S
    sleeper.signal(signal.SIGCONT)
    again = sleeper.says("synced", timeout_s=15)
    assert again["incarnation"] > first["incarnation"]
    assert again["pid"] == first["pid"]
    assert again["generation"] > first["generation"]
    assert hub.state.workers["sleeper"].alive


def test_ctrl_c_works_in_a_blocked_barrier(hub, trainees):
    one = trainees(hub.address, "wait_alone", worker_id="one", world_size=2)
    two = trainees(hub.address, "train", worker_id="two", world_size=2)
    one.says("joined")
    two.says("joined")
    until(
        lambda: any(
            "one" in b.arrived for t in hub.state.tasks.values() for b in t.barriers.values()
        )
    )
    one.signal(signal.SIGINT)
    one.says("interrupted")
    assert one.ends() != 0
    assert hub.state.workers["one"].state == "left"
    assert hub.state.workers["one"].reason == "interrupted"


def test_forked_children_cannot_use_the_session(hub, trainees):
    parent = trainees(hub.address, "forks", worker_id="parent")
    refused = parent.says("refused")
    assert refused["code"] == "not_allowed_now"
    assert "forked" in refused["message"]
    assert parent.says("loader")["code"] == 0
    assert parent.says("sleeper")["code"] == -signal.SIGTERM
    assert parent.says("forked")["code"] == 7
    assert parent.says("met")["incarnation"] == parent.says("joined")["incarnation"]
    assert parent.ends() == 0
    assert hub.store.gaps("parent", 1) == []


def test_new_worker_starts_a_generation_that_resumes_from_a_peer(hub, trainees):
    first = trainees(hub.address, "train", worker_id="first")
    first.says("joined")
    until(lambda: hub.state.tasks["default-1"].committed > 5)
    second = trainees(hub.address, "train", worker_id="second")
    joined, synced = second.says("joined"), first.says("synced")
    assert joined["generation"] == synced["generation"] == 2
    assert (synced["source"], synced["in_place"]) == ("peer", True)
    assert joined["steps"] == synced["step"] > 5
    assert {joined["rank"], synced["rank"]} == {0, 1}


def test_sigterm_ends_the_loop_and_leaves(hub, trainees):
    worker = trainees(hub.address, "train", worker_id="w")
    worker.says("joined")
    worker.signal(signal.SIGTERM)
    assert worker.says("ending")["why"] == "SIGTERM came"
    assert worker.ends() == 0
    assert (hub.state.workers["w"].state, hub.state.workers["w"].reason) == ("left", "SIGTERM came")


def test_stopping_the_task_ends_every_loop(hub, trainees):
    pair = [trainees(hub.address, "train", world_size=2) for _ in range(2)]
    for each in pair:
        each.says("joined")
    hub.stop_task("default-1")
    assert [each.ends() for each in pair] == [0, 0]
    assert hub.state.tasks["default-1"].state == "stopped"


def test_exception_is_reported_as_the_reason(hub, trainees):
    worker = trainees(hub.address, "fail", worker_id="w")
    assert worker.ends() == 1
    (lost,) = hub.facts("WorkerLost")
    assert (lost.signal, lost.reason) == ("exit", "RuntimeError: the loss is not a number")


def test_script_that_does_not_leave_is_not_a_crash(hub, trainees):
    worker = trainees(hub.address, "forgets", worker_id="w")
    assert worker.ends() == 0
    assert hub.state.workers["w"].state == "left"
    assert hub.facts("WorkerLost") == []


def test_no_grpc_stream_is_left_after_leaving(hub, trainees):
    process = trainees(hub.address, "leave_nothing")
    assert process.says("kept")["streams"] == 0
    assert process.ends() == 0


def test_join_works_in_a_thread(hub, trainees):
    worker = trainees(hub.address, "in_thread")
    worker.says("joined")
    assert worker.ends() == 0


def test_output_reaches_the_coordinators_log(hub, trainees):
    worker = trainees(hub.address, "talk", worker_id="w")
    assert worker.ends() == 0
    lines = hub.lines("w")
    assert [message for _, message in lines if message.startswith("line")] == [
        "line 0 of w",
        "line 1 of w",
        "line 2 of w",
    ]
    assert ("error", "it went wrong ? somewhere") in lines


def test_id_of_a_live_worker_is_refused(hub, trainees):
    trainees(hub.address, "train", worker_id="w").says("joined")
    with pytest.raises(AlreadyExists, match="taken by a living worker"):
        strata.join(hub.address, worker_id="w")


def test_incomplete_group_times_out_with_the_reason(hub):
    with pytest.raises(DeadlineExceeded, match="enough workers"):
        strata.join(hub.address, worker_id="lonely", world_size=2, timeout=0.3, capture=False)
    assert not hub.state.workers["lonely"].alive


def test_join_times_out_if_a_member_never_enters(hub):
    client = Client(hub.running)
    silent = open_session(client, "silent", world_size=2, syncs=True)
    with pytest.raises(DeadlineExceeded, match="the other members to enter generation 1"):
        strata.join(hub.address, worker_id="w", world_size=2, timeout=1.0, capture=False)
    silent.close()
    client.channel.close()


def test_long_wait_logs_its_reason(hub, monkeypatch, caplog):
    monkeypatch.setattr("strata.sdk.session.worker_session.LOG_INTERVAL_S", 0.1)
    with pytest.raises(DeadlineExceeded):
        strata.join(hub.address, worker_id="lonely", world_size=2, timeout=1.5, capture=False)
    said = [record.message for record in caplog.records if "waiting for" in record.message]
    assert "waiting for task default-1 to have enough workers" in said[-1]
    assert len(said) < 12, "it says so now and then, not all the time"


def test_unreachable_coordinator_is_a_clear_error():
    with pytest.raises(Unavailable) as caught:
        strata.join(f"127.0.0.1:{free_port()}", connect_timeout=0.5)
    assert "COORDINATOR_ADDR" in caught.value.hint
    assert "50051" in caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"coordinator": "ftp://x"},
        {"coordinator": "a:b:c"},
        {"coordinator": "host:99999"},
        {"worker_id": "x" * 201},
        {"worker_id": "a\nb"},
        {"world_size": 0},
        {"world_size": 2**40},
        {"gpu_count": -1},
        {"weight": 2**40},
        {"weight": -1},
        {"weight": 0},
        {"metadata": {"a": "x" * 1000}},
        {"metadata": {str(n): "" for n in range(100)}},
    ],
)
def test_invalid_arguments_are_typed_errors(hub, given):
    with pytest.raises(InvalidArgument):
        strata.join(**{"coordinator": hub.address, "capture": False, **given})


def test_unknown_task_is_a_typed_error(hub):
    with pytest.raises(NotFound, match="no task"):
        strata.join(hub.address, task="nowhere", capture=False)


def test_heartbeat_after_the_leave_ends_the_session_without_a_warning(hub, tmp_path, caplog):
    run = strata.join(hub.address, worker_id="w", capture=False, spool_dir=tmp_path)
    session = run._session
    with suppress(Fenced):  # a heartbeat after it may be refused before the answer comes
        session.answer(session.ask("leave", pb.Leave(outcome="done")), 10.0)
    session.heartbeat.beat_soon()
    until(lambda: session.error is not None, what="the refusal")
    run.leave()
    assert [record for record in caplog.records if record.name.startswith("strata.sdk")] == []
