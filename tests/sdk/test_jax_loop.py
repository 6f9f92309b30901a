"""A JAX loop ends with the weights of a plain process, also after a loss."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.torch.test_parallel import learn

pytest.importorskip("jax")

HERE = Path(__file__).parent
sys.path.append(str(HERE))


@pytest.mark.parametrize(("workers", "die_at"), [(1, -1), (3, -1), (1, 9), (2, 9), (3, 13)])
def test_jax_loop_ends_with_the_weights_of_a_plain_process(tmp_path, workers, die_at):
    from jax_learner import plain  # imports JAX, which must not be imported before others fork

    name = str(HERE / "jax_learner.py")
    code, shown = learn(tmp_path, workers, f"die_at={die_at}", name=name, losses=die_at >= 0)
    assert code == 0, shown
    assert (" was lost: its process ended with signal 9" in shown) == (die_at >= 0), shown
    assert "audit proven" in shown, shown
    found = np.load(tmp_path / "weights.npz")
    for name, value in plain()["weights"].items():
        np.testing.assert_allclose(found[name], np.asarray(value), rtol=1e-5, atol=1e-6)
