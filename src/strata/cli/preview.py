"""Show samples that workers process now."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from strata.cli.support.options import AsJson, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import Column, Look, count, print_list
from strata.coordinator.rest.response_models import Sample

FEW = 8

DatasetId = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="Id of the dataset, as listed by `strata datasets`."),
]
Samples = Annotated[int, typer.Option("--limit", min=1, max=100, help="Maximum number of samples.")]


def shown(value: object) -> str:
    """A short text for a value; images, arrays and bytes by type and size."""
    if value is None:
        return "–"
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if value.get("kind") == "image":
        return f"image of {value.get('width')} × {value.get('height')}"
    if value.get("kind") == "array":
        shape, values = value.get("shape"), value.get("values")
        few = ", ".join(map(shown, values[:FEW])) if isinstance(values, list) else ""
        return f"{value.get('dtype')}{shape} {few}…"
    return f"{value.get('size_bytes')} bytes"


def features(sample: Sample) -> str:
    """The features with their names."""
    return "; ".join(f"{name}: {shown(value)}" for name, value in sample.features.items())


def preview(
    dataset: DatasetId, limit: Samples = 20, url: Url = None, as_json: AsJson = False
) -> None:
    """Show samples that workers process now, with worker, step and shard."""
    look = Look(
        f"datasets/{dataset}/preview",
        Sample,
        [
            Column("worker", lambda sample, _: sample.worker_id, shrinks=True),
            Column("step", lambda sample, _: count(sample.step), "right"),
            Column("shard", lambda sample, _: count(sample.shard_id), "right"),
            Column("sample", lambda sample, _: sample.id, "right"),
            Column("label", lambda sample, _: shown(sample.label), shrinks=True),
            Column("features", lambda sample, _: features(sample), shrinks=True),
        ],
        empty=f"no worker processes samples of {dataset} now",
        next_command="strata tasks",
    )
    print_list(reach(url), look, limit, as_json)
