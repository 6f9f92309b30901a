"""Guards the section of docs/TRAINING.md on `from_`: its script runs as it stands there."""

import re
from pathlib import Path

import pytest

from tests.cli.runs import run, script

torch = pytest.importorskip("torch")

PAGE = (Path(__file__).parents[2] / "docs" / "TRAINING.md").read_text("utf-8")


def test_script_of_the_page_begins_with_other_weights(tmp_path):
    (example,) = re.findall(r"```python\n(import.*?)```", PAGE, re.DOTALL)
    head = torch.nn.Linear(16, 3)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), head)
    torch.save(layers.state_dict(), tmp_path / "pretrained.pt")
    code, output = run(tmp_path, script(tmp_path, example, "train.py"), "--workers", "2")
    assert code == 0, output
    assert "started with 2 tensors of" in output
    assert "kept 2 as initialised (model.2.weight, model.2.bias)" in output
