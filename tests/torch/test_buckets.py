"""Guards gradient buckets: the same on all workers, with gradients as views of them."""

import pytest

torch = pytest.importorskip("torch")

from strata.errors import InvalidArgument  # noqa: E402
from strata.torch.gradient_buckets import BUCKET_BYTES, buckets_of, require_dense  # noqa: E402

pytestmark = pytest.mark.quick


def parameters(*shapes, dtype=torch.float32):
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]


def test_last_parameters_come_first_in_a_small_bucket():
    large = BUCKET_BYTES // 4
    given = parameters(large, large, 10, 1 << 18)
    buckets = buckets_of(given)
    numbers = {id(each): number for number, each in enumerate(given)}
    assert [[numbers[id(p)] for p in b.parameters] for b in buckets] == [[3], [2, 1], [0]]


def test_types_do_not_share_a_bucket_and_frozen_parameters_have_none():
    halves, singles = parameters(3, 4, dtype=torch.bfloat16), parameters(5, 6)
    given = [halves[0], singles[0], halves[1], singles[1]]
    halves[1].requires_grad_(False)
    sizes = [[p.numel() for p in each.parameters] for each in buckets_of(given)]
    assert sizes == [[6, 5], [3]]


def test_gradients_become_views_with_the_strides_of_their_parameters():
    (wide,) = parameters((2, 3, 4, 5))
    wide.data = wide.data.to(memory_format=torch.channels_last)
    (bucket,) = buckets_of([wide])
    wide.grad = torch.randn_like(wide)
    expected = wide.grad * 0.25
    bucket.fill(0.25)
    bucket.put(1.0)
    assert torch.equal(wide.grad, expected)
    assert wide.grad.stride() == wide.stride()
    assert wide.grad.untyped_storage().data_ptr() == bucket.flat.untyped_storage().data_ptr()


def test_parameter_without_gradient_anywhere_keeps_none():
    used, unused, elsewhere = parameters(2, 3, 4)
    (bucket,) = buckets_of([used, unused, elsewhere])
    used.grad = torch.ones(2)
    bucket.fill(0.5)
    bucket.flat[-3] += 1  # another worker has a gradient for the last parameter
    bucket.put(2.0)
    assert used.grad.tolist() == [1, 1]
    assert unused.grad is None
    assert elsewhere.grad.tolist() == [0, 0, 0, 0]


def test_worker_without_samples_counts_as_zero_even_if_its_gradient_is_not_a_number():
    (only,) = parameters(2)
    (bucket,) = buckets_of([only])
    only.grad = torch.full((2,), torch.nan)
    bucket.fill(0.0)
    bucket.put(1.0)
    assert only.grad.tolist() == [0, 0]


def test_complex_gradients_travel_as_real_numbers():
    (only,) = parameters(2, dtype=torch.complex64)
    (bucket,) = buckets_of([only])
    only.grad = torch.tensor([1 + 2j, 3 - 4j])
    bucket.fill(1.0)
    bucket.wire.mul_(2)
    bucket.put(0.5)
    assert only.grad.tolist() == [1 + 2j, 3 - 4j]


def test_parameter_without_a_shape_is_refused():
    with pytest.raises(InvalidArgument, match="has no shape yet"):
        require_dense(torch.nn.LazyLinear(4))
