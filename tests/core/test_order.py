"""The order of samples: each once an epoch, the same for any number of workers and on any machine,
well shuffled, and unchanged by joins, leaves, crashes and rollbacks."""

import json
import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from strata.core.datasets.lane_owners import Holdings, apply_moves, assign
from strata.core.order import Keys, Order, OrderSpec, digest
from strata.errors import InvalidArgument

GOLDEN = Path(__file__).parents[1] / "golden" / "order-v1.json"
MODES = ("global", "window", "sequential")
SIZES = [*range(1, 40), 64, 97, 101, 127, 255, 256, 257, 1009, 1023, 1024, 1025, 4099]


def order_of(total_samples, shard_size=1, global_batch=8, **rest):
    spec = OrderSpec(
        total_samples=total_samples, shard_size=shard_size, global_batch=global_batch, **rest
    )
    return Order(spec)


def epochs_of(order, count, first=0):
    n = order.total_samples
    begin = first * n
    return order.samples(np.arange(begin, begin + count * n, dtype=np.int64)).reshape(count, n)


def z_score(observed, degrees):
    """How many standard deviations a chi-square over equally likely cells is off."""
    expected = observed.sum() / observed.size
    chi_square = ((observed - expected) ** 2 / expected).sum()
    return (chi_square - degrees) / math.sqrt(2 * degrees)


def pair_table(left, right, bins, size):
    table = np.zeros((bins, bins))
    np.add.at(table, (left * bins // size, right * bins // size), 1)
    return table


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("batch", "lanes"), [(1, 1), (4, 4), (12, 3), (64, 16), (8, 2)])
def test_no_sample_twice_in_an_epoch_and_none_missing(mode, batch, lanes):
    for n in SIZES:
        for shard, window in ((1, 0), (3, 0), (7, 5), (max(1, n // 3), 2), (n, 1), (n, n)):
            order = order_of(n, shard, batch, lanes=lanes, mode=mode, window=window)
            seen = np.sort(epochs_of(order, 3), axis=1)
            assert (seen == np.arange(n)).all(), order.spec


def test_without_shuffle_the_order_is_plain():
    for mode in MODES:
        order = order_of(10, 3, 4, lanes=2, shuffle=False, mode=mode)
        assert order.step_samples(0).tolist() == [0, 1, 2, 3]
        assert order.step_samples(2).tolist() == [8, 9, 0, 1]
        assert order.step_samples(2, [1]).tolist() == [9, 1]


def test_tail_of_an_epoch_runs_on_into_the_next():
    order = order_of(10, 1, 4)
    stream = np.concatenate([order.step_samples(step) for step in range(5)])
    assert sorted(stream[:10]) == sorted(stream[10:]) == list(range(10))
    assert order.steps_for(1) == 3
    assert order.steps_for(1, drop_tail=True) == 2
    assert order.steps_for(2) == 5
    assert [order.epoch_of(step) for step in range(5)] == [0, 0, 0, 1, 1]


def test_batch_larger_than_the_dataset_holds_several_epochs():
    order = order_of(3, 1, 8, lanes=4)
    stream = np.concatenate([order.step_samples(step) for step in range(3)])
    assert (np.sort(stream.reshape(8, 3), axis=1) == [0, 1, 2]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 7, 64, 1001])
def test_every_lane_has_its_part_of_every_step(mode, n):
    order = order_of(n, 5, 24, lanes=6, mode=mode)
    for step in range(order.steps_for(3)):
        whole = order.step_samples(step)
        for lane in range(6):
            assert order.step_samples(step, [lane]).tolist() == whole[lane::6].tolist()
        assert order.step_samples(step, []).size == 0


@pytest.mark.parametrize("mode", MODES)
def test_block_of_steps_is_the_steps_one_by_one(mode):
    order = order_of(50_000, 100, 512, lanes=8, mode=mode)
    positions = order.positions(90, 130, [1, 5])
    block = order.samples(positions.ravel()).reshape(positions.shape)
    for row, step in enumerate(range(90, 130)):
        assert block[row].tolist() == order.step_samples(step, [5, 1]).tolist()


@pytest.mark.parametrize("mode", ["window", "sequential"])
@pytest.mark.parametrize(("n", "lanes"), [(1000, 8), (1003, 8), (17, 4), (3, 4)])
def test_lane_reads_the_shards_of_its_part_and_no_others(mode, n, lanes):
    order = order_of(n, 10, 2 * lanes, lanes=lanes, mode=mode)
    for epoch in range(3):
        positions = np.arange(epoch * n, (epoch + 1) * n, dtype=np.int64)
        samples = order.samples(positions)
        for lane in range(lanes):
            read = set((samples[positions % lanes == lane] // 10).tolist())
            assert read == set(order.shards_of(lane, epoch).tolist())


def test_line_of_shards_stays_over_the_epochs_and_follows_the_seed():
    orders = [order_of(1000, 10, 8, lanes=4, mode="window", seed=seed) for seed in (1, 2)]
    lines = [[order.shards_of(2, epoch).tolist() for epoch in (0, 1, 7)] for order in orders]
    assert lines[0][0] == lines[0][1] == lines[0][2]
    assert lines[0][0] != lines[1][0]


def test_window_moves_samples_only_within_itself():
    order = order_of(10_000, 100, 8, lanes=4, mode="window", window=500)
    still = order_of(10_000, 100, 8, lanes=4, mode="sequential")
    moved, unmoved = epochs_of(order, 2), epochs_of(still, 2)
    for lane in range(4):
        for first in range(0, 2500, 500):
            places = slice(first * 4 + lane, (first + 500) * 4 + lane, 4)
            assert sorted(moved[0, places]) == sorted(unmoved[0, places])
            assert moved[0, places].tolist() != moved[1, places].tolist()


def test_key_is_seed_fingerprint_and_epoch():
    def first(**key):
        return order_of(5000, **key).step_samples(0).tolist()

    assert first() == first(seed=42)
    assert len({str(first(seed=seed, fingerprint=f)) for seed in (1, 2) for f in "ab"}) == 4
    assert epochs_of(order_of(5000), 2)[0].tolist() != epochs_of(order_of(5000), 2)[1].tolist()


def test_positions_far_out_are_as_good_as_near_ones():
    order = order_of(10**10, 10**4, 512, lanes=64, mode="window")
    far = order.step_samples(MAX_STEP := (1 << 62) // 512 - 1)
    assert len(set(far.tolist())) == 512
    with pytest.raises(InvalidArgument, match="not a valid range"):
        order.step_samples(MAX_STEP + 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [65_536, 100_003])
def test_consecutive_pairs_are_unrelated(n, seed):
    samples = epochs_of(order_of(n, seed=seed), 1)[0]
    table = pair_table(samples[:-1], samples[1:], 64, n)
    assert abs(z_score(table, 63 * 63)) < 4
    steps = np.bincount((samples[1:] - samples[:-1]) % n * 256 // n, minlength=256)
    assert abs(z_score(steps, 255)) < 4


@pytest.mark.parametrize("seed", range(4))
def test_consecutive_pairs_of_a_lane_are_unrelated_within_windows(seed):
    order = order_of(400_000, 2000, 8, lanes=4, mode="window", window=10_000, seed=seed)
    line = np.empty(400_000, np.int64)
    plain = order_of(400_000, 2000, 8, lanes=4, mode="sequential", seed=seed)
    walked = epochs_of(plain, 1)[0].reshape(-1, 4).T.ravel()
    line[walked] = np.arange(400_000)
    places = line[epochs_of(order, 1)[0].reshape(-1, 4).T] % 10_000
    table = pair_table(places[:, :-1].ravel(), places[:, 1:].ravel(), 32, 10_000)
    assert abs(z_score(table, 31 * 31)) < 4


@pytest.mark.parametrize("n", [2, 3, 5, 6, 9, 16, 24, 64, 100])
def test_every_place_is_equally_likely_for_every_sample(n):
    epochs = 20_000
    found = epochs_of(order_of(n), epochs)
    table = np.stack([np.bincount(found[:, place], minlength=n) for place in range(n)])
    assert abs(z_score(table, (n - 1) ** 2)) < 4


@pytest.mark.parametrize("n", [3, 5, 6, 9, 16, 24, 64])
def test_every_pair_of_neighbours_is_equally_likely_in_small_permutations(n):
    epochs = 20_000
    found = epochs_of(order_of(n), epochs)
    rows, at = np.arange(epochs), np.arange(epochs) % (n - 1)
    table = np.zeros((n, n))
    np.add.at(table, (found[rows, at], found[rows, at + 1]), 1)
    assert abs(z_score(table[~np.eye(n, dtype=bool)], n * (n - 1) - 1)) < 4


@pytest.mark.parametrize("n", [65_536, 100_003])
def test_epochs_are_independent(n):
    first, second = epochs_of(order_of(n), 2, first=3)
    assert abs(z_score(pair_table(first, second, 64, n), 63 * 63)) < 4
    returns = [
        int((a == b).sum())
        for a, b in zip(*[iter(epochs_of(order_of(2003), 800))] * 2, strict=True)
    ]
    assert abs(sum(returns) - 400) < 4 * math.sqrt(400)


def test_fewer_rounds_would_be_noticed():
    keys, n, epochs = Keys("few"), 16, 20_000
    epoch = np.repeat(np.arange(epochs), n)
    place = np.tile(np.arange(n), epochs)
    found = keys.permute(place, np.array([n]), keys.tweak(epoch), 4).reshape(epochs, n)
    table = np.zeros((n, n))
    np.add.at(table, (found[:, 0], found[:, 1]), 1)
    assert z_score(table[~np.eye(n, dtype=bool)], n * (n - 1) - 1) > 4


def test_golden_vectors():
    for vector in json.loads(GOLDEN.read_text("utf-8")):
        order = Order(msgspec.convert(vector["spec"], OrderSpec))
        for step, samples in vector["steps"].items():
            assert order.step_samples(int(step))[:16].tolist() == samples, vector["spec"]
            positions = order.positions(int(step), int(step) + 1)
            whole = digest(positions, order.samples(positions.ravel()))
            assert f"{whole:016x}" == vector["digests"][step]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"total_samples": 0}, "total_samples is 0"),
        ({"total_samples": 1 << 49}, "at most"),
        ({"shard_size": -1}, "shard_size is -1"),
        ({"global_batch": 0}, "global_batch is 0"),
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": 3}, "3 lanes do not divide a global batch of 8"),
        ({"window": -1}, "window is -1"),
        ({"mode": "buffer"}, "no order mode 'buffer'"),
        ({"version": 2}, "version 2"),
    ],
)
def test_invalid_parameters_are_refused(wrong, says):
    right = {"total_samples": 10, "shard_size": 2, "global_batch": 8}
    with pytest.raises(InvalidArgument, match=says):
        Order(OrderSpec(**right | wrong))


@pytest.mark.parametrize("lanes", [[-1], [4], [0, 0], [0, 9]])
def test_lanes_that_do_not_exist_are_refused(lanes):
    with pytest.raises(InvalidArgument, match="lane"):
        order_of(10, 1, 8, lanes=4).step_samples(0, lanes)


class Cluster:
    """Workers that own lanes and train steps; what committed is kept as (positions, samples)."""

    def __init__(self, order, rng):
        self.order, self.rng = order, rng
        self.holdings: Holdings = {}
        self.members: dict[str, int] = {}
        self.applied: list[list[tuple]] = []
        self.names = 0
        self.join()

    def join(self):
        self.names += 1
        self.members[f"worker-{self.names}"] = self.rng.choice([1, 1, 1, 2])
        self.reassign()

    def leave(self):
        if len(self.members) > 1:
            del self.members[self.rng.choice(sorted(self.members))]
            self.reassign()

    def reassign(self):
        apply_moves(self.holdings, assign(self.holdings, self.members, self.order.lanes))

    def step(self, *, crash=False):
        """All members train their lanes' share; with a crash the step does not commit."""
        step = len(self.applied)
        parts = []
        for lanes in self.holdings.values():
            positions = self.order.positions(step, step + 1, lanes)[0]
            parts.append((positions, self.order.samples(positions)))
        if not crash:
            self.applied.append(parts)

    def roll_back(self):
        del self.applied[self.rng.randint(0, len(self.applied)) :]

    def run(self, steps):
        while len(self.applied) < steps:
            event = self.rng.random()
            if event < 0.12:
                self.join()
            elif event < 0.24:
                self.leave()
            elif event < 0.32:
                self.step(crash=True)
                self.leave()
            elif event < 0.35:
                self.roll_back()
            self.step()


def check_schedule(seed):
    rng = random.Random(seed)
    lanes = rng.choice([1, 2, 4, 6, 8])
    order = order_of(
        rng.randint(1, 120),
        rng.randint(1, 20),
        lanes * rng.randint(1, 4),
        lanes=lanes,
        seed=seed,
        mode=rng.choice(MODES),
        window=rng.randint(0, 30),
    )
    steps = rng.randint(4, 14)
    cluster = Cluster(order, rng)
    cluster.run(steps)
    parts = [part for step in cluster.applied for part in step]
    positions = np.concatenate([part[0] for part in parts])
    samples = np.concatenate([part[1] for part in parts])
    assert np.array_equal(np.sort(positions), np.arange(steps * order.global_batch))
    n = order.total_samples
    in_order = samples[np.argsort(positions)]
    whole = in_order[: len(in_order) // n * n].reshape(-1, n)
    assert (np.sort(whole, axis=1) == np.arange(n)).all()
    one_worker = order.positions(0, steps)
    expected = digest(one_worker, order.samples(one_worker.ravel()))
    assert sum(digest(*part) for part in parts) % 2**64 == expected


def test_random_schedules_lose_nothing_and_repeat_nothing():
    for seed in range(100):
        check_schedule(seed)


@pytest.mark.slow
def test_thousand_random_schedules():
    for seed in range(100, 1200):
        check_schedule(seed)


def test_wrong_sample_changes_the_digest():
    order = order_of(1000, 10, 64, lanes=8)
    positions = order.positions(5, 6)[0]
    samples = order.samples(positions)
    wrong = samples.copy()
    wrong[3], wrong[4] = wrong[4], wrong[3]
    assert digest(positions, samples) != digest(positions, wrong)
