"""Datasets registered by path alone: what they hold is read from the data."""

import asyncio

from strata.core.datasets import DatasetSpec
from strata.data import specs


async def measured(dataset: str, spec: DatasetSpec) -> DatasetSpec:
    """The spec with its samples counted, in a thread: a first look at the data takes a while."""
    return await asyncio.to_thread(specs.measured, dataset, spec)
