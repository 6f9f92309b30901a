"""Show samples that workers process now: of which shard, at which step, by whom."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import Column, Look, count, print_list
from strata.cli._options import AsJson, Url

FEW = 8

DatasetId = Annotated[str, typer.Argument(metavar="DATASET", help="As `strata datasets` lists it.")]
Samples = Annotated[int, typer.Option("--limit", min=1, max=100, help="How many at most.")]


class Sample(Struct, frozen=True):
    """What is shown of a sample."""

    id: str
    features: dict[str, object]
    label: object
    shard_id: int
    worker_id: str
    step: int


def shown(value: object) -> str:
    """A value in a few words: what is larger than a word says what it is."""
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
    """Every feature by its name."""
    return "; ".join(f"{name}: {shown(value)}" for name, value in sample.features.items())


def preview(
    dataset: DatasetId, limit: Samples = 20, url: Url = None, as_json: AsJson = False
) -> None:
    """Show samples that workers process now: of which shard, at which step, by whom."""
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
