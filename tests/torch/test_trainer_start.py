"""Guards that a framework's trainer starts with the weights of another task, on every worker, also
after a loss in the first step."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.sdk.test_initial_weights import warm
from tests.torch.test_loops import FRAMEWORKS, fit, fitted

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

sys.path.append(str(Path(__file__).parent))

from fitting import Line, weights_of  # noqa: E402

NAMES = {"huggingface": None, "lightning": {"model.line": "model"}}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_trainer_starts_with_the_weights_of_another_task(tmp_path, framework):
    folders = [tmp_path / "source", tmp_path / "next"]
    for folder in folders:
        folder.mkdir()
    done, _ = fit(folders[0], framework, 1, MAX_STEPS="3")
    assert done.returncode == 0, done.stdout + done.stderr
    learnt = fitted(done.stdout)["weights"]
    place = str(next(folders[0].glob("data/checkpoints/*/*/step-00000003-*.json")).parent)

    settings = {"FROM": place, "MAX_STEPS": "2", "KILLS": "0:1"}
    done, _ = fit(folders[1], framework, 2, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starts from step 0" in done.stdout
    began = [json.loads(each) for each in re.findall(r"began (\[.*\])", done.stdout)]
    assert len(began) >= 3, "one worker twice, its replacement once"
    assert all(each == learnt for each in began)
    assert fitted(done.stdout)["steps"] == 2

    model = Line()
    warm(place, {"model": model}, rename=NAMES[framework])
    assert weights_of(model) == learnt
