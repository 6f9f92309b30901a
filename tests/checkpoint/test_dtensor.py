"""Guards state dicts of FSDP2 and DTensors: what N ranks saved, M restore, each its pieces."""

import subprocess
import sys
from pathlib import Path

import pytest

from strata.checkpoint.parts import commit
from strata.checkpoint.sidecar import manifest_of, read_sidecars
from strata.storage.local import LocalStorage
from tests.checkpoint.fsdp import CHECKPOINT
from tests.sdk.harness import free_port

SCRIPT = Path(__file__).with_name("fsdp.py")


def play(what, world_size, folder):
    """What every rank printed last."""
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
