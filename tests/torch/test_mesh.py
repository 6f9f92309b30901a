"""Guards training with FSDP2 over `strata.torch.Mesh`: the workers learn what a plain process does,
also when one of them is killed or hangs in a step, or while the mesh is formed.
"""

import json
import signal
from pathlib import Path

import pytest

from tests.torch.test_parallel import learn

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent


def weights(shown, what="weights"):
    (line,) = [each for each in shown.splitlines() if f"{what} [" in each]
    return torch.tensor(json.loads(line.partition(f"{what} ")[2]))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a single, undisturbed worker learns."""
    code, shown = learn(tmp_path_factory.mktemp("alone"), 1, name="fsdp_learner.py")
    assert code == 0, shown
    return weights(shown)


@pytest.mark.parametrize("sent", [0, signal.SIGKILL, signal.SIGSTOP])
def test_shards_of_unequal_batches_learn_the_same(tmp_path, alone, sent):
    code, shown = learn(tmp_path, 3, f"signal={int(sent)}", name="fsdp_learner.py")
    assert code == 0, shown
    assert ("1 loss" in shown) == bool(sent), shown
    torch.testing.assert_close(weights(shown), alone, rtol=1e-5, atol=2e-6)
    assert "audit proven" in shown


def test_worker_lost_while_the_mesh_is_formed_delays_nobody(tmp_path, alone):
    code, shown = learn(tmp_path, 3, f"form={int(signal.SIGKILL)}", name="fsdp_learner.py")
    assert code == 0, shown
    assert "1 loss" in shown
    torch.testing.assert_close(weights(shown), alone, rtol=1e-5, atol=2e-6)


def test_shards_begin_with_the_weights_of_a_file(tmp_path):
    torch.manual_seed(7)
    other = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    torch.save({"model": other.state_dict()}, tmp_path / "other.pt")
    code, shown = learn(
        tmp_path, 2, f"from={tmp_path / 'other.pt'}", name="fsdp_learner.py", losses=False
    )
    assert code == 0, shown
    whole = torch.cat([each.detach().reshape(-1) for each in other.parameters()])
    assert torch.equal(weights(shown, "begun"), whole)


def test_step_without_scaled_loss_is_an_error(tmp_path):
    code, shown = learn(tmp_path, 2, "forget=1", name="fsdp_learner.py")
    assert code != 0
    assert "call mesh.scale(loss).backward()" in shown
