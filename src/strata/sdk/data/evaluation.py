"""`run.evaluate`: score one worker's share of a dataset, and combine the shares.

The dataset is cut into batches by sample number, and the workers take the batches in turn. So the
batches do not depend on the number of workers, nor does the result, up to the order of the sum.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from strata.data.formats.source import Columns
from strata.data.source_dataset import Dataset
from strata.errors import InvalidArgument

PLAIN = ""
"""The name of a score that is one number."""

Score = Callable[[Any], float | Mapping[str, float]]
Collate = Callable[[list[Any]], Any]


class Scored(Struct):
    """The sums of one worker's scores over its samples, and the number of samples."""

    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)


class Evaluation(NamedTuple):
    """A dataset to score, and how to score it."""

    dataset: Any
    score: Score
    batch_size: int = 256
    collate_fn: Collate | None = None
    num_workers: int = 0

    @property
    def samples(self) -> int:
        """The number of samples of the dataset."""
        return _length(self.dataset)

    def share(self, rank: int, world_size: int) -> Scored:
        """Score one worker's share of the dataset."""
        total, size = self.samples, self.batch_size
        if size < 1:
            raise InvalidArgument(f"run.evaluate got batch_size={size}", hint="use at least 1")
        cuts = range(rank * size, total, world_size * size)
        rows = [range(first, min(first + size, total)) for first in cuts]
        batches = _batches(self.dataset, rows, self.collate_fn, self.num_workers)
        found = Scored()
        for chosen, batch in zip(rows, batches, strict=True):
            for name, value in _named(self.score(batch)).items():
                found.sums[name] = found.sums.get(name, 0.0) + value * len(chosen)
            found.samples += len(chosen)
        return found


def combined(shares: Sequence[Scored]) -> dict[str, float]:
    """The means over all samples, from all workers' sums, added in rank order."""
    samples = sum(share.samples for share in shares)
    sums: dict[str, float] = {}
    for share in shares:
        for name, value in share.sums.items():
            sums[name] = sums.get(name, 0.0) + value
    if not samples:
        raise InvalidArgument("the dataset has no samples", hint="evaluate on at least one sample")
    return {name: value / samples for name, value in sums.items()}


def _length(dataset: Any) -> int:
    if isinstance(dataset, Dataset):
        return dataset.total_samples
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InvalidArgument(
            f"run.evaluate cannot read a {type(dataset).__name__}",
            hint="pass a dataset with a length: a torch Dataset, strata.open_dataset(path), a list",
        )
    return len(dataset)


def _batches(
    dataset: Any,
    rows: Sequence[range],
    collate_fn: Collate | None,
    num_workers: int,
) -> Iterator[Any]:
    """Read the batches with these samples."""
    if isinstance(dataset, Dataset):
        columns = dataset.checked_columns(None)
        for chosen in rows:
            gathered: Columns = dataset.gather(np.asarray(chosen), columns, None)[0]
            yield gathered if collate_fn is None else collate_fn([gathered])
    elif "torch" in sys.modules:
        from torch.utils.data import DataLoader  # the script has imported PyTorch already

        chosen_rows = [list(chosen) for chosen in rows]
        yield from DataLoader(
            dataset, batch_sampler=chosen_rows, collate_fn=collate_fn, num_workers=num_workers
        )
    else:
        for chosen in rows:
            samples = [dataset[row] for row in chosen]
            yield samples if collate_fn is None else collate_fn(samples)


def _named(given: Any) -> dict[str, float]:
    values = given if isinstance(given, Mapping) else {PLAIN: given}
    try:
        return {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the score function returned a {type(given).__name__}: {error}",
            hint="return a number, or a dict of numbers, as means over the batch",
        ) from error
