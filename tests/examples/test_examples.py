"""Guards every script in `examples`: it trains on small data and does what its header says, also
when a worker is killed."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.agent.harness import Agent, until, worker_pids
from tests.cli.conftest import serving
from tests.examples.example_runs import (
    EXAMPLES,
    RUN_S,
    ExampleRun,
    facts,
    rows,
    saved,
    trained,
    variables,
)
from tests.kernels import kernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * RUN_S)]

GPT = ("gpt.py", "--workers", "2", "--config", "steps=80")


@pytest.fixture
def folder(tmp_path):
    """A folder for a run; workers that are left over end with the test."""
    yield tmp_path
    for pid in worker_pids(tmp_path).values():
        signal.pidfd_send_signal(signal.pidfd_open(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """The folder of a GPT that was trained without a loss."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("language")
    trained(folder, *GPT)
    return folder


def same(found, expected, tolerance=1e-5):
    """Assert that two models have the same weights."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def test_gpt_learns_its_text_and_logs_loss_and_speed(language):
    curves = {each["name"]: each for each in rows(language, "metrics", "gpt-1")}
    losses = [fact.loss for fact in facts(language, "StepFinished")]
    assert max(losses[-8:]) < 0.6 * min(losses[:2])
    assert curves["loss"]["last_step"] == curves["tokens/s"]["last_step"] == 79
    assert curves["tokens/s"]["min"] > 0


def test_gpt_ends_with_the_same_weights_after_kills_of_a_worker_and_of_the_run(folder, language):
    run = ExampleRun(folder, *GPT)
    run.until("step 20:")
    run.kill_worker(1)
    run.until("continues from step")
    run.until("step 60:")
    run.process.kill()
    run.end()
    trained(folder, *GPT)
    sources = [fact.source for fact in facts(folder, "RecoveryChosen")]
    assert sources == ["fresh", "peer", "checkpoint"]
    same(saved(folder, "gpt-1"), saved(language, "gpt-1"))


def test_lora_writes_only_adapters_after_its_first_checkpoint(language):
    config = ("base=gpt-1", "steps=40", "save_every=20")
    trained(language, "lora.py", "--workers", "2", *[a for c in config for a in ("--config", c)])
    (task,) = {each.task for each in facts(language, "CheckpointCommitted")} - {"gpt-1"}
    first, *later = [e for e in facts(language, "CheckpointCommitted") if e.task == task]
    weights, base = saved(language, task), saved(language, "gpt-1")
    assert later
    assert first.kept_bytes == 0
    sizes = {name: np.asarray(value).nbytes for name, value in weights.items()}
    adapters = sum(size for name, size in sizes.items() if "lora_" in name)
    frozen = sum(size for name, size in sizes.items() if "lora_" not in name and size >= 1 << 16)
    small = sum(size for name, size in sizes.items() if "lora_" not in name and size < 1 << 16)
    for each in later:
        assert each.kept_bytes >= frozen
        assert 3 * adapters <= each.size_bytes < 3 * adapters + small + 32_768
        assert each.size_bytes < first.size_bytes / 5
    same({name: weights[name] for name in base}, base, tolerance=0)


def test_classifier_sees_the_same_augmented_samples_after_a_loss(folder):
    pytest.importorskip("torch")
    script = ("classifier.py", "--workers", "2", "--config", "images=2000", "--config", "epochs=3")
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    trained(undisturbed, *script)
    shown = trained(killed, *script, kill_after="epoch 0:")
    assert "audit proven" in shown
    assert "0 missing, 0 twice" in shown
    same(saved(killed, "classifier-1"), saved(undisturbed, "classifier-1"))
    (goodput,) = rows(killed, "goodput", "classifier-1")
    classes = {each["name"]: each for each in goodput["classes"]}
    assert classes["evaluation"]["seconds"] > 0


@pytest.mark.parametrize(
    ("name", "needed", "arguments", "kill_after", "shown"),
    [
        ("hf_text.py", "transformers", ("steps=60",), "'loss'", "step 60: evaluation loss"),
        ("lightning_digits.py", "lightning", ("epochs=6",), "epoch 0:", "trained for 378 steps"),
        ("flax_digits.py", "flax", ("epochs=12",), "step 100:", "accuracy on 2,000 unseen digits"),
        ("fsdp_digits.py", "torch", ("epochs=6",), "step 50:", "step 200: loss"),
        ("local_steps.py", "numpy", ("epochs=16",), "round 20:", "accuracy on 2,000 unseen digits"),
    ],
)
def test_example_survives_the_loss_of_a_worker(folder, name, needed, arguments, kill_after, shown):
    pytest.importorskip(needed)
    config = [each for argument in arguments for each in ("--config", argument)]
    output = trained(folder, name, "--workers", "2", *config, kill_after=kill_after)
    assert shown in output
    assert "1 loss, 1 recovery" in output


def test_smallest_example_of_pytorch_trains(folder):
    pytest.importorskip("torch")
    output = trained(folder, "torch_digits.py", "--config", "epochs=2")
    assert "accuracy on 2,000 unseen digits" in output


def test_unchanged_torchrun_script_continues_from_its_own_save(folder):
    pytest.importorskip("torch")
    arguments = ("--wrap", "torchrun", "--workers", "2")
    script = ("torchrun_ddp.py", *arguments, "--", "--epochs", "12")
    output = trained(folder, *script, kill_after="epoch 1:")
    assert re.search(r"rank 0 continues at epoch [2-9]", output)
    assert "epoch 11: loss" in output


def test_notebook_continues_after_its_kernel_was_killed(folder):
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    given = {"cwd": str(folder)}
    environment = variables(PYTHONPATH=str(EXAMPLES))
    with kernel(environment, **given) as first:
        for source in code[:2]:
            first.run(source)
        half = code[2].replace("epochs=4", "epochs=2")
        assert half != code[2]
        assert "step 100: loss" in first.run(half)
        saves = "strata-data/runs/notebook/checkpoints/*/*/step-*.json"
        until(lambda: list(folder.glob(saves)), "a checkpoint")
    with kernel(environment, **given) as second:
        printed = [second.run(source) for source in code]
    assert re.search(r"at step ([1-9]\d*)", printed[1]), printed
    assert "step 250: loss" in printed[2]
    assert re.search(r"accuracy on 2,000 unseen digits: \d", printed[3])


def test_sweep_submits_its_tasks_and_compares_them(folder):
    with serving(folder) as cluster:
        agent = Agent(folder, f"127.0.0.1:{cluster.running.grpc_port}", slots=2)
        try:
            done = subprocess.run(
                [sys.executable, str(EXAMPLES / "sweep.py"), "--epochs", "1", "--url", cluster.url],
                cwd=folder,
                env=variables(),
                capture_output=True,
                text=True,
                timeout=RUN_S,
            )
        finally:
            agent.close()
        assert done.returncode == 0, done.stdout + done.stderr
        found = {r: float(a) for r, a in re.findall(r"rate (\S+): accuracy (\S+)%", done.stdout)}
        assert found.keys() == {"0.005", "0.02", "0.05"}
        assert f"best: rate {max(found, key=found.get)}" in done.stdout
        tasks = {each["id"]: each["status"] for each in cluster.get("tasks")}
        assert [*tasks.values()] == ["completed"] * 3
        compared = re.search(r"compare: \S+tasks=(\S+)", done.stdout)[1].split(",")
        assert {*compared} == {*tasks}
