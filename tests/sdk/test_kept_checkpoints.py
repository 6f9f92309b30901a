"""Retention in real runs: the script chooses what is kept, and each checkpoint has the metrics
that were logged last before it."""

from pathlib import Path

import httpx
import pytest

import strata
from strata.checkpoint.manager import CheckpointManager
from strata.errors import InvalidArgument
from strata.sdk.state.logged_metrics import MAX_METRICS, LoggedMetrics
from tests.sdk.harness import until

TASK = "default-1"
LOOPER = Path(__file__).with_name("looper.py")


def listed(hub):
    return httpx.get(f"{hub.running.http_url}/api/checkpoints").json()


def kept(hub):
    return {each["step"]: each["kept_because"] for each in listed(hub)}


def test_script_keeps_the_best_checkpoint_by_the_metric_of_rank_0(hub, trainees, tmp_path):
    values = {10: 0.5, 20: 0.125, 30: 0.25, 40: float("nan")}
    given = {"world_size": 2, "steps": 40, "keep_count": 1, "keep_best": "val_loss"}
    workers = [
        trainees(hub.address, "measured", worker_id=name, values=values, **given) for name in "ab"
    ]
    assert [worker.ends() for worker in workers] == [0, 0]
    assert kept(hub) == {40: ["newest"], 20: ["best val_loss 0.125"]}
    newest, best = listed(hub)
    assert (newest["metrics"], best["metrics"]) == (
        {"loss": 1.0},
        {"val_loss": 0.125, "loss": 1.0},
    )
    task = httpx.get(f"{hub.running.http_url}/api/tasks/{TASK}").json()
    assert (task["keep_count"], task["keep_best"]) == (1, "val_loss")
    folder = tmp_path / "data" / "checkpoints" / hub.state.cluster / TASK
    with CheckpointManager(folder) as manager:
        found = {info.step: info.metrics for info in manager.all_checkpoints()}
    assert found == {40: {"loss": 1.0}, 20: {"val_loss": 0.125, "loss": 1.0}}


def test_restored_state_keeps_its_metrics(hub, trainees):
    given = {"worker_id": "a", "keep_best": "max:val_loss", "keep_count": 9}
    first = trainees(hub.address, "measured", values={5: 0.5}, steps=10**6, step_s=0.05, **given)
    until(lambda: "newest" in kept(hub).get(10, []), what="the first commit")
    first.kill()
    until(lambda: not hub.state.workers["a"].alive)
    second = trainees(hub.address, "measured", values={}, steps=40, **given)
    assert second.ends() == 0
    assert listed(hub)[0]["metrics"]["val_loss"] == 0.5
    assert kept(hub)[10][-1] == "best val_loss 0.5", "the first with this value"


@pytest.mark.parametrize(("losses", "best"), [([0.5, 0.25, 0.75], 10), ([0.5, 0.25, 0.125], 15)])
def test_evaluated_models_are_saved_with_their_metric(hub, trainees, losses, best):
    given = {"world_size": 2, "keep_count": 1, "keep_best": "val_loss", "checkpoint_every": 5}
    workers = [
        trainees(hub.address, "evaluated", script=LOOPER, worker_id=name, losses=losses, **given)
        for name in "ab"
    ]
    assert [worker.ends() for worker in workers] == [0, 0]
    found = kept(hub)
    assert list(found) == sorted({15, best}, reverse=True)
    assert found[best][-1] == f"best val_loss {min(losses):g}"
    assert listed(hub)[0]["metrics"]["val_loss"] == losses[-1]


def test_metric_that_was_never_logged_is_named_once(hub, trainees):
    given = {"worker_id": "a", "steps": 30, "keep_best": "val_los"}
    assert trainees(hub.address, "measured", values={10: 1.0}, **given).ends() == 0

    def warnings():
        return [line for _, line in hub.lines("a") if "has not logged it" in line]

    until(warnings, what="the warning")
    assert len(warnings()) == 1
    assert "'val_los'" in warnings()[0]
    assert [each["kept_because"][0] for each in listed(hub)] == [
        "newest",
        "2 of 5 newest",
        "3 of 5 newest",
    ]


@pytest.mark.parametrize("bad", [{"keep_every": -1}, {"keep_best": "max:"}, {"keep_count": 1.5}])
def test_invalid_retention_is_an_error_of_join(hub, bad, spool):
    with pytest.raises(InvalidArgument, match=next(iter(bad))):
        strata.join(coordinator=hub.address, spool_dir=spool, **bad)


def test_logged_metrics_are_bounded_and_the_best_one_always_fits(caplog):
    metrics = LoggedMetrics("max:accuracy")
    metrics.note({f"m{number}": number for number in range(MAX_METRICS + 5)})
    metrics.note({"m0": 7.0, "accuracy": 0.5})
    last = metrics.last()
    assert (len(last), last["m0"], last["accuracy"]) == (MAX_METRICS + 1, 7.0, 0.5)
    assert len(caplog.records) == 1
    assert "is not saved with checkpoints" in caplog.text


def test_restored_metrics_replace_later_ones():
    metrics = LoggedMetrics("")
    metrics.note({"val_loss": 0.1, "other": 1.0})
    metrics.restore({"val_loss": 0.2})
    assert metrics.last() == {"val_loss": 0.2}
