"""Guards the format: other tools open the parts, and a manifest of this version stays readable."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from strata.checkpoint.manifest import Manifest, decode_manifest
from strata.errors import Corrupt, UnknownKind
from tests.checkpoint.conftest import assert_same, sample_state


@pytest.fixture
def saved(local):
    state = sample_state(3)
    checkpoint_id = local.save(state, step=12, epoch=2, metadata={"note": "x"})
    local.wait_pending()
    folder = local.storage.root / checkpoint_id
    manifest = json.loads(folder.with_name(f"{checkpoint_id}.json").read_bytes())
    return state, folder / "part-00000.safetensors", manifest


def test_safetensors_opens_a_part(saved):
    state, part, _ = saved
    tensors = load_file(part)
    assert_same(tensors["model.weight"], state["model"]["weight"])
    assert_same(tensors["model.layers.0"], state["model"]["layers"][0])
    with safe_open(part, "numpy") as opened:
        assert opened.metadata()["step"] == "12"


def test_part_data_begins_on_a_page_boundary(saved):
    _, part, manifest = saved
    header_bytes = 8 + int.from_bytes(part.read_bytes()[:8], "little")
    assert header_bytes == manifest["parts"][0]["header_bytes"]
    assert header_bytes % 4096 == 0


def test_manifest_describes_all_parts_and_tensors(saved):
    state, part, manifest = saved
    assert (manifest["format"], manifest["version"]) == ("strata-checkpoint", 1)
    assert (manifest["step"], manifest["epoch"], manifest["world_size"]) == (12, 2, 1)
    assert manifest["metadata"] == {"note": "x"}
    (described,) = manifest["parts"]
    assert described["size_bytes"] == part.stat().st_size == manifest["size_bytes"]
    tensor = next(each for each in described["tensors"] if each["name"] == "model.weight")
    data = part.read_bytes()[tensor["offset"] : tensor["offset"] + tensor["size_bytes"]]
    assert (tensor["dtype"], tensor["shape"]) == ("F32", [300, 7])
    assert data == state["model"]["weight"].tobytes()
    assert described["tree"]["model"]["weight"] == {"$tensor": "model.weight", "kind": "numpy"}


def test_invalid_and_newer_manifests_have_different_errors():
    with pytest.raises(Corrupt, match="is not a checkpoint manifest"):
        decode_manifest(b"{}", "x.json")
    with pytest.raises(Corrupt, match=r"the manifest x.json is damaged"):
        decode_manifest(b'{"format": "strata-checkpoint", "version": 1', "x.json")
    with pytest.raises(Corrupt, match="damaged"):
        decode_manifest(b'{"format": "strata-checkpoint", "version": 1}', "x.json")
    with pytest.raises(UnknownKind, match="update Strata"):
        decode_manifest(b'{"format": "strata-checkpoint", "version": 2}', "x.json")


def test_manifest_is_never_executed(saved):
    _, _, manifest = saved
    assert Manifest.__struct_config__.frozen
    assert "pickle" not in json.dumps(manifest)


def test_wide_header_is_padded(local):
    state = {f"tensor-{index:05d}": np.float32(index) for index in range(2_000)}
    local.save(state, step=1)
    local.wait_pending()
    assert_same(local.load(), state)
