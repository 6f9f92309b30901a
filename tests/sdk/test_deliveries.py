"""`why delivery` about worker processes: each test injects a cause that the answer must name.

The workers exchange messages (local steps) or values in every step (`run.average`). The question
contains a sender and a receiver, not the id of a message.
"""

import signal
from pathlib import Path

import httpx
import pytest

from strata.store.event_store import Window
from tests.sdk.harness import until

HERE = Path(__file__).parent
LATE_S = 5


def why(hub, **params):
    asked = {"question": "delivery", **params}
    answer = httpx.get(f"{hub.running.http_url}/api/timeline/why", params=asked, timeout=30)
    return answer.raise_for_status().json()


def chain(hub, answer):
    """The events that an answer cites."""
    url = f"{hub.running.http_url}/api/timeline/event"
    refs = [each["ref"] for each in answer["chain"]]
    return [httpx.get(f"{url}/{ref}", timeout=30).raise_for_status().json() for ref in refs]


def cited(hub, answer):
    """The same, by their nodes and kinds."""
    return [(each["node"], each["kind"]) for each in chain(hub, answer)]


@pytest.fixture
def learners(hub, trainees):
    """Start workers that train by local steps: `learners({...}, {...})`."""

    def start(*given):
        asked = {"name": "t", "worker_count": len(given), "policy": "continue"}
        task = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).json()["task_id"]
        return [
            trainees(
                hub.address,
                "learn",
                script=HERE / "local_learner.py",
                worker_id=name,
                task=task,
                **own,
            )
            for name, own in zip("abc", given, strict=False)
        ]

    return start


class TestMessages:
    def test_arrived_message_is_answered_with_its_sending(self, hub, learners):
        crew = learners({"epochs": 1}, {"epochs": 1}, {"epochs": 1})
        assert [each.ends(120) for each in crew] == [0, 0, 0]
        answer = why(hub, sender="a", receiver="b", step=3)
        assert answer["verdict"] == "yes", answer
        *_, sent, taken = chain(hub, answer)
        assert (taken["node"], taken["body"]["message"]) == ("b", "update-1-3-a")
        assert (sent["node"], sent["body"]["to"]) == (taken["body"]["sender"], ["b"])
        newest = chain(hub, why(hub, sender="a", receiver="b"))
        assert newest[-1]["body"]["step"] > 3

    def test_broken_link_is_named_with_both_ends(self, hub, learners):
        learners({"cut_off": "b"}, {})
        answer = until(lambda: decided(hub, "no", sender="a", receiver="b"), what="an answer")
        assert "link between a and b was down" in answer["answer"]
        assert cited(hub, answer)[-1] == ("a", "ConnectionChanged")
        assert chain(hub, answer)[-1]["body"]["peer"] == "b"

    def test_rejected_message_is_answered_with_the_reason(self, hub, learners):
        learners({}, {"mistrusts": True})
        answer = until(lambda: decided(hub, "no", sender="a", receiver="b"), what="an answer")
        assert "its token is not that of generation 1" in answer["answer"]
        assert cited(hub, answer) == [("a", "MessageSent"), ("b", "MessageRejected")]

    def test_receiver_that_is_down_is_named(self, hub, learners):
        crew = learners({"step_s": 0.01}, {"step_s": 0.01})
        crew[1].says("round", count=2)
        crew[1].signal(signal.SIGSTOP)
        until(lambda: hub.facts("WorkerLost"), what="the loss")
        crew[1].signal(signal.SIGKILL)
        last = until(lambda: unanswered(hub), what="a message that b never took")
        answer = why(hub, sender="a", receiver="b", step=last.step)
        assert answer["verdict"] == "no", answer
        assert "b was down" in answer["answer"]
        assert ("coordinator", "WorkerLost") in cited(hub, answer)

    def test_slow_receiver_is_named_with_the_held_bytes(self, hub, learners):
        crew = learners({"epochs": 1}, {"epochs": 1, "slow_s": LATE_S + 1})
        assert [each.ends(120) for each in crew] == [0, 0]
        answer = why(hub, sender="a", receiver="b", step=0)
        assert (answer["verdict"], "late" in answer["answer"]) == ("yes", True), answer
        assert cited(hub, answer) == [
            ("a", "MessageSent"),
            ("a", "PeerLagged"),
            ("b", "MessageReceived"),
        ]
        lag = chain(hub, answer)[1]["body"]
        assert (lag["peer"], lag["messages"]) == ("b", 1)
        assert lag["held_s"] >= 2
        assert hub.recorded("a", "PeerLagged")[-1].body.messages == 0, "it has caught up"

    def test_late_message_is_answered_with_the_connection_that_was_down(self, hub, learners):
        crew = learners({"epochs": 1}, {"epochs": 1, "deaf": 5})
        assert [each.ends(120) for each in crew] == [0, 0]
        answer = why(hub, sender="a", receiver="b", step=0)
        assert (answer["verdict"], "late" in answer["answer"]) == ("yes", True), answer
        assert "the connection was down" in answer["answer"]
        first, arrived, *_ = (each["body"] for each in chain(hub, answer))
        assert (first["attempt"], arrived["attempt"] > 1) == (1, True)
        assert ("a", "ConnectionChanged") in cited(hub, answer)


def decided(hub, verdict, **params):
    """The answer if it has this verdict, else None."""
    try:
        answer = why(hub, **params)
    except httpx.HTTPStatusError:
        return None
    return answer if answer["verdict"] == verdict else None


def unanswered(hub):
    """The newest message from a to b, if b has not recorded it."""
    sent = [event.body for event in hub.recorded("a", "MessageSent") if event.body.to == ["b"]]
    heard = {event.body.message for event in hub.recorded("b", "MessageReceived")}
    return sent[-1] if sent and sent[-1].message not in heard else None


class TestExchanges:
    def test_step_applied_by_all_is_answered_yes(self, hub, group):
        crew = group({}, {}, {}, rounds=5)
        assert [each.ends() for each in crew] == [0, 0, 0]
        for step in range(5):
            answer = why(hub, sender="w0", receiver="w2", step=step)
            assert answer["verdict"] == "yes", answer
            assert f"applied step {step} of generation 1" in answer["answer"]
            assert cited(hub, answer) == [("w0", "ExchangeStarted"), ("w2", "ExchangeCompleted")]
        assert why(hub, sender="w1", receiver="w0")["verdict"] == "yes"
        assert why(hub, sender="w1", receiver="w0", step=99)["verdict"] == "no"

    def test_link_that_breaks_between_living_members_is_named(self, hub, group):
        crew = group({}, {"cut_at": 2}, rounds=5)
        assert [each.ends() for each in crew] == [0, 0]
        answer = why(hub, sender="w0", receiver="w1", step=2, time_ms=broken_ms(hub, "w1"))
        assert answer["verdict"] == "no", answer
        assert "the link between w" in answer["answer"]
        assert "broke in step 2 of generation 1" in answer["answer"]
        assert any(kind == "ConnectionChanged" for _, kind in cited(hub, answer))
        again = why(hub, sender="w0", receiver="w1", step=2)
        assert again["verdict"] == "yes", again
        assert "generation 1" in again["findings"][0]

    def test_killed_member_is_named_by_all_survivors(self, hub, group):
        crew = group({}, {"late_at": 3}, {}, rounds=6)
        crew[1].says("late")
        until(lambda: begun(hub, "w2", 3), what="the exchange of the others")
        crew[1].signal(signal.SIGKILL)
        assert [crew[0].ends(), crew[2].ends()] == [0, 0]
        for sender, receiver in (("w0", "w1"), ("w1", "w2"), ("w0", "w2")):
            asked = {"sender": sender, "receiver": receiver}
            answer = why(hub, **asked, step=3, time_ms=broken_ms(hub, "w2"))
            assert answer["verdict"] == "no", answer
            assert "w1 was down" in answer["answer"]
        for survivor in ("w0", "w2"):
            (ended,) = [e.body for e in hub.recorded(survivor, "ExchangeCompleted") if e.body.error]
            assert (ended.peer, ended.step) == ("w1", 3), (
                "rank 0 tells the others which member it lost"
            )
        later = why(hub, sender="w0", receiver="w1")
        assert later["verdict"] == "no"
        assert "w1 was down before step 5 of generation 2" in later["answer"]

    def test_late_member_is_the_cause_of_a_late_exchange(self, hub, group):
        crew = group({}, {}, {"slow_at": 2, "slow_s": LATE_S + 1}, rounds=4)
        assert [each.ends() for each in crew] == [0, 0, 0]
        answer = why(hub, sender="w0", receiver="w1", step=2)
        assert (answer["verdict"], "late" in answer["answer"]) == ("yes", True), answer
        assert ("w2", "ExchangeStarted") in cited(hub, answer)

    def test_run_without_recorded_exchanges_is_answered_unknown(self, hub, trainees):
        crew = [trainees(hub.address, "meet", worker_id=name, world_size=2) for name in "ab"]
        assert [each.ends() for each in crew] == [0, 0]
        for params in ({}, {"step": 1}, {"message": "update-1-1-a"}):
            answer = why(hub, sender="a", receiver="b", **params)
            assert answer["verdict"] == "unknown", answer
            assert "not recorded" in answer["answer"]

    def test_every_step_is_recorded_with_members_bytes_and_links(self, hub, group):
        crew = group({}, {}, {}, rounds=4)
        assert [each.ends() for each in crew] == [0, 0, 0]
        for rank in range(3):
            worker = f"w{rank}"
            (opened,) = hub.recorded(worker, "ExchangeOpened")
            assert len(opened.body.members) == 3
            assert opened.body.members[opened.body.rank] == worker
            started = hub.recorded(worker, "ExchangeStarted")
            completed = hub.recorded(worker, "ExchangeCompleted")
            assert [e.op for e in started] == [e.op for e in completed]
            assert [e.body.step for e in completed] == [0, 1, 2, 3]
            links = 2 if opened.body.rank == 0 else 1
            assert {(e.body.ok, e.body.sent_bytes) for e in completed} == {(True, links * 33)}
            assert {e.body.received_bytes for e in completed} == {links * 33}
            changed = [event.body for event in hub.recorded(worker, "ConnectionChanged")]
            found = {(each.peer, each.path) for each in changed if each.purpose == "exchange"}
            peers = opened.body.members[1:] if links == 2 else opened.body.members[:1]
            assert found == {(peer, "direct") for peer in peers}


def begun(hub, worker, step):
    return [e for e in hub.recorded(worker, "ExchangeStarted") if e.body.step == step]


def broken_ms(hub, worker):
    """The time just after a worker's exchange broke, on the timeline's clock."""
    (broken,) = [e for e in hub.recorded(worker, "ExchangeCompleted") if not e.body.ok]
    (incarnation,) = {batch.incarnation for batch in hub.store.batches(Window(node=worker))}
    ref = f"{worker}/{incarnation}/{broken.seq}"
    url = f"{hub.running.http_url}/api/timeline/event/{ref}"
    return httpx.get(url, timeout=30).raise_for_status().json()["at_ms"] + 1
