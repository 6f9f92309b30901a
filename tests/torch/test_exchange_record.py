"""Guards the record of PyTorch's collectives in a run, and answers from that record."""

import signal
from pathlib import Path

import pytest

from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from tests.cli.runs import run

pytest.importorskip("torch")

HERE = Path(__file__).parent


def trained(folder, script, workers, *config):
    """Run a learner to its end; return the folder of its log."""
    pairs = [each for pair in (f"folder={folder}", *config) for each in ("--config", pair)]
    options = ["--workers", str(workers), "--data-dir", str(folder / "data"), *pairs]
    code, shown = run(folder, str(HERE / script), *options, OMP_NUM_THREADS="1")
    assert code == 0, shown
    return folder / "data"


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """A run of data_parallel in which the worker with rank 1 is killed in step 12."""
    folder = tmp_path_factory.mktemp("disturbed")
    killed = f"signals=12:{int(signal.SIGKILL)}"
    with open_timeline(trained(folder, "learner.py", 3, "only=plain", killed)) as timeline:
        yield timeline


def broken(timeline):
    """The exchanges that did not complete."""
    ends = timeline.records(kinds={"ExchangeCompleted"})
    return [each for each in ends if not each.get("ok")]


def ask(timeline, **params):
    return TimelineQueries(timeline).why(
        "delivery", params={name: str(each) for name, each in params.items()}
    )


def test_step_that_all_applied_reached_everyone(disturbed):
    opened = next(disturbed.records(kinds={"ExchangeOpened"}))
    sender, _, receiver = opened.get("members")
    answer = ask(disturbed, sender=sender, receiver=receiver, step=5)
    assert answer.verdict == "yes", answer
    assert "applied step 5 of generation 1" in answer.answer


def test_killed_worker_is_named_by_all_others(disturbed):
    opened = next(disturbed.records(kinds={"ExchangeOpened"}))
    first, killed, last = opened.get("members")
    ends = broken(disturbed)
    assert {(each.node, each.text("peer")) for each in ends} == {(first, killed), (last, killed)}
    time_ms = max(each.at_ns for each in ends) / 1e6 + 1
    for sender, receiver in ((first, last), (killed, last), (first, killed)):
        asked = {"sender": sender, "receiver": receiver, "step": 12}
        answer = ask(disturbed, **asked, time_ms=time_ms)
        assert answer.verdict == "no", answer
        assert f"{killed} was down" in answer.answer
    for each in ends:
        of_event = TimelineQueries(disturbed).why(ref=each.ref)
        assert (of_event.question, of_event.verdict) == ("delivery", "no"), of_event
        assert f"{killed} was down" in of_event.answer
    again = ask(disturbed, sender=first, receiver=last, step=12)
    assert again.verdict == "yes", again
    assert killed in again.findings[0]


def test_every_step_has_its_members_transport_and_bytes(disturbed):
    transports = {each.get("transport") for each in disturbed.records(kinds={"ExchangeOpened"})}
    assert transports == {"tcp", "gloo"}
    (node,) = {each.node for each in broken(disturbed)[:1]}
    ends = [r for r in disturbed.records(node=node, kinds={"ExchangeCompleted"}) if r.get("ok")]
    assert [each.get("step") for each in ends] == list(range(20))
    alike = {each.get("sent_bytes") for each in ends[1:12]}
    assert len(alike) == 1, "the same buckets in every step"
    assert alike == {each.get("received_bytes") for each in ends[1:12]}


def test_mesh_records_its_steps_without_bytes(tmp_path):
    with open_timeline(trained(tmp_path, "fsdp_learner.py", 2)) as timeline:
        ends = [record.event.body for record in timeline.records(kinds={"ExchangeCompleted"})]
        steps = [r.get("step") for r in timeline.records(kinds={"StepFinished"})]
        assert [(each.ok, each.error) for each in ends if not each.ok] == []
        assert sorted(each.step for each in ends if each.sent_bytes == -1) == sorted(steps)
        sender, receiver = next(timeline.records(kinds={"ExchangeOpened"})).get("members")
        assert ask(timeline, sender=sender, receiver=receiver, step=3).verdict == "yes"
