"""Scripts written for Weights & Biases record with Strata: the same values at the same steps, and
an error for what would be lost."""

import numpy as np
import pytest

import strata
from strata.compat import wandb
from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.record.logged_config import HIDDEN, MAX_VALUES, config_values


@pytest.fixture
def joined(hub, spool, monkeypatch):
    """The environment of a worker that an agent would start; leaves what a test left open."""
    monkeypatch.setenv("COORDINATOR_ADDR", hub.address)
    monkeypatch.setenv("STRATA_SPOOL_DIR", str(spool))
    yield hub
    wandb.finish()


def metrics_of(hub, worker):
    return [
        (each.step, each.metrics)
        for each in hub.recorded_facts(worker, "MetricsLogged", "StepFinished")
    ]


def test_log_counts_a_step_for_each_call_unless_told_otherwise(joined):
    run = wandb.init(project="p", config={"lr": 0.1})
    worker = run.recording.worker_id
    wandb.log({"loss": 2.0})
    wandb.log({"loss": 1.0}, commit=False)
    wandb.log({"train": {"acc": np.float32(0.5)}})
    wandb.log({"loss": 0.5}, step=10)
    wandb.log({"acc": 0.75}, step=10)
    wandb.log({"loss": 0.25}, step=20)
    assert wandb.run.summary["loss"] == 0.25
    wandb.finish()
    assert wandb.run is None
    assert metrics_of(joined, worker) == [
        (0, {"loss": 2.0}),
        (1, {"loss": 1.0, "train/acc": 0.5}),
        (10, {"loss": 0.5, "acc": 0.75}),
        (20, {"loss": 0.25}),
    ]
    (ended,) = joined.recorded_facts(worker, "RunEnded")
    assert ended.outcome == "done"


def test_values_inside_a_step_belong_to_that_step_of_the_open_run(joined):
    with strata.join() as run:
        assert wandb.init().recording is run
        for number in range(3):
            with run.step():
                wandb.log({"loss": number / 2})
        wandb.finish()
        worker = run.worker_id
    steps = joined.recorded_facts(worker, "StepFinished")
    assert [(each.step, each.loss) for each in steps] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert not joined.recorded_facts(worker, "MetricsLogged")


def test_media_are_recorded_as_those_of_strata(joined):
    run = wandb.init()
    worker = run.recording.worker_id
    pixels = np.zeros((2, 3), np.uint8)
    wandb.log(
        {
            "sample": wandb.Image(pixels, caption="c"),
            "all": [wandb.Image(pixels), wandb.Image(pixels)],
            "weights": wandb.Histogram([1.0, 2.0], num_bins=2),
            "known": wandb.Histogram(np_histogram=([3, 4], [0.0, 0.5, 2.0])),
            "note": "good",
        }
    )
    wandb.finish()
    logged = joined.recorded_facts(worker, "MediaLogged")
    assert [(each.name, each.media, each.step) for each in logged] == [
        ("sample", "image", 0),
        ("all/0", "image", 0),
        ("all/1", "image", 0),
        ("weights", "histogram", 0),
        ("known", "histogram", 0),
        ("note", "text", 0),
    ]
    assert logged[0].caption == "c"
    assert (logged[3].counts, logged[4].counts, logged[5].text) == ([1, 1], [3, 4], "good")


def test_config_is_recorded_with_each_change(joined):
    run = wandb.init(config={"model": {"width": 8}, "api_key": "k"})
    wandb.config.lr = 0.1
    wandb.config.update({"layers": [1, 2]})
    assert (wandb.config["lr"], wandb.config.lr) == (0.1, 0.1)
    worker = run.recording.worker_id
    wandb.finish()
    recorded = joined.recorded_facts(worker, "ConfigLogged")
    assert [len(each.values) for each in recorded] == [2, 3, 4]
    assert recorded[-1].values == {
        "model.width": 8,
        "api_key": HIDDEN,
        "lr": 0.1,
        "layers": "[1, 2]",
    }


def test_failed_run_is_recorded_as_failed(joined):
    run = wandb.init()
    worker = run.recording.worker_id
    with pytest.raises(ValueError, match="broken"), run:
        raise ValueError("broken")
    (ended,) = joined.recorded_facts(worker, "RunEnded")
    assert ended.outcome == "failed"


def test_what_would_be_lost_is_an_error(joined):
    with pytest.raises(NotAllowedNow, match=r"wandb\.log before wandb\.init"):
        wandb.log({"loss": 1.0})
    with pytest.raises(InvalidArgument, match="would record nothing"):
        wandb.init(mode="disabled")
    with pytest.raises(InvalidArgument, match="'proyect'"):
        wandb.init(proyect="p")
    wandb.init()
    with pytest.raises(InvalidArgument, match="'table' is not a number"):
        wandb.log({"table": object()})
    wandb.log({"loss": 1.0}, step=5)
    with pytest.raises(InvalidArgument, match="step 4 is logged after step 5"):
        wandb.log({"loss": 1.0}, step=4)
    with pytest.raises(AttributeError, match="has no 'Table'"):
        wandb.Table  # noqa: B018


def test_config_values_are_flat_bounded_and_without_secrets():
    shown = config_values({"max_tokens": 5, "hf_token": "x", "a": {"password": "y", "b": None}})
    assert shown == {"max_tokens": 5, "hf_token": HIDDEN, "a.password": HIDDEN, "a.b": None}
    many = config_values({f"n{at}": at for at in range(MAX_VALUES + 1)})
    assert len(many) == MAX_VALUES
    assert config_values({"big": 2**80, "path": tuple("ab")}) == {
        "big": str(2**80),
        "path": "[a, b]",
    }
