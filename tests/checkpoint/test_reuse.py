"""Guards that unchanged tensors are not written again, and outlive the checkpoint they were written
for.
"""

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.transfer import copy_checkpoint
from strata.errors import Corrupt
from strata.storage.folder import LocalStorage

FROZEN = np.arange(500_000, dtype=np.float32)


def state(number):
    """A frozen base and a small part that is trained."""
    return {"base": FROZEN, "adapter": np.full(30_000, number, np.float32), "step": number}


def saved(manager, *numbers):
    for number in numbers:
        manager.save(state(number), step=number)
        manager.wait_pending()


def test_frozen_tensors_are_written_once_and_survive_retention(storage):
    with CheckpointManager(storage, keep_count=1) as manager:
        saved(manager, 1, 2, 3, 4, 5)
        (info,) = manager.all_checkpoints()
        assert info.new_bytes < FROZEN.nbytes / 4
        assert info.size_bytes == info.new_bytes + FROZEN.nbytes
        loaded = manager.load()
        assert (loaded["base"] == FROZEN).all()
        assert (loaded["adapter"] == 5).all()
        with manager.open() as reader:
            assert reader.verify() == info.size_bytes
        assert [each.name.partition("/")[2] for each in storage.walk(info.checkpoint_id)] == [
            "kept-00000-0.safetensors",
            "part-00000.safetensors",
        ]


def test_change_at_any_offset_is_written(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        saved(manager, 1)
        changed = FROZEN.copy()
        changed[250_000] += 1
        manager.save({**state(2), "base": changed}, step=2)
        manager.wait_pending()
        assert manager.latest().size_bytes > FROZEN.nbytes
        assert (manager.load()["base"] == changed).all()


def test_everything_is_written_if_the_last_checkpoint_is_gone(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        saved(manager, 1)
        first = manager.latest().checkpoint_id
        manager.storage.delete(f"{first}.json")
        manager.storage.delete_folder(first)
        saved(manager, 2)
        assert manager.latest().size_bytes > FROZEN.nbytes
        assert (manager.load()["base"] == FROZEN).all()


def test_damage_to_reused_tensors_is_noticed(tmp_path):
    with CheckpointManager(tmp_path, keep_count=1) as manager:
        saved(manager, 1, 2)
        (kept,) = tmp_path.glob("*/kept-*")
        image = bytearray(kept.read_bytes())
        image[5_000] ^= 1
        kept.write_bytes(image)
        with pytest.raises(Corrupt, match="kept-00000-0"):
            manager.load()


def test_copied_checkpoint_includes_reused_tensors(tmp_path):
    with CheckpointManager(tmp_path / "near", keep_count=1) as manager:
        saved(manager, 1, 2)
        with manager.open() as reader:
            copy_checkpoint(manager.storage, LocalStorage(tmp_path / "far"), reader.manifest)
    with CheckpointManager(tmp_path / "far") as manager:
        assert (manager.load()["base"] == FROZEN).all()


def test_copy_skips_files_that_the_target_has(tmp_path, storage):
    sent = []
    put_stream, storage.put_stream = (
        storage.put_stream,
        lambda name, *rest, **options: (
            sent.append(name.partition("/")[2]),
            put_stream(name, *rest, **options),
        ),
    )
    with CheckpointManager(tmp_path / "near", keep_count=1) as manager:
        for number in (1, 2, 3):
            saved(manager, number)
            with manager.open() as reader:
                copy_checkpoint(manager.storage, storage, reader.manifest)
    assert sent == ["part-00000.safetensors"] * 3
    with CheckpointManager(storage, keep_count=1) as manager:
        assert (manager.load()["base"] == FROZEN).all()
        with manager.open() as reader:
            reader.verify()
