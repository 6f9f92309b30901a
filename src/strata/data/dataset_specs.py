"""Registered datasets: open one from its spec, and measure a dataset before it is registered.

The options of the format are stored in the spec's metadata, as JSON.
"""

import inspect
from typing import Any

import msgspec

from strata.core.state import DatasetSpec
from strata.data.formats.in_memory import NumberSource
from strata.data.source_dataset import OPTIONS, Dataset, open_dataset
from strata.errors import UNDECODABLE, Conflict, InvalidArgument


def open_spec(name: str, spec: DatasetSpec, *, cache_dir: str | None = None) -> Dataset:
    """The data of a registered dataset; without a path, its sample numbers."""
    if not spec.path:
        source = NumberSource(spec.total_samples)
        return Dataset(name, source, source.scan(), spec.fingerprint, shard_size=spec.shard_size)
    dataset = open_dataset(
        spec.path,
        spec.format,
        name=name,
        shard_size=spec.shard_size,
        cache_dir=cache_dir,
        **options_of(name, spec),
    )
    for what, now, then in (
        ("total_samples", dataset.total_samples, spec.total_samples),
        ("fingerprint", dataset.fingerprint, spec.fingerprint or dataset.fingerprint),
    ):
        if now != then:
            raise Conflict(
                f"dataset {name!r}: {what} of {spec.path} is {now}, but {then} was registered",
                hint="register changed data under a new id; runs rely on the old one",
            )
    return dataset


def measured(name: str, spec: DatasetSpec) -> DatasetSpec:
    """The spec with its samples counted, if it has a path and no number of samples."""
    if not spec.path or spec.total_samples:
        return spec
    options = options_of(name, spec)
    found = open_dataset(spec.path, spec.format, name=name, shard_size=spec.shard_size, **options)
    counted = found.spec(shuffle=spec.shuffle, seed=spec.seed)
    metadata = {**spec.metadata, **counted.metadata}
    return msgspec.structs.replace(counted, name=spec.name, metadata=metadata)


def options_of(name: str, spec: DatasetSpec) -> dict[str, Any]:
    """The options of the format, from the spec's metadata."""
    try:
        options = msgspec.json.decode(spec.metadata.get(OPTIONS, "{}"), type=dict[str, Any])
    except UNDECODABLE as error:
        raise InvalidArgument(
            f"dataset {name!r}: {OPTIONS} in its metadata is not a JSON object: {error}",
            hint='write it like {"length": 1025}',
        ) from error
    return checked_options(name, options)


def checked_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options for a format; raises for names that are arguments of every dataset."""
    taken = inspect.signature(open_dataset).parameters.keys() & options.keys()
    if taken:
        raise InvalidArgument(
            f"dataset {name!r}: {min(taken)} is not an option of a format",
            hint="pass it when the dataset is opened or registered",
        )
    return options
