"""Guards updates: small on their way, read back alike by all, with nothing lost for good; and the
outer optimizer, which steps as PyTorch's SGD with Nesterov momentum would."""

import msgspec
import numpy as np
import pytest

from strata.errors import Corrupt, InvalidArgument
from strata.sdk.updates import BLOCK, Outer, Update, packed, read_update, unpacked
from strata.sdk.weights import Arrays

pytestmark = pytest.mark.quick


def vector(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def sent(values, keep=1.0, exact=0, weight=1.0):
    return packed(values, "a", "0", weight, keep=keep, exact=exact)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 5 * BLOCK + 7])
def test_eight_bits_are_off_by_half_a_level_of_their_block_at_most(size):
    values = vector(size)
    found = unpacked(read_update(sent(values)))
    for at in range(0, size, BLOCK):
        block = slice(at, at + BLOCK)
        level = np.abs(values[block]).max() / 127
        assert np.abs(found[block] - values[block]).max() <= level * 0.501
    assert len(sent(values)) < size * (1 + 4 / BLOCK) + 120


def test_only_the_largest_values_are_sent_where_few_are_kept():
    values = vector(10_000)
    data = sent(values, keep=0.01)
    found = unpacked(read_update(data))
    largest = np.sort(np.argsort(np.abs(values))[-100:])
    assert np.flatnonzero(found).tolist() == largest.tolist()
    assert len(data) < 100 * 5 + 120


def test_the_last_values_are_sent_exactly_whatever_is_kept():
    values = vector(3_000)
    found = unpacked(read_update(sent(values, keep=0.01, exact=100)))
    assert found[-100:].tobytes() == values[-100:].tobytes()


@pytest.mark.parametrize("keep", [1.0, 0.05])
def test_what_is_left_out_comes_with_later_updates(keep):
    """Without feedback the smallest values of a constant update would never be sent."""
    values, left, told = vector(2_000), np.zeros(2_000, np.float32), np.zeros(2_000)
    rounds = 200
    for _ in range(rounds):
        update = values + left
        found = unpacked(read_update(sent(update, keep)))
        left = update - found
        told += found
    np.testing.assert_allclose(told / rounds, values, atol=0.01 if keep == 1.0 else 0.35)
    blind = unpacked(read_update(sent(values, keep)))
    assert np.abs(told / rounds - values).max() < np.abs(blind - values).max() / 2


def test_zeros_stay_zeros():
    assert not unpacked(read_update(sent(np.zeros(10, np.float32)))).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_exploded_are_not_sent(bad):
    values = vector(10)
    values[3] = bad
    with pytest.raises(InvalidArgument, match="not finite"):
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
def test_what_makes_no_sense_is_refused(change):
    whole = read_update(sent(vector(10)))
    data = msgspec.msgpack.encode(msgspec.structs.replace(whole, **change))
    with pytest.raises(Corrupt):
        unpacked(read_update(data))


@pytest.mark.parametrize("data", [b"", b"\x00", b"hello", sent(vector(10))[:-1]])
def test_bytes_that_are_no_update_are_refused(data):
    with pytest.raises(Corrupt, match="cannot be read"):
        read_update(data)


def test_an_update_names_its_author_and_what_it_began_with():
    update = read_update(packed(vector(4), "worker-1", "abc", 12.5, keep=1.0, exact=0))
    assert isinstance(update, Update)
    assert (update.author, update.begun, update.weight, update.size) == ("worker-1", "abc", 12.5, 4)


def test_the_outer_step_is_nesterov_descent():
    outer = Outer(3, 0, rate=0.7, momentum=0.9)
    weights, velocity, expected = vector(3), np.zeros(3), vector(3).astype(float)
    for seed in range(5):
        mean = vector(3, seed + 1)
        weights = outer.step(weights, mean)
        velocity = 0.9 * velocity - mean  # a gradient points the other way
        expected = expected - 0.7 * (-mean + 0.9 * velocity)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_what_is_averaged_and_not_learned_becomes_the_mean():
    outer = Outer(4, 2, rate=0.5, momentum=0.9)
    stepped = outer.step(np.zeros(4, np.float32), np.ones(4, np.float32))
    assert outer.velocity.size == 2
    assert stepped.tolist() == pytest.approx([0.95, 0.95, 1.0, 1.0])


@pytest.mark.parametrize(("rate", "momentum"), [(0, 0.9), (0.7, 1.0), (0.7, -0.1)])
def test_an_outer_optimizer_that_cannot_work_is_refused(rate, momentum):
    with pytest.raises(InvalidArgument):
        Outer(1, 0, rate, momentum)


def test_arrays_are_read_and_written_in_place_and_may_be_replaced():
    first = np.ones((2, 3))
    arrays = {"b": first, "a": np.zeros(2, np.float16)}
    weights = Arrays(arrays)
    assert weights.read().tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    arrays["a"] = np.full(2, 5, np.float16)
    weights.write(weights.read() * 2)
    assert arrays["a"].tolist() == [10, 10]
    assert (first == 2).all()


@pytest.mark.parametrize("wrong", [[1.0], np.zeros(3, np.int64)])
def test_weights_that_are_no_floating_point_arrays_are_refused(wrong):
    with pytest.raises(InvalidArgument, match="'w'"):
        Arrays({"w": wrong})
