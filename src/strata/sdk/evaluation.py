"""Evaluation: one worker's share of a dataset, scored, and the shares combined.

The dataset is cut into batches by sample number, and the workers take the batches in turn. So the
batches are the same for any number of workers, and the result is too, up to the order of the sum.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from strata.data.base import Columns
from strata.data.dataset import Dataset
from strata.errors import InvalidArgument

PLAIN = ""
"""The name of a score that is one number."""

Score = Callable[[Any], float | Mapping[str, float]]


class Scored(Struct):
    """Sums of one worker's scores over its samples, and how many samples those were."""

    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)


def scored(
    dataset: Any,
    score: Score,
    rank: int,
    world_size: int,
    *,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    num_workers: int,
) -> Scored:
    """What one worker's share of a dataset scores."""
    total = _length(dataset)
    if batch_size < 1:
        raise InvalidArgument(f"batch_size is {batch_size}", hint="give at least 1")
    cuts = range(rank * batch_size, total, world_size * batch_size)
    rows = [range(first, min(first + batch_size, total)) for first in cuts]
    found = Scored()
    for chosen, batch in zip(rows, _batches(dataset, rows, collate_fn, num_workers), strict=True):
        for name, value in _named(score(batch)).items():
            found.sums[name] = found.sums.get(name, 0.0) + value * len(chosen)
        found.samples += len(chosen)
    return found


def combined(shares: Sequence[Scored]) -> float | dict[str, float]:
    """The mean over all samples, from every worker's sums, added up in the order of ranks."""
    samples = sum(share.samples for share in shares)
    sums: dict[str, float] = {}
    for share in shares:
        for name, value in share.sums.items():
            sums[name] = sums.get(name, 0.0) + value
    if not samples:
        raise InvalidArgument("the dataset has no samples", hint="evaluate on at least one sample")
    means = {name: value / samples for name, value in sums.items()}
    return means[PLAIN] if set(means) == {PLAIN} else means


def _length(dataset: Any) -> int:
    if isinstance(dataset, Dataset):
        return dataset.total_samples
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InvalidArgument(
            f"run.evaluate cannot read a {type(dataset).__name__}",
            hint="give a dataset with a length: a torch Dataset, strata.open_dataset(path), a list",
        )
    return len(dataset)


def _batches(
    dataset: Any,
    rows: Sequence[range],
    collate_fn: Callable[[list[Any]], Any] | None,
    num_workers: int,
) -> Iterator[Any]:
    """The batches with these samples, one after the other."""
    if isinstance(dataset, Dataset):
        columns = dataset.checked_columns(None)
        for chosen in rows:
            gathered: Columns = dataset.gather(np.asarray(chosen), columns, None)[0]
            yield gathered if collate_fn is None else collate_fn([gathered])
    elif "torch" in sys.modules:
        from torch.utils.data import DataLoader  # only where the script uses PyTorch anyway

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
            f"score gave {type(given).__name__}: {error}",
            hint="give a number, or a dict of numbers, as means over the batch",
        ) from error
