"""Guards that a model trained by a Trainer on several workers is exported for transformers."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.torch.test_loops import MAIN, variables

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

SCRIPT = str(Path(__file__).with_name("fit_language_model.py"))


def strata(folder, *arguments):
    done = subprocess.run(
        [*MAIN, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=variables({}),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_checkpoint_of_a_trainer_is_exported_with_its_config(tmp_path):
    strata(tmp_path, "run", SCRIPT, "--workers", "2", "--data-dir", "data")
    saved = max(tmp_path.rglob("step-*/part-00001.safetensors")).parent
    printed = strata(
        tmp_path, "checkpoints", "export", str(saved), "--format", "hf", "--out", "exported"
    )
    assert re.search(r"transformers\.GPT2LMHeadModel\.from_pretrained", printed)
    assert "random generators are not exported" in printed
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    assert type(loaded) is type(wanted)
    for name, value in wanted.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
