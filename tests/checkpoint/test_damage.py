"""Guards reads of damaged bytes: noticed, named, never returned."""

import logging
import random

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.errors import Corrupt, NotFound, StrataError
from tests.checkpoint.conftest import assert_same, sample_state


@pytest.fixture
def two(tmp_path):
    """A folder with two checkpoints, and the path of the newer one's part."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(sample_state(1), step=1)
        newer = manager.save(sample_state(2), step=2)
        manager.wait_pending()
        yield manager, newer, tmp_path / newer / "part-00000.safetensors"


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_flipped_bit_error_names_part_and_tensor(two):
    manager, newer, part = two
    with manager.open(newer) as reader:
        tensors = {each.name: each for each in reader.manifest.parts[0].tensors}
    flip(part, tensors["model.weight"].offset + 5)
    with pytest.raises(Corrupt, match=rf"{newer}/part-00000.safetensors.*'model.weight'"):
        manager.load(newer)


@pytest.mark.parametrize("seed", range(20))
def test_checksum_covers_every_bit_of_the_data(two, seed):
    manager, newer, part = two
    with manager.open(newer) as reader:
        start = reader.manifest.parts[0].header_bytes
    flip(part, random.Random(seed).randrange(start, part.stat().st_size))
    with pytest.raises(Corrupt):
        manager.load(newer)


def test_load_falls_back_to_an_older_checkpoint_and_warns(two, caplog):
    manager, newer, part = two
    flip(part, part.stat().st_size - 1)
    with caplog.at_level(logging.WARNING):
        assert_same(manager.load(), sample_state(1))
    assert manager.loaded.step == 1
    assert f"skipped checkpoint {newer}" in caplog.text


def test_fallback_load_fills_the_same_arrays(two):
    manager, _, part = two
    flip(part, part.stat().st_size - 1)
    target = sample_state(3)
    weight = target["model"]["weight"]
    loaded = manager.load(into=target)
    assert loaded["model"]["weight"] is weight
    assert_same(loaded, sample_state(1))


@pytest.mark.parametrize("harm", ["cut", "grown", "missing", "emptied"])
def test_truncated_part_is_named(two, harm):
    manager, newer, part = two
    data = part.read_bytes()
    if harm == "missing":
        part.unlink()
    else:
        part.write_bytes({"cut": data[:-1], "grown": data + b"x", "emptied": b""}[harm])
    with pytest.raises(Corrupt, match=r"part-00000.safetensors is damaged"):
        manager.load(newer)
    assert_same(manager.load(), sample_state(1))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "other"}'])
def test_damaged_manifest_is_skipped_and_saving_continues(two, content):
    _, newer, part = two
    part.parent.with_name(f"{newer}.json").write_bytes(content)
    with CheckpointManager(part.parent.parent) as fresh:
        assert fresh.latest().step == 1
        assert_same(fresh.load(), sample_state(1))
        with pytest.raises(Corrupt):
            fresh.load(newer)
        fresh.save(sample_state(3), step=3)
        fresh.wait_pending()
        assert fresh.latest().step == 3


def test_load_reports_the_newest_when_all_are_damaged(two):
    manager, newer, part = two
    for each in part.parent.parent.glob("*/part-00000.safetensors"):
        flip(each, each.stat().st_size - 1)
    with pytest.raises(Corrupt, match=newer):
        manager.load()


def test_verify_checks_the_header(two):
    manager, newer, part = two
    with manager.open(newer) as reader:
        reader.verify()
    flip(part, 100)
    with manager.open(newer) as reader, pytest.raises(Corrupt, match="header"):
        reader.verify()


def test_wrong_manifest_raises_corrupt(two):
    _, newer, part = two
    path = part.parent.with_name(f"{newer}.json")
    path.write_bytes(path.read_bytes().replace(b'"model.weight"', b'"model.wait"', 1))
    with CheckpointManager(path.parent) as fresh, pytest.raises(StrataError):
        fresh.load(newer)


def test_read_verifies_only_the_requested_tensors(two):
    manager, newer, part = two
    with manager.open(newer) as reader:
        tensors = {each.name: each for each in reader.manifest.parts[0].tensors}
    flip(part, tensors["model.weight"].offset)
    with manager.open(newer) as reader:
        assert_same(reader.tensor("model.bias"), sample_state(2)["model"]["bias"])
        with pytest.raises(Corrupt):
            reader.tensor("model.weight")


def test_damaged_piece_of_a_large_tensor_is_found(tmp_path):
    array = np.arange(5_000_000, dtype=np.float32)
    with CheckpointManager(tmp_path) as manager:
        saved = manager.save({"a": array}, step=1)
        manager.wait_pending()
        part = tmp_path / saved / "part-00000.safetensors"
        flip(part, 4096 + 9 * 2**20)
        with manager.open() as reader:
            assert_same(reader.slice("a", [0], [1000]), array[:1000])
            with pytest.raises(Corrupt, match="bytes 8392704 to 16781312"):
                reader.tensor("a")


def test_unknown_checkpoint_is_not_found(two):
    manager, _, _ = two
    with pytest.raises(NotFound):
        manager.load("step-00000009-none")


MANIFEST_FAULTS = {
    "text that is not UTF-8": (b'"F32"', b'"\xff32"'),
    "deep nesting": (b'"metadata":{', b'"metadata":{"a":' + b"[" * 5_000),
    "unknown type": (b'"F32"', b'"F33"'),
    "negative shape": (b'"shape":[300,7]', b'"shape":[-300,-7]'),
    "huge shape": (b'"shape":[300,7]', b'"shape":[300,7000000000000]'),
    "offset beyond the part": (b'"offset":4096', b'"offset":99999999'),
    "no pieces": (b'"piece_bytes":8388608', b'"piece_bytes":0'),
    "file outside of the checkpoint": (b'"file":"part-', b'"file":"../part-'),
    "id of another checkpoint": (b'"checkpoint_id":"step-0', b'"checkpoint_id":"step-1'),
    "tensor without a kind": (b'"kind":"numpy"', b'"kin":"numpy"'),
    "tuple that is none": (b'{"$tuple":[', b'{"$tuple":1,"x":['),
    "pairs that are none": (b'{"$dict":[[0,', b'{"$dict":[[0,1,'),
    "key that is a list": (b'{"$dict":[[0,', b'{"$dict":[[[0],'),
    "tensor that does not exist": (b'{"$tensor":"model.weight"', b'{"$tensor":"model.wait"'),
    "object without fields": (b'{"$tuple":[', b'{"$object":"a:b","kind":"struct","x":['),
    "time that is no time": (b'"created_ns":', b'"created_ns":' + b"9" * 400),
}


@pytest.mark.parametrize("fault", MANIFEST_FAULTS)
def test_manifest_that_contradicts_itself_is_named(two, fault):
    _, newer, part = two
    old, new = MANIFEST_FAULTS[fault]
    path = part.parent.with_name(f"{newer}.json")
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    with CheckpointManager(path.parent) as fresh, pytest.raises(Corrupt, match=rf"{newer}\.json"):
        fresh.load(newer)
