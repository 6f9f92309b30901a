"""Guards batch norm over all workers: equal to one process, also with batches of unequal size."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from strata.errors import InvalidArgument, NotAllowedNow  # noqa: E402
from strata.torch.sync_batch_norm import BatchStatistics, Normalize, SyncedBatchNorm  # noqa: E402


class Meeting:
    """Gathers vectors of threads, in place of workers."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size, timeout=30)
        self._rows = [None] * size

    def gather(self, rank):
        def gathered(vector):
            self._rows[rank] = vector
            self._barrier.wait()
            rows = torch.stack(self._rows)
            self._barrier.wait()
            return rows

        return gathered


def in_threads(act, size):
    """What `act(rank)` returns for each rank, all at the same time."""
    found, errors = [None] * size, []

    def work(rank):
        try:
            found[rank] = act(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    return found


@pytest.mark.parametrize("shape", [(), (3, 2)])
@pytest.mark.parametrize("sizes", [(5, 11), (4, 0, 7), (16,)])
def test_workers_with_unequal_batches_normalize_as_one_process(shape, sizes):
    torch.manual_seed(0)
    total = sum(sizes)
    whole = torch.randn(total, 4, *shape, dtype=torch.float64) * 3 + 100
    target = torch.randn_like(whole)
    norm = torch.nn.BatchNorm1d(4).double() if not shape else torch.nn.BatchNorm2d(4).double()
    torch.nn.init.normal_(norm.weight)
    whole.requires_grad_()
    expected = norm(whole)
    ((expected - target) ** 2).mean().backward()
    parts = [each.detach().requires_grad_() for each in whole.split(sizes)]
    meeting = Meeting(len(sizes))
    weights = [norm.weight.detach().clone().requires_grad_() for _ in sizes]
    biases = [norm.bias.detach().clone().requires_grad_() for _ in sizes]

    def work(rank):
        gather = meeting.gather(rank)
        out, mean, variance, count = Normalize.apply(
            parts[rank], weights[rank], biases[rank], norm.eps, sizes[rank], gather
        )
        goal = target.split(sizes)[rank]
        ((out - goal) ** 2).sum().div(max(out.numel(), 1)).backward()
        return out.detach(), mean, variance * count / (count - 1)

    found = in_threads(work, len(sizes))
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(torch.cat([out for out, _, _ in found]), expected, **close)
    for _, mean, variance in found:
        torch.testing.assert_close(mean * norm.momentum, norm.running_mean, **close)
        kept = 1 - norm.momentum
        torch.testing.assert_close(variance * norm.momentum + kept, norm.running_var, **close)
    shares = [size / total for size in sizes]
    of_input = torch.cat([each.grad * share for each, share in zip(parts, shares, strict=True)])
    torch.testing.assert_close(of_input, whole.grad, **close)
    for own, plain in ((weights, norm.weight), (biases, norm.bias)):
        mean = sum(each.grad * share for each, share in zip(own, shares, strict=True))
        torch.testing.assert_close(mean, plain.grad, **close)


class Alone:
    """A run of two workers, with the attributes that `BatchStatistics` uses."""

    world_size, present_step = 2, None


def test_only_plain_modules_are_synchronized():
    class Special(torch.nn.SyncBatchNorm):
        pass

    statistics = BatchStatistics(Alone(), "gloo")
    with pytest.raises(InvalidArgument, match="0 is a Special, a subclass of SyncBatchNorm"):
        statistics.adopt(torch.nn.Sequential(Special(4)))
    own = torch.nn.SyncBatchNorm(4, process_group=object())
    with pytest.raises(InvalidArgument, match="a process_group of its own"):
        statistics.adopt(torch.nn.Sequential(own))


def test_training_outside_of_a_step_is_refused_and_a_copy_is_a_plain_module():
    model = torch.nn.Sequential(torch.nn.SyncBatchNorm(4))
    BatchStatistics(Alone(), "gloo").adopt(model)
    assert type(model[0]) is SyncedBatchNorm
    with pytest.raises(NotAllowedNow, match="outside of a step"):
        model(torch.ones(2, 4))
    model.eval()(torch.ones(2, 4))
    copy.deepcopy(model).train()(torch.ones(2, 4))
