"""Updates of local steps: encoded size, decoding and error feedback; and the outer optimizer, which
steps like SGD with Nesterov momentum in PyTorch."""

import msgspec
import numpy as np
import pytest

from strata.errors import Corrupt, InvalidArgument
from strata.sdk.steps.round_updates import (
    BLOCK,
    Arrays,
    Outer,
    Update,
    packed,
    read_update,
    unpacked,
)

pytestmark = pytest.mark.quick


def vector(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def sent(values, keep=1.0, exact=0, weight=1.0):
    return packed(values, "a", "0", weight, keep=keep, exact=exact)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 5 * BLOCK + 7])
def test_quantization_error_is_at_most_half_a_level(size):
    values = vector(size)
    found = unpacked(read_update(sent(values)))
    for at in range(0, size, BLOCK):
        block = slice(at, at + BLOCK)
        level = np.abs(values[block]).max() / 127
        assert np.abs(found[block] - values[block]).max() <= level * 0.501
    assert len(sent(values)) < size * (1 + 4 / BLOCK) + 120


def test_sparse_update_sends_the_largest_values():
    values = vector(10_000)
    data = sent(values, keep=0.01)
    found = unpacked(read_update(data))
    largest = np.sort(np.argsort(np.abs(values))[-100:])
    assert np.flatnonzero(found).tolist() == largest.tolist()
    assert len(data) < 100 * 5 + 120


def test_exact_values_are_sent_unchanged():
    values = vector(3_000)
    found = unpacked(read_update(sent(values, keep=0.01, exact=100)))
    assert found[-100:].tobytes() == values[-100:].tobytes()


@pytest.mark.parametrize("keep", [1.0, 0.05])
def test_error_feedback_sends_the_rest_with_later_updates(keep):
    """Without feedback the smallest values of a constant update would never be sent."""
    values, left, total = vector(2_000), np.zeros(2_000, np.float32), np.zeros(2_000)
    rounds = 200
    for _ in range(rounds):
        update = values + left
        found = unpacked(read_update(sent(update, keep)))
        left = update - found
        total += found
    np.testing.assert_allclose(total / rounds, values, atol=0.01 if keep == 1.0 else 0.35)
    single = unpacked(read_update(sent(values, keep)))
    assert np.abs(total / rounds - values).max() < np.abs(single - values).max() / 2


def test_zeros_are_decoded_as_zeros():
    assert not unpacked(read_update(sent(np.zeros(10, np.float32)))).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_with_nan_or_infinity_are_an_error(bad):
    values = vector(10)
    values[3] = bad
    with pytest.raises(InvalidArgument, match="NaN or infinity"):
        sent(values)


@pytest.mark.parametrize(
    "change",
    [
        {"scales": b"\0" * 8},
        {"scales": b"\0" * 3},
        {"scales": np.float32(np.nan).tobytes()},
        {"codes": b"\0" * 9},
        {"exact": b"\0" * 5},
        {"size": 11},
        {"indexes": np.arange(1, 11, dtype="<u4").tobytes()},
        {"indexes": b"\0" * 7},
        {"weight": -1.0},
        {"weight": float("nan")},
        {"size": 1 << 60},
    ],
)
def test_inconsistent_update_is_corrupt(change):
    whole = read_update(sent(vector(10)))
    data = msgspec.msgpack.encode(msgspec.structs.replace(whole, **change))
    with pytest.raises(Corrupt):
        unpacked(read_update(data))


@pytest.mark.parametrize("data", [b"", b"\x00", b"hello", sent(vector(10))[:-1]])
def test_bytes_that_are_not_an_update_are_corrupt(data):
    with pytest.raises(Corrupt, match="cannot be read"):
        read_update(data)


def test_update_contains_author_weight_and_start_checksum():
    update = read_update(packed(vector(4), "worker-1", "abc", 12.5, keep=1.0, exact=0))
    assert isinstance(update, Update)
    assert (update.author, update.begun, update.weight, update.size) == ("worker-1", "abc", 12.5, 4)


def test_outer_step_is_nesterov_descent():
    outer = Outer(3, 0, rate=0.7, momentum=0.9)
    weights, velocity, expected = vector(3), np.zeros(3), vector(3).astype(float)
    for seed in range(5):
        mean = vector(3, seed + 1)
        weights = outer.step(weights, mean)
        velocity = 0.9 * velocity - mean  # a gradient has the opposite sign of an update
        expected = expected - 0.7 * (-mean + 0.9 * velocity)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_exact_values_become_the_mean():
    outer = Outer(4, 2, rate=0.5, momentum=0.9)
    stepped = outer.step(np.zeros(4, np.float32), np.ones(4, np.float32))
    assert outer.velocity.size == 2
    assert stepped.tolist() == pytest.approx([0.95, 0.95, 1.0, 1.0])


@pytest.mark.parametrize(("rate", "momentum"), [(0, 0.9), (0.7, 1.0), (0.7, -0.1)])
def test_invalid_rate_or_momentum_is_an_error(rate, momentum):
    with pytest.raises(InvalidArgument):
        Outer(1, 0, rate, momentum)


def test_arrays_are_written_in_place_and_can_be_replaced():
    first = np.ones((2, 3))
    arrays = {"b": first, "a": np.zeros(2, np.float16)}
    weights = Arrays(arrays)
    assert weights.read().tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    arrays["a"] = np.full(2, 5, np.float16)
    weights.write(weights.read() * 2)
    assert arrays["a"].tolist() == [10, 10]
    assert (first == 2).all()


@pytest.mark.parametrize("wrong", [[1.0], np.zeros(3, np.int64)])
def test_weights_of_another_type_are_an_error(wrong):
    with pytest.raises(InvalidArgument, match="'w'"):
        Arrays({"w": wrong})
