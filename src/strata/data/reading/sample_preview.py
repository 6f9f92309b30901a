"""Previews of samples: the samples that given steps train, small enough for a page.

The samples are read as training would read them. Images become PNG thumbnails, long arrays and
texts are cut, and at most `limit` samples are read.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from strata.core.order import Order
from strata.data.formats.source import Array, Columns
from strata.data.source_dataset import Dataset
from strata.errors import InvalidArgument
from strata.extras import installed

MAX_SAMPLES = 64
_THUMBNAIL_PIXELS = 64
_VALUES = 32
_CHARACTERS = 300
_LABELS = ("label", "labels", "cls", "target", "y")


class SamplePreview(msgspec.Struct, frozen=True):
    """One sample of a step. A feature is a value, or `{"kind", ...}` with its original size."""

    id: int
    step: int
    epoch: int
    lane: int
    shard_id: int
    features: dict[str, Any]
    label: Any = None


def preview(
    dataset: Dataset,
    order: Order,
    steps: Sequence[int],
    lanes: Sequence[int] | None = None,
    *,
    limit: int = 8,
    columns: Sequence[str] | None = None,
) -> list[SamplePreview]:
    """The first samples of the steps, made small; steps may be in the past or the future."""
    if not 0 < limit <= MAX_SAMPLES:
        raise InvalidArgument(f"limit is {limit}", hint=f"choose from 1 to {MAX_SAMPLES}")
    found: list[tuple[int, int]] = []
    for step in steps:
        positions = order.positions(step, step + 1, lanes)[0][: limit - len(found)]
        found += [(step, int(position)) for position in positions]
        if len(found) >= limit:
            break
    places = np.array([position for _, position in found], np.int64)
    samples = order.samples(places)
    shown_rows = features_and_label(dataset.read(samples, columns))
    return [
        SamplePreview(
            id=int(samples[at]),
            step=step,
            epoch=position // order.total_samples,
            lane=position % order.lanes,
            shard_id=int(samples[at]) // order.spec.shard_size,
            features=features,
            label=label,
        )
        for at, ((step, position), (features, label)) in enumerate(
            zip(found, shown_rows, strict=True)
        )
    ]


def features_and_label(values: Columns) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each row of some columns, made small: its features, and its label if
    there is a label column.
    """
    label = next((name for name in _LABELS if name in values), None)
    for at in range(min(map(len, values.values()), default=0)):
        features = {name: shown(each[at]) for name, each in values.items() if name != label}
        yield features, shown(values[label][at]) if label is not None else None


def first_rows(batch: Any, samples: int, count: int) -> Columns:
    """Copies of the first rows of the parts of a batch, by name or position.

    A part that is not an array in host memory with one row per sample is left out.
    """
    if isinstance(batch, Mapping):
        parts = {str(name): each for name, each in batch.items()}
    elif isinstance(batch, tuple | list):
        parts = {str(place): each for place, each in enumerate(batch)}
    else:
        parts = {"0": batch}
    found: Columns = {}
    for name, part in parts.items():
        if not hasattr(part, "shape") or getattr(part, "is_cuda", False):
            continue
        if len(part.shape) and part.shape[0] == samples:
            tensor = hasattr(part, "detach")
            try:
                rows = part[:count].detach().numpy() if tensor else part[:count]
                found[name] = np.array(rows)
            except (TypeError, RuntimeError):
                continue  # a type that NumPy does not have
    return found


def shown(value: Any) -> Any:
    """A value as a few JSON values."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return _shown_array(value)
    if isinstance(value, bytes):
        return _shown_bytes(value)
    if isinstance(value, str):
        return value if len(value) <= _CHARACTERS else value[:_CHARACTERS] + "…"
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)  # JSON has no NaN or infinity
    if value is None or isinstance(value, bool | int | float):
        return value
    text = msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "…"


def _shown_array(value: Array) -> dict[str, Any]:
    is_image = value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3, 4)
    if is_image and installed("PIL"):
        from PIL import Image

        return _thumbnail(Image.fromarray(value[:, :, 0] if value.shape[2] == 1 else value))
    few = [shown(each) for each in value.ravel()[:_VALUES]]
    return {"kind": "array", "dtype": str(value.dtype), "shape": list(value.shape), "values": few}


def _shown_bytes(value: bytes) -> dict[str, Any]:
    if installed("PIL"):
        from PIL import Image

        with suppress(OSError, ValueError), Image.open(io.BytesIO(value)) as image:
            return _thumbnail(image)
    return {"kind": "bytes", "size_bytes": len(value), "hex": value[:_VALUES].hex()}


def _thumbnail(image: Any) -> dict[str, Any]:
    width, height = image.size
    small = image.convert("RGB")
    small.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
    out = io.BytesIO()
    small.save(out, "PNG")
    encoded = base64.b64encode(out.getvalue()).decode()
    return {"kind": "image", "width": width, "height": height, "png": encoded}
