"""Guards ordinary training loops: epochs, evaluation, schedulers, two datasets, early stopping.

Each script runs on one, two and three workers, undisturbed and with workers killed in the middle,
and must end with the weights of a plain script in one process without Strata.
"""

import json
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.torch.test_parallel import learn

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).parent))

from scripts import SCRIPTS, reference  # noqa: E402

plain = cache(reference)


UNDISTURBED = [(1, ""), (3, "")]
KILLED = [(1, "8"), (2, "7,12"), (3, "11")]
FRAMEWORKS = {"accelerate": "accelerate", "fabric": "lightning"}
# The frameworks take long to import, and each of their killed runs trains undisturbed at first.
CASES = [
    (script, workers, die_at)
    for script in SCRIPTS
    for workers, die_at in (KILLED if script in FRAMEWORKS else UNDISTURBED + KILLED)
]


@pytest.mark.parametrize(("script", "workers", "die_at"), CASES)
def test_script_ends_with_the_weights_of_a_plain_process(tmp_path, script, workers, die_at):
    if script in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[script])
    deaths = [f"die_at={die_at}"] if die_at else []
    code, shown = learn(
        tmp_path,
        workers,
        f"script={script}",
        *deaths,
        name="script_learner.py",
        losses=bool(die_at),
    )
    assert code == 0, shown
    lost = shown.count(" was lost: its process ended with signal 9")
    assert lost == len(die_at.split(",") if die_at else []), shown
    found = torch.load(tmp_path / "weights.pt")
    weights, steps = plain(script)
    assert found["steps"] == steps
    for name, value in weights.items():
        if workers == 1:
            assert torch.equal(found["weights"][name], value), name
        else:
            torch.testing.assert_close(found["weights"][name], value, rtol=1e-6, atol=1e-9)
    assert "audit proven" in shown, json.dumps(shown)
