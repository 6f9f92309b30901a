"""Scripts written for Weights & Biases record with Strata: the same values at the same steps, and
an error for what would be lost."""

import argparse
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

import strata
from strata.compat import wandb
from strata.core.secret_names import HIDDEN
from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.record.logged_config import MAX_VALUES, config_values


@pytest.fixture
def joined(hub, spool, monkeypatch):
    """The environment of a worker that an agent would start; leaves what a test left open."""
    monkeypatch.setenv("COORDINATOR_ADDR", hub.address)
    monkeypatch.setenv("STRATA_SPOOL_DIR", str(spool))
    yield hub
    wandb.finish()


def metrics_of(hub, worker):
    """What was logged at each step, in order."""
    found = {}
    for each in hub.recorded_facts(worker, "MetricsLogged", "StepFinished"):
        found.setdefault(each.step, {}).update(each.metrics)
    return list(found.items())


def test_log_counts_a_step_for_each_call_unless_told_otherwise(joined):
    run = wandb.init(project="p", config={"lr": 0.1})
    worker = run.recording.worker_id
    wandb.log({"loss": 2.0})
    wandb.log({"loss": 1.0}, commit=False)
    wandb.log({"train": {"acc": np.float32(0.5)}})
    wandb.log({"loss": 0.5}, step=10)
    wandb.log({"acc": 0.75}, step=10)
    wandb.log({"loss": 0.25}, step=20)
    wandb.log({"val": 3.0}, step=15)
    assert wandb.run.summary["loss"] == wandb.summary.loss == 0.25
    wandb.finish()
    assert wandb.run is None
    assert metrics_of(joined, worker) == [
        (0, {"loss": 2.0}),
        (1, {"loss": 1.0, "train/acc": 0.5}),
        (10, {"loss": 0.5, "acc": 0.75}),
        (20, {"loss": 0.25}),
        (15, {"val": 3.0}),
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
    with pytest.raises(NotAllowedNow, match="config is changed before"):
        wandb.config.update({"lr": 0.1})
    with pytest.raises(InvalidArgument, match="would record nothing"):
        wandb.init(sync_tensorboard=True)
    with pytest.raises(InvalidArgument, match="no mode 'dry'"):
        wandb.init(mode="dry")
    with pytest.raises(InvalidArgument, match="'proyect'"):
        wandb.init(proyect="p")
    wandb.init()
    with pytest.raises(InvalidArgument, match="'table' is not a number"):
        wandb.log({"table": object()})
    with pytest.raises(InvalidArgument, match="no summary 'mean'"):
        wandb.define_metric("loss", summary="mean")
    with pytest.raises(AttributeError, match="has no 'Artifact'"):
        wandb.Artifact  # noqa: B018
    with pytest.raises(AttributeError, match="has no 'log_artifact'"):
        wandb.run.log_artifact("model.pt")


def test_script_that_never_finishes_loses_no_value(joined):
    run = wandb.init()
    wandb.log({"loss": 1.0}, step=3)
    wandb.log({"acc": 0.5}, commit=False)
    run.recording.leave()  # as at the end of the process
    assert metrics_of(joined, run.recording.worker_id) == [(3, {"loss": 1.0, "acc": 0.5})]


def test_everyday_calls_of_scripts_are_taken(joined):
    torch = pytest.importorskip("torch")
    assert wandb.login(key="k")
    arguments = argparse.Namespace(lr=0.1, epochs=2)
    with wandb.init(
        project="p",
        id=wandb.util.generate_id(),
        config=arguments,
        tags=["a"],
        settings=wandb.Settings(start_method="thread"),
    ) as run:
        worker = run.recording.worker_id
        assert (run.config.lr, wandb.config.as_dict()["epochs"], run.project) == (0.1, 2, "p")
        wandb.config.setdefaults({"lr": 5, "seed": 1})
        assert (run.config.lr, run.config.seed) == (0.1, 1)
        wandb.define_metric("val/*", step_metric="epoch", summary="max")
        for accuracy in (0.5, 0.75, 0.25):
            run.log({"val/acc": torch.tensor(accuracy, requires_grad=True)})
        assert (run.summary["val/acc"], run.summary.get("other", 7)) == (0.75, 7)
        run.summary["best"] = 0.75
        table = wandb.Table(columns=["id", "text"], data=[[1, "a|b"]])
        table.add_data(2, "c")
        run.log({"table": table, "figure": figure()})
        run.log({"pixels": wandb.Image(torch.full((3, 4, 5), 0.5)), "one": image(4, 5, 1)})
        run.alert("done", "well")
    logged = {each.name: each for each in joined.recorded_facts(worker, "MediaLogged")}
    assert logged["table"].text == "| id | text |\n| --- | --- |\n| 1 | a\\|b |\n| 2 | c |"
    assert (logged["figure"].width, logged["figure"].height) == (7, 3)
    assert [(logged[name].height, logged[name].width) for name in ("pixels", "one")] == [(4, 5)] * 2
    assert logged["alert"].text == "done\nwell"
    steps = metrics_of(joined, worker)
    assert steps[:3] == [(0, {"val/acc": 0.5}), (1, {"val/acc": 0.75}), (2, {"val/acc": 0.25})]
    assert steps[3] == (3, {"best": 0.75})


def image(*shape):
    return wandb.Image(np.zeros(shape, np.uint8))


def figure():
    """What has the method of a Matplotlib figure that saves it."""
    pixels = PIL.Image.new("RGB", (7, 3))
    return SimpleNamespace(savefig=lambda target, format: pixels.save(target, format=format))


def test_long_table_says_how_many_rows_are_left_out(joined):
    table = wandb.Table(columns=["text"], data=[["x" * 1000]] * 40)
    text = table.text().text
    shown = text.count("x" * 1000)
    assert text.endswith(f"{40 - shown} of 40 rows are left out")
    assert 10 < shown < 17


def test_disabled_run_takes_everything_and_records_nothing(joined):
    run = wandb.init(mode="disabled", config={"lr": 0.1})
    wandb.log({"loss": 1.0})
    wandb.log({"loss": 0.5})
    assert (run.config.lr, run.summary["loss"], run.step, run.disabled) == (0.1, 0.5, 2, True)
    with pytest.raises(NotAllowedNow, match="opened no run"):
        _ = run.recording
    wandb.finish()
    assert wandb.run is None


def test_config_values_are_flat_bounded_and_without_secrets():
    shown = config_values({"max_tokens": 5, "hf_token": "x", "a": {"password": "y", "b": None}})
    assert shown == {"max_tokens": 5, "hf_token": HIDDEN, "a.password": HIDDEN, "a.b": None}
    many = config_values({f"n{at}": at for at in range(MAX_VALUES + 1)})
    assert len(many) == MAX_VALUES
    assert config_values({"big": 2**80, "path": tuple("ab")}) == {
        "big": str(2**80),
        "path": "[a, b]",
    }
