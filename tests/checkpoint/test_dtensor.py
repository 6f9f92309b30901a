"""Guards state dicts of FSDP2 and DTensors: M ranks restore what N ranks saved, each its shards."""

import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.sharded_tensors import require_contiguous
from strata.checkpoint.write.part_sidecar import manifest_of, read_sidecars
from strata.checkpoint.write.part_writer import commit
from strata.errors import InvalidArgument
from strata.storage.folder import LocalStorage
from tests.checkpoint.fsdp import CHECKPOINT
from tests.sdk.harness import free_port

SCRIPT = Path(__file__).with_name("fsdp.py")


def play(what, world_size, folder):
    """The last line that each rank printed."""
    port = str(free_port())
    command = [sys.executable, str(SCRIPT), what]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world_size), str(folder), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    said = []
    for rank in ranks:
        output, errors = rank.communicate(timeout=110)
        assert rank.returncode == 0, errors[-3000:]
        said.append(output.strip().splitlines()[-1])
    return said


@pytest.mark.parametrize(("saved", "wanted"), [(2, 3), (3, 2)])
def test_m_ranks_restore_what_n_ranks_saved(tmp_path, saved, wanted):
    checksums = play("save", saved, tmp_path)
    storage = LocalStorage(tmp_path)
    manifest = manifest_of(read_sidecars(storage, CHECKPOINT, dict(enumerate(checksums))), 1, 1)
    commit(storage, manifest)
    boxes = [t for part in manifest.parts for t in part.tensors if t.name == "model.0.weight"]
    assert len(boxes) == saved
    assert {tuple(box.shard.global_shape) for box in boxes} == {(31, 13)}
    copies = [t for part in manifest.parts for t in part.tensors if t.name == "copies"]
    assert len(copies) == 1, "what all hold alike is written once"
    assert set(play("load", wanted, tmp_path)) == {"same"}


def test_fsdp_over_tensor_parallelism_is_saved(tmp_path):
    checksums = play("grid", 4, tmp_path)
    storage = LocalStorage(tmp_path)
    manifest = manifest_of(read_sidecars(storage, CHECKPOINT, dict(enumerate(checksums))), 1, 1)
    boxes = [t for part in manifest.parts for t in part.tensors if t.name == "model.0.weight"]
    assert len({tuple(box.shard.offsets) for box in boxes}) == 4
    with CheckpointReader(storage, manifest) as reader:
        for name, shape in (("0.weight", [20, 12]), ("2.weight", [8, 20]), ("0.bias", [20])):
            whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            assert (reader.tensor(f"model.{name}") == whole).all(), name


def test_dtensor_with_interleaved_indices_is_refused():
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    mesh = types.SimpleNamespace(size=lambda dimension: 2, get_coordinate=lambda: [0, 0])

    def held(*placements):
        return types.SimpleNamespace(shape=torch.Size([8]), device_mesh=mesh, placements=placements)

    require_contiguous(held(_StridedShard(0, split_factor=2), Shard(0)), 0)
    with pytest.raises(InvalidArgument, match="are not contiguous"):
        require_contiguous(held(Shard(0), _StridedShard(0, split_factor=2)), 0)
