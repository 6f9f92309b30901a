"""Guards docs/TUTORIAL.md: the ported script runs as it stands there, and survives a loss."""

import re
from pathlib import Path

import pytest

from tests.cli.runs import run, script

pytest.importorskip("torch")

PAGE = (Path(__file__).parents[2] / "docs" / "TUTORIAL.md").read_text("utf-8")


@pytest.mark.slow
def test_the_ported_script_survives_a_loss(tmp_path):
    (ported,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    name = script(tmp_path, ported, "train.py")
    code, output = run(tmp_path, name, "--workers", "2", "--kill", "1")
    assert code == 0, output
    assert re.search(r"625 steps in .* 2 workers, 1 loss, 1 recovery", output)
    assert "audit proven" in output
