"""Guards the preview: real samples of the requested steps, small, and valid JSON."""

import base64
import io

import msgspec
import numpy as np
import pytest
from PIL import Image

from strata.data.reading.sample_preview import first_rows, preview, shown
from strata.data.source_dataset import open_arrays, open_dataset
from strata.errors import InvalidArgument
from tests.data import corpora


def test_samples_are_those_of_the_step():
    dataset = open_arrays({"v": corpora.vectors(50), "label": np.arange(50) % 3})
    order = dataset.order(8, lanes=4)
    found = preview(dataset, order, [1000, 3], [1, 2], limit=6)
    assert [(each.step, each.lane) for each in found] == [(1000, 1), (1000, 2)] * 2 + [
        (3, 1),
        (3, 2),
    ]
    assert [each.id for each in found[:4]] == order.step_samples(1000, [1, 2]).tolist()
    for each in found:
        assert each.label == each.id % 3
        assert each.shard_id == each.id // dataset.shard_size
        assert each.features["v"]["values"][0] == each.id
        assert each.features["v"]["shape"] == [16]
    assert found[0].epoch == 1000 * 8 // 50
    msgspec.json.encode(found)


def test_images_become_thumbnails(tmp_path):
    corpora.write_images(tmp_path / "set", 6)
    for options in ({}, {"decode": False}):
        dataset = open_dataset(str(tmp_path / "set"), "imagefolder", **options)
        (sample,) = preview(dataset, dataset.order(2), [0], limit=1)
        image = sample.features["image"]
        with Image.open(io.BytesIO(base64.b64decode(image["png"]))) as small:
            assert small.size == (image["width"], image["height"])
            number = int(sample.features["path"].rpartition("/")[2][:4])
            assert small.convert("RGB").getpixel((0, 0))[0] == number


@pytest.mark.parametrize(
    ("value", "small"),
    [
        (np.int64(3), 3),
        (float("nan"), "nan"),
        (None, None),
        ("a" * 400, "a" * 300 + "…"),
        ({"a": [1]}, '{"a":[1]}'),
        (b"\x00\x01", {"kind": "bytes", "size_bytes": 2, "hex": "0001"}),
    ],
)
def test_values_are_made_small(value, small):
    assert shown(value) == small


def test_long_arrays_and_large_images_are_cut():
    assert len(shown(np.arange(10**6))["values"]) == 32
    image = shown(np.zeros((3000, 2000, 3), np.uint8))
    assert (image["height"], image["width"]) == (3000, 2000)
    assert len(image["png"]) < 1000


@pytest.mark.parametrize("limit", [0, 65])
def test_preview_limits_are_checked(limit):
    dataset = open_arrays({"n": np.arange(5)})
    with pytest.raises(InvalidArgument, match="limit is"):
        preview(dataset, dataset.order(2), [0], limit=limit)


def test_first_rows_leave_out_what_has_no_row_per_sample():
    batch = {"x": np.arange(12).reshape(6, 2), "length": 6, "mask": np.ones(3), "names": ["a"] * 6}
    found = first_rows(batch, 6, 2)
    assert {name: each.tolist() for name, each in found.items()} == {"x": [[0, 1], [2, 3]]}
    batch["x"][:] = 0
    assert found["x"].tolist() == [[0, 1], [2, 3]]


def test_first_rows_of_tensors_are_named_by_position():
    torch = pytest.importorskip("torch")
    wide, odd = torch.ones(4, 2, requires_grad=True), torch.ones(4, dtype=torch.bfloat16)
    found = first_rows((wide, odd), 4, 1)
    assert {name: each.tolist() for name, each in found.items()} == {"0": [[1.0, 1.0]]}
