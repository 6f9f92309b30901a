"""The trees that workers can average; values keep their types."""

from typing import NamedTuple

import numpy as np
import pytest

from strata.errors import InvalidArgument
from strata.sdk.peers.value_tree import as_array, flatten, rebuild


class Moments(NamedTuple):
    mu: object
    nu: object


def doubled(values):
    return rebuild(values, [as_array(each) * 2 for each in flatten(values)])


def test_plain_trees_keep_their_types():
    values = {"a": [np.ones(2), 3], "b": (1.5, True), "c": Moments(np.zeros(1), 2)}
    found = doubled(values)
    assert found["a"][0].tolist() == [2, 2]
    assert found["b"] == (3.0, 2.0)
    assert isinstance(found["c"], Moments)
    assert (found["a"][1], found["c"].nu) == (6, 4)


def test_jax_trees_keep_their_types():
    jax = pytest.importorskip("jax")
    values = {"w": jax.numpy.ones(3, jax.numpy.bfloat16), "m": Moments(jax.numpy.ones(2), 1.0)}
    found = doubled(values)
    assert isinstance(found["w"], jax.Array)
    assert (found["w"].dtype, found["w"].tolist()) == (jax.numpy.bfloat16, [2, 2, 2])
    assert isinstance(found["m"], Moments)
    assert isinstance(found["m"].mu, jax.Array)


def test_torch_tensors_stay_tensors():
    torch = pytest.importorskip("torch")
    found = doubled({"w": torch.ones(2, requires_grad=True)})
    assert isinstance(found["w"], torch.Tensor)
    assert found["w"].tolist() == [2, 2]


@pytest.mark.parametrize("value", ["text", object(), np.array(["a"])])
def test_value_that_is_not_a_number_is_an_error(value):
    with pytest.raises(InvalidArgument, match=f"cannot average a {type(value).__name__}"):
        as_array(value)
