"""Guards the loop that people write: epochs, evaluation, schedulers, two datasets, early stopping.

Each script runs on one, two and three workers, undisturbed and with a worker killed in the middle,
and must end with the weights of a plain script in one process that knows nothing of Strata.
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


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("workers", "die_at"), [(1, -1), (2, -1), (3, -1), (1, 8), (2, 7), (3, 11), (2, 12)]
)
def test_script_ends_with_the_weights_of_a_plain_process(tmp_path, script, workers, die_at):
    if script in ("accelerate", "fabric"):
        pytest.importorskip({"accelerate": "accelerate", "fabric": "lightning"}[script])
    code, shown = learn(
        tmp_path, workers, f"script={script}", f"die_at={die_at}", name="script_learner.py"
    )
    assert code == 0, shown
    assert (" was lost: its process ended with signal 9" in shown) == (die_at >= 0), shown
    found = torch.load(tmp_path / "weights.pt")
    weights, steps = plain(script)
    assert found["steps"] == steps
    for name, value in weights.items():
        if workers == 1:
            assert torch.equal(found["weights"][name], value), name
        else:
            torch.testing.assert_close(found["weights"][name], value, rtol=1e-6, atol=1e-9)
    assert "audit proven" in shown, json.dumps(shown)
