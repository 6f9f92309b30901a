"""Several datasets mixed by weight: deterministic, and as seekable as a single dataset.

Each lane's samples come in blocks of `block`. In a block every dataset has the same share (its
weight, rounded to whole samples, at least one), in a keyed permutation that differs for each block.
Place u of a permuted block belongs to the dataset whose share covers u, and the offset of u in that
share selects the sample. So the k-th sample that a lane takes from a dataset has the dataset's own
position k × C + lane, and the dataset's own order applies: each of its samples once in each of its
own epochs, whatever else is mixed in, and lanes keep their range in window mode. (Within a block
samples are permuted too, so a mixture is never in stored order.)

The mixed order numbers samples through all datasets, the first dataset first.
"""

from collections.abc import Callable, Sequence
from typing import SupportsFloat

import msgspec
import numpy as np

from strata.core.order import Integers, Keys, Order, OrderSpec
from strata.core.rule_settings import SHUFFLE_SEED
from strata.data.formats.source import Array, Columns, RowLayout
from strata.data.source_dataset import Dataset, SkippedRow
from strata.errors import InvalidArgument

_ROUNDS = 24
DEFAULT_BLOCK = 1_000
MAX_WEIGHT = 1e15


class MixtureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All parameters that a mixed order depends on."""

    parts: list[OrderSpec]
    shares: list[int]
    seed: int = SHUFFLE_SEED


class MixedOrder:
    """The orders of several datasets, mixed; used like an `Order`."""

    def __init__(
        self,
        orders: Sequence[Order],
        weights: Sequence[float],
        *,
        seed: int = SHUFFLE_SEED,
        block: int = DEFAULT_BLOCK,
    ) -> None:
        first = _checked(orders, weights, block)
        self.lanes, self.global_batch = first.lanes, first.global_batch
        self.shares = _shares(weights, block)
        self.total_samples = sum(order.total_samples for order in orders)
        self.spec = MixtureSpec(
            parts=[order.spec for order in orders], shares=self.shares, seed=seed
        )
        self._orders = list(orders)
        self._first_samples = RowLayout([order.total_samples for order in orders]).starts
        self._share = RowLayout(self.shares)
        self._block = np.array([block], np.int64)
        self._keys = Keys(f"mixture/{first.spec.version}/{seed}")
        self.positions = first.positions

    def epoch_of(self, step: int) -> int:
        """The number of times that as many samples as there are were trained before a step."""
        return step * self.global_batch // self.total_samples

    def samples(self, positions: Integers) -> Integers:
        """The sample at each global position, numbered through all datasets."""
        block = int(self._block[0])
        lanes, along = positions % self.lanes, positions // self.lanes
        blocks = along // block
        tweak = self._keys.tweak(lanes, blocks)
        places = self._keys.permute(along - blocks * block, self._block, tweak, _ROUNDS)
        found = np.empty(positions.shape, np.int64)
        for part, at, within in self._share.split(places):
            own = blocks[at] * self.shares[part] + within
            own_positions = own * self.lanes + lanes[at]
            found[at] = self._orders[part].samples(own_positions) + self._first_samples[part]
        return found


class MixedDataset:
    """Several datasets with the same columns, with rows numbered through all of them; used like
    one.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        if not datasets:
            raise InvalidArgument("no dataset to mix", hint="give at least one")
        self._datasets = list(datasets)
        self._layout = RowLayout([dataset.total_samples for dataset in datasets])
        self.total_samples = self._layout.rows
        self.columns = {
            name: kind
            for name, kind in datasets[0].columns.items()
            if all(name in dataset.columns for dataset in datasets)
        }
        if not self.columns:
            raise InvalidArgument(
                "the datasets have no column in common", hint="mix datasets that share a column"
            )

    @property
    def forks(self) -> bool:
        """Whether a forked process may read it, too."""
        return all(dataset.forks for dataset in self._datasets)

    @property
    def batch(self) -> str:
        """The id of the batch that files are fetched for, or ""."""
        return self._datasets[0].batch

    def read_for(self, batch: Callable[[], str]) -> None:
        """Record files that are fetched from now on under the batch that `batch` returns."""
        for dataset in self._datasets:
            dataset.read_for(batch)

    def checked_columns(self, columns: Sequence[str] | None) -> list[str]:
        """The requested columns, or those that every dataset has."""
        wanted = list(self.columns) if columns is None else columns
        for dataset in self._datasets:
            dataset.checked_columns(wanted)
        return list(wanted)

    def gather(
        self, rows: Integers, columns: Sequence[str], on_skip: Callable[[SkippedRow], None] | None
    ) -> tuple[Columns, Array | None]:
        """The readable rows and, if some were left out, a mask of the requested rows."""
        kept = np.ones(len(rows), bool)
        found: list[tuple[Array, Columns]] = []
        for part, at, local in self._layout.split(rows):
            places = np.arange(len(rows))[at]
            got, mask = self._datasets[part].gather(local, columns, on_skip)
            if mask is not None:
                kept[places[~mask]] = False
                places = places[mask]
            found.append((places, got))
        if not found:
            return self._datasets[0].gather(rows, columns, on_skip)
        order = np.cumsum(kept) - 1
        merged = {name: self._merged(name, found, order, int(kept.sum())) for name in columns}
        return merged, None if kept.all() else kept

    def _merged(
        self, name: str, found: list[tuple[Array, Columns]], order: Array, count: int
    ) -> Array:
        shapes = {(got[name].dtype.str, got[name].shape[1:]) for _, got in found}
        if len(shapes) > 1:
            raise InvalidArgument(
                f"column {name!r} has different types in the datasets: {sorted(shapes)}",
                hint="use options or transforms that give it one type",
            )
        first = found[0][1][name]
        out = np.empty((count, *first.shape[1:]), first.dtype)
        for places, got in found:
            out[order[places]] = got[name]
        return out


def check_weights(weights: Sequence[float]) -> None:
    """Raise if a weight is not a number above 0."""
    if not all(
        isinstance(weight, SupportsFloat) and 0 < weight <= MAX_WEIGHT for weight in weights
    ):
        raise InvalidArgument(
            f"the weights are {list(weights)!r:.80}",
            hint=f"give numbers above 0, and {MAX_WEIGHT:g} at most",
        )


def _checked(orders: Sequence[Order], weights: Sequence[float], block: int) -> Order:
    if not orders or len(orders) != len(weights):
        raise InvalidArgument(
            f"{len(orders)} datasets and {len(weights)} weights", hint="give each dataset a weight"
        )
    check_weights(weights)
    if not len(orders) <= block <= 1_000_000:
        raise InvalidArgument(
            f"block is {block}", hint="choose at least one sample per dataset, at most a million"
        )
    shapes = {(order.lanes, order.global_batch) for order in orders}
    if len(shapes) > 1:
        raise InvalidArgument(f"the orders differ in lanes and global batch: {sorted(shapes)}")
    return orders[0]


def _shares(weights: Sequence[float], block: int) -> list[int]:
    """The samples of a block for each weight: rounded down, the remainder to
    the largest fractions.
    """
    spare = block - len(weights)
    exact = [spare * weight / sum(weights) for weight in weights]
    shares = [1 + int(each) for each in exact]
    by_rest = sorted(range(len(weights)), key=lambda at: (int(exact[at]) - exact[at], at))
    for at in by_rest[: block - sum(shares)]:
        shares[at] += 1
    return shares
