"""Guards training by local steps, in real processes: all end with the same weights, a round is
applied by all or by nobody, and whatever travels between workers is on record on both sides."""

import http.client
import signal
from collections import Counter
from itertools import islice
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest

from strata.core.worker_facts import CODEC
from strata.store.base import Window
from strata.store.batches import unpack
from strata.timeline.causes import causes_of
from strata.timeline.opening import open_timeline
from tests.sdk.harness import until

LEARNER = Path(__file__).with_name("local_learner.py")
PLANE = [*range(8), 1]
ROUNDS = 50  # four epochs of 600 samples, 48 at a time


@pytest.fixture
def learners(hub, trainees):
    """Starts workers of one task, which shrinks and grows with them: `learners("a", "b")`."""
    asked = {"name": "default", "worker_count": 3, "policy": "continue"}
    task = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).json()["task_id"]

    def start(*names, **given):
        return [
            trainees(hub.address, "learn", script=LEARNER, worker_id=name, task=task, **given)
            for name in names
        ]

    start.task = task
    return start


def recorded(hub, worker, *kinds):
    """What a worker has recorded of some kinds, in order."""
    batches = hub.store.batches(Window(node=worker))
    events = (event for batch in batches for event in unpack(CODEC, batch))
    return [event.body for event in events if event.kind in kinds]


def ended(crew):
    done = [each.says("done", timeout_s=120) for each in crew]
    assert [each.ends(60) for each in crew] == [0] * len(crew)
    return done


def assert_audited(hub, task, killed=()):
    """The audit is proven; unproven at most for the last steps of a killed worker."""
    url = f"{hub.running.http_url}/api/tasks/{task}/audit"
    wanted = {"proven", "unproven"} if killed else {"proven"}

    def settled():
        told = httpx.get(url, timeout=20).raise_for_status().json()
        return told if told["verdict"] in wanted else None

    found = until(settled, what="an audit of all records")
    assert sum(e["missing"] + e["twice"] for e in found["feeds"][0]["epochs"]) == 0


def test_all_learn_the_same_weights_and_everything_that_travels_is_on_record(
    hub, learners, tmp_path
):
    crew = learners("a", "b", "c")
    done = ended(crew)
    assert {each["steps"] for each in done} == {ROUNDS}
    assert len({str(each["weights"]) for each in done}) == 1
    np.testing.assert_allclose(done[0]["weights"], PLANE, atol=0.05)
    assert_audited(hub, learners.task)
    assert hub.state.tasks[learners.task].state == "completed"
    for worker in "abc":
        assert_recorded(hub, worker, set("abc") - {worker})
    with open_timeline(tmp_path / "data") as timeline:
        assert_caused(timeline, "b")


def assert_caused(timeline, worker):
    """What arrived was sent: by whom it came from, to this worker."""
    for arrived in islice(timeline.records(node=worker, kinds={"MessageReceived"}), 5):
        (sent,) = causes_of(timeline, arrived)
        assert (sent.kind, sent.node) == ("MessageSent", arrived.text("sender"))
        assert sent.get("to") == [worker]
        assert sent.text("message") == arrived.text("message")
        assert sent.at_ns <= arrived.at_ns


def assert_recorded(hub, worker, others):
    """Each round: the own result told and given, the others' heard, fetched, decoded, applied."""
    (neighbors,) = recorded(hub, worker, "NeighborsChanged")
    assert set(neighbors.added) == others
    assert {each.peer for each in recorded(hub, worker, "PeerLatencyChanged")} == others
    paths = {(each.peer, each.path) for each in recorded(hub, worker, "ConnectionChanged")}
    assert {(other, "direct") for other in others} <= paths
    heard = recorded(hub, worker, "MessageReceived")
    assert {each.message for each in heard} == {
        f"update-1-{step}-{other}" for step in range(ROUNDS) for other in others
    }
    assert len(heard) == 2 * ROUNDS, "each is new once"
    sent = {
        (other, each.message): (each.size_bytes, each.blob, each.batch)
        for other in others
        for each in recorded(hub, other, "MessageSent")
        if each.to == [worker]
    }
    mine = recorded(hub, worker, "MessageSent")
    assert {each.rebroadcasts for each in mine if each.author == worker} == {0}
    assert {each.rebroadcasts for each in mine if each.author != worker} <= {1, 2}
    for each in heard:
        told = sent[each.sender, each.message]
        assert told == (each.size_bytes, each.blob, each.batch)
    fetched = recorded(hub, worker, "BlobDownloadStarted")
    assert {each.blob for each in fetched} == {each.blob for each in heard}
    completed = recorded(hub, worker, "BlobDownloadCompleted")
    assert [each.ok for each in completed] == [True] * 2 * ROUNDS
    uploaded = Counter(each.to for each in recorded(hub, worker, "BlobUploadCompleted") if each.ok)
    assert uploaded == dict.fromkeys(others, ROUNDS)
    assert len(recorded(hub, worker, "BlobAdded")) == 3 * ROUNDS
    decoded = recorded(hub, worker, "ResultDeserializeCompleted")
    assert len(decoded) == 3 * ROUNDS
    begun = recorded(hub, worker, "ResultDeserializeStarted")
    assert [each.batch for each in begun] == [each.batch for each in decoded]
    assert len(recorded(hub, worker, "ResultDeserializeProgress")) == len(decoded)
    assert len(recorded(hub, worker, "BlobDownloadProgress")) >= 2 * ROUNDS
    assert all(each.ok for each in decoded)
    applied = recorded(hub, worker, "ResultsApplied")
    assert [(each.batches, each.step) for each in applied] == [
        ([f"line/{step}"], step) for step in range(ROUNDS)
    ]
    for each in applied:
        assert (each.ok, sorted(each.owners)) == (True, sorted({worker, *others}))
        assert each.results == [f"update-1-{each.step}-{owner}" for owner in each.owners]
    begun = recorded(hub, worker, "ResultsApplyStarted")
    assert [(each.step, each.workers) for each in begun] == [(step, 3) for step in range(ROUNDS)]
    finished = recorded(hub, worker, "TrainingFinished")
    assert [each.batch for each in finished] == [f"line/{step}" for step in range(ROUNDS)]
    assert recorded(hub, worker, "MessageRejected") == []


def test_a_round_in_which_a_worker_is_killed_is_applied_by_nobody_and_done_again(hub, learners):
    crew = learners("a", "b", "c", step_s=0.02)
    crew[1].says("round", count=8)
    crew[1].signal(signal.SIGKILL)
    survivors = [crew[0], crew[2]]
    again = [each.says("again") for each in survivors]
    before = [
        next(said for said in each.said if said["say"] == "round" and said["steps"] == end["steps"])
        for each, end in zip(survivors, again, strict=True)
    ]
    assert [end["weights"] for end in again] == [said["weights"] for said in before]
    done = ended(survivors)
    assert done[0]["weights"] == done[1]["weights"]
    assert [each["world_size"] for each in done] == [2, 2]
    np.testing.assert_allclose(done[0]["weights"], PLANE, atol=0.05)
    assert_audited(hub, learners.task, killed="b")
    steps = [each.step for each in recorded(hub, "a", "ResultsApplied")]
    assert steps == list(range(ROUNDS)), "no round was applied twice"
    changed = recorded(hub, "a", "NeighborsChanged")
    assert [each.removed for each in changed] == [[], ["b"]]


def test_one_worker_alone_needs_nobody(hub, trainees):
    alone = trainees(hub.address, "learn", script=LEARNER, worker_id="a", world_size=1)
    ended([alone])
    applied = recorded(hub, "a", "ResultsApplied")
    assert [each.step for each in applied] == list(range(ROUNDS))
    assert recorded(hub, "a", "MessageSent", "NeighborsChanged") == []


def test_a_newcomer_takes_over_weights_and_momentum(hub, learners):
    crew = learners("a", "b", "c", crowd=4, epochs=6)
    crew[0].says("round", count=3)
    (late,) = learners("late", epochs=6)
    begun = late.says("joined")
    assert begun["steps"] >= 3
    done = ended([*crew, late])
    assert len({str(each["weights"]) for each in done}) == 1
    np.testing.assert_allclose(done[0]["weights"], PLANE, atol=0.05)
    assert_audited(hub, learners.task)


def test_after_the_loss_of_everyone_rounds_go_on_from_the_checkpoint(hub, learners):
    crew = learners("a", "b", "c", step_s=0.02, save_at=10)
    until(lambda: hub.facts("CheckpointCommitted"), what="a checkpoint")
    crew[0].says("round", count=14)
    for each in crew:
        each.signal(signal.SIGKILL)
    until(lambda: not hub.state.tasks[learners.task].members, what="the loss of everyone")
    heirs = learners("d", "e", "f", crowd=3)
    assert min(each.says("joined")["steps"] for each in heirs) == 10
    done = ended(heirs)
    assert len({str(each["weights"]) for each in done}) == 1
    (tenth,) = [s for s in crew[0].said if s["say"] == "round" and s["steps"] == 11]
    again = next(s for each in heirs for s in each.said if s["say"] == "round" and s["steps"] == 11)
    # Not the same: what compression left out was with those who are gone.
    np.testing.assert_allclose(again["weights"], tenth["weights"], rtol=1e-2, atol=0.05)
    assert_audited(hub, learners.task, killed="abc")


def test_what_is_not_acknowledged_is_announced_again(hub, learners):
    crew = [*learners("a", "b"), *learners("c", deaf=5)]
    done = ended(crew)
    assert len({str(each["weights"]) for each in done}) == 1
    told = [each for worker in "ab" for each in recorded(hub, worker, "MessageSent")]
    again = {(*each.to, each.message) for each in told if each.attempt > 1}
    heard = {("c", each.message) for each in recorded(hub, "c", "MessageReceived")}
    assert again
    assert again <= heard
    broken = [
        each
        for worker in "ab"
        for each in recorded(hub, worker, "ConnectionChanged")
        if each.path == "disconnected"
    ]
    assert {each.peer for each in broken} == {"c"}
    assert all(each.reason for each in broken)


def test_strangers_and_nonsense_are_refused_with_a_reason(hub, learners):
    crew = learners("a", "b", "c", step_s=0.05)
    address = crew[0].says("joined")["address"]
    crew[0].says("round")
    said = {
        "message": "update-1-1-b",
        "generation": 1,
        "step": 1,
        "author": "b",
        "blob": "0",
        "size_bytes": 1,
    }
    for message in (said, said | {"generation": 9}, {"hello": 1}, said | {"more": 1}):
        assert tell(address, msgspec.json.encode(message)) == 409
    assert tell(address, b"\xff\xfe") == 409
    assert tell(address, b"x" * 20_000) == 413
    done = ended(crew)
    assert len({str(each["weights"]) for each in done}) == 1
    refused = recorded(hub, "a", "MessageRejected")
    assert [each.reason.partition(":")[0] for each in refused] == [
        "it does not prove that it belongs to generation 1",
        "it is of generation 9, this is 1",
        "it is malformed",
        "it is malformed",
        "it is malformed",
    ]
    assert {each.sender for each in refused} == {"mallory"}


def tell(address, message):
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("PUT", "/", message, {"X-Strata-Worker": "mallory"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_workers_whose_outer_optimizers_differ_are_told_so(hub, learners):
    crew = learners("a", "b", "c", crowd=4, forgets=True)
    crew[0].says("round", count=2)
    (late,) = learners("late", forgets=True)
    told = [each for each in (*crew, late) if each.ends(60) != 0]
    assert told, "whoever was first to see it stopped; the last one left has nobody to differ from"
    assert all("other weights or momentum" in "".join(each.output) for each in told)


def test_few_values_are_enough_where_the_rest_comes_later(hub, learners):
    crew = learners("a", "b", "c", keep=0.4, epochs=8)
    done = ended(crew)
    assert len({str(each["weights"]) for each in done}) == 1
    np.testing.assert_allclose(done[0]["weights"], PLANE, atol=0.3)
