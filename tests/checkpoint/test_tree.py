"""Guards that any state of arrays and plain values is restored as it was, and other values are
refused.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strata.checkpoint.state.array_bytes import NUMPY_NAMES
from strata.checkpoint.state.state_tree import flatten, rebuild
from strata.checkpoint.write.staging import Staging
from tests.checkpoint.conftest import assert_same

PLAIN = [name for name in NUMPY_NAMES if not name.startswith(("bfloat", "float8"))]
DTYPES = st.sampled_from([*PLAIN, "complex128", "datetime64[s]", "S5", "U3", ">f4", ">i8"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | ARRAYS
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def stored_and_read(state):
    """The state after writing it to the image of a part and reading it back, without a disk."""
    capture = Staging().capture(flatten(state), {})
    by_name = {each.name: each for each in capture.placed}

    def leaf(node, path):
        name = node.get("$tensor", node.get("$bytes"))
        each = by_name[name]
        data = bytes(capture.view(each.offset, each.source.size_bytes))
        if "$bytes" in node:
            return data
        dtype = np.dtype(node["dtype"]) if "dtype" in node else each.source.value.dtype
        array = np.frombuffer(data, dtype).reshape(each.source.value.shape)
        return array[()] if node["kind"] == "scalar" else array

    return rebuild(capture.tree, leaf)


@settings(max_examples=150, deadline=None)
@given(STATES)
def test_any_state_is_restored(state):
    assert_same(stored_and_read(state), state)


@given(st.dictionaries(st.sampled_from(["$tensor", "$bytes", "$dict", "$x", "a"]), st.integers()))
def test_keys_that_begin_with_a_dollar_are_restored(state):
    assert_same(stored_and_read(state), state)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**200, float("nan"), float("-inf"), -0.0])
def test_numbers_outside_json_are_restored(value):
    assert_same(stored_and_read({"a": [value]}), {"a": [value]})


def test_tensor_names_are_paths():
    flat = flatten({"model": {"layers": [{"w": np.zeros(1)}]}, "opt": {3: np.ones(1)}})
    assert list(flat.sources) == ["model.layers.0.w", "opt.3"]


def test_equal_tensor_names_are_made_unique():
    flat = flatten({"a": {"b": np.zeros(1)}, "a.b": np.ones(1), "__metadata__": np.ones(2)})
    assert list(flat.sources) == ["a.b", "a.b#2", "__metadata__#2"]


def test_every_tensor_is_aligned_to_its_element():
    state = {
        f"{index}": np.zeros(3 + index % 5, dtype)
        for index, dtype in enumerate(["bool", "float64", "int8", "float16", "float32", "int64"])
    }
    capture = Staging().capture(flatten(state), {})
    assert [each.offset % each.source.item_bytes for each in capture.placed] == [0] * 6
    assert len(capture.header) % 4096 == 0
