"""Datasets registered by path alone: what they hold is read from the data."""

import asyncio

from msgspec.structs import replace

from strata.core.datasets import DatasetSpec
from strata.data.dataset import open_dataset, options_of


async def measured(dataset: str, spec: DatasetSpec) -> DatasetSpec:
    """The spec with its samples counted, if it names a path and no number of samples.

    What the format wants to be told is in the spec's metadata.

    The data is scanned in a thread: a first look at a large dataset takes a while.
    """
    if not spec.path or spec.total_samples:
        return spec
    found = await asyncio.to_thread(
        open_dataset,
        spec.path,
        spec.format,
        name=dataset,
        shard_size=spec.shard_size,
        **options_of(dataset, spec),
    )
    counted = found.spec(shuffle=spec.shuffle, seed=spec.seed)
    return replace(counted, name=spec.name, metadata={**spec.metadata, **counted.metadata})
