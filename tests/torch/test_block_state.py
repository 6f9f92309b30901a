"""Guards what a step block restores when it is undone, and when it reports that it cannot."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from strata.torch.module_tensors import ModuleTensors  # noqa: E402
from strata.torch.step_snapshot import BlockState  # noqa: E402

pytestmark = pytest.mark.quick


class Counter(torch.nn.Module):
    """A module that assigns a new buffer in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count = self.count + 1
        return x


@pytest.fixture
def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), Counter())


@pytest.fixture
def block(module):
    contents = ModuleTensors(module)

    def begin():
        contents.refresh()
        state.capture()
        return state

    state = BlockState(contents)
    return begin


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_numbers_are_drawn_again(block):
    state = block()
    first = draws()
    assert state.restore()
    assert draws() == first


@pytest.mark.parametrize("blocks", [1, 3])
def test_buffers_are_put_back(module, block, blocks):
    for _ in range(blocks):
        state = block()
        before = [each.clone() for each in module.buffers()]
        module(torch.randn(8, 4))
        state.note_buffers()
    assert any(not torch.equal(*pair) for pair in zip(before, module.buffers(), strict=True))
    assert state.restore()
    assert all(torch.equal(*pair) for pair in zip(before, module.buffers(), strict=True))


def test_mask_that_changes_for_the_first_time_later_cannot_be_put_back(module, block):
    module.register_buffer("mask", torch.zeros(2, dtype=torch.bool))
    for _ in range(2):
        block().note_buffers()
    state = block()
    module.mask.fill_(True)
    assert not state.restore()
    state = block()
    module.mask.fill_(False)
    assert state.restore(), "it is copied from now on"
    assert module.mask.all()


@pytest.mark.parametrize("fused", [False, True])
def test_block_with_an_optimizer_step_cannot_be_undone(module, block, fused):
    state = block()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=fused)
    module(torch.randn(8, 4)).sum().backward()
    assert not state.updated
    optimizer.step()
    state.optimized |= fused  # a fused optimizer leaves no trace on the parameters
    assert state.updated
    assert not state.restore()
