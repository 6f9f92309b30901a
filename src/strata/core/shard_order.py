"""The order in which shards are handed out by lease, and that of the samples in them.

Both are pure functions of the dataset's seed and fingerprint, the epoch, and (for samples) the
shard, by the permutations of `order`; without `shuffle` they are plain order. So whoever gets a
shard, and however often it goes out again, trains the same samples in the same order.
"""

from typing import TYPE_CHECKING

import numpy as np

from strata.core.order import ORDER_VERSION, Integers, Keys, rounds_for

if TYPE_CHECKING:
    from strata.core.datasets import DatasetSpec

_SHARDS, _SAMPLES = 0, 1


def shard_at(spec: "DatasetSpec", place: int, epoch: int) -> int:
    """The shard that is handed out at a place of an epoch."""
    if not spec.shuffle:
        return place
    places = np.array([place], np.int64)
    return int(_permuted(spec, places, spec.shard_count, _SHARDS, epoch)[0])


def samples_in(spec: "DatasetSpec", shard: int, epoch: int) -> Integers:
    """The samples of a shard in the order in which an epoch trains them."""
    first, stop = spec.shard_range(shard)
    places = np.arange(stop - first, dtype=np.int64)
    if not spec.shuffle:
        return first + places
    return first + _permuted(spec, places, stop - first, _SAMPLES, epoch, shard)


def _permuted(spec: "DatasetSpec", places: Integers, size: int, *what: int) -> Integers:
    keys = Keys(f"shards/{ORDER_VERSION}/{spec.seed}/{spec.fingerprint}")
    tweak = keys.tweak(*(np.array([each], np.int64) for each in what))
    return keys.permute(places, np.array([size], np.int64), tweak, rounds_for(size))
