"""Several datasets as one, by weight: deterministic, and as seekable as a single one.

Each lane's samples come in blocks of `block`. In a block every dataset has its share, the same
in each (shares are weights rounded to whole samples of a block, each at least one), in a keyed
permutation that is another one for each block. Place u of a permuted block belongs to the dataset
whose share covers u, and how far u is into that share says which sample of the dataset it is. So
the k-th sample that a lane takes from a dataset has the dataset's own position k × C + lane, and
the dataset's own order does the rest: each of its samples once in each of its own epochs, whatever
is mixed in, and lanes keep their part of the line in window mode. (Within a block its samples come
in permuted order too, so a mixture is never plain order.)

The mixed order numbers samples through all datasets, the first dataset first.
"""

from collections.abc import Callable, Sequence
from typing import SupportsFloat

import msgspec
import numpy as np

from strata.core.order import Integers, Keys, Order, OrderSpec
from strata.data.base import Array, Columns, Layout
from strata.data.dataset import Dataset, Skipped
from strata.errors import InvalidArgument

_ROUNDS = 24
DEFAULT_BLOCK = 1_000
MAX_WEIGHT = 1e15


class MixtureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a mixed order depends on."""

    parts: list[OrderSpec]
    shares: list[int]
    seed: int = 42


class MixedOrder:
    """The orders of several datasets, mixed; used like an `Order`."""

    def __init__(
        self,
        orders: Sequence[Order],
        weights: Sequence[float],
        *,
        seed: int = 42,
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
        self._first_samples = Layout([order.total_samples for order in orders]).starts
        self._share = Layout(self.shares)
        self._block = np.array([block], np.int64)
        self._keys = Keys(f"mixture/{first.spec.version}/{seed}")
        self.positions = first.positions

    def epoch_of(self, step: int) -> int:
        """How often as many samples as there are were trained before a step."""
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
    """Several datasets with the same columns, their rows numbered through; used like one."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        if not datasets:
            raise InvalidArgument("no dataset to mix", hint="give at least one")
        self._datasets = list(datasets)
        self._layout = Layout([dataset.total_samples for dataset in datasets])
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
        """The batch that files are fetched for now, or nothing."""
        return self._datasets[0].batch

    def read_for(self, batch: Callable[[], str]) -> None:
        """From now on, files are fetched for the batch that `batch` names."""
        for dataset in self._datasets:
            dataset.read_for(batch)

    def checked_columns(self, columns: Sequence[str] | None) -> list[str]:
        """The columns asked for, or those that every dataset has."""
        wanted = list(self.columns) if columns is None else columns
        for dataset in self._datasets:
            dataset.checked_columns(wanted)
        return list(wanted)

    def gather(
        self, rows: Integers, columns: Sequence[str], on_skip: Callable[[Skipped], None] | None
    ) -> tuple[Columns, Array | None]:
        """The rows that can be read and, if some cannot, which of those asked for they are."""
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
                f"column {name!r} is not of one type in all datasets: {sorted(shapes)}",
                hint="give the datasets options or transforms that make them alike",
            )
        first = found[0][1][name]
        out = np.empty((count, *first.shape[1:]), first.dtype)
        for places, got in found:
            out[order[places]] = got[name]
        return out


def check_weights(weights: Sequence[float]) -> None:
    """Refuses what is no weight."""
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
            f"block is {block}", hint="choose at least one sample a dataset, at most a million"
        )
    shapes = {(order.lanes, order.global_batch) for order in orders}
    if len(shapes) > 1:
        raise InvalidArgument(f"the orders differ in lanes and global batch: {sorted(shapes)}")
    return orders[0]


def _shares(weights: Sequence[float], block: int) -> list[int]:
    """Whole samples a block for each weight: rounded down, what is left to the largest rests."""
    spare = block - len(weights)
    exact = [spare * weight / sum(weights) for weight in weights]
    shares = [1 + int(each) for each in exact]
    by_rest = sorted(range(len(weights)), key=lambda at: (int(exact[at]) - exact[at], at))
    for at in by_rest[: block - sum(shares)]:
        shares[at] += 1
    return shares
