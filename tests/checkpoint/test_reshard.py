"""Guards that M readers get from N saved parts exactly what they ask for, and plan it quickly."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.checkpoint.format import Manifest, Shard
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.parts import commit, write_part
from strata.checkpoint.reshard import Box, Layout, even_boxes, overlaps
from strata.checkpoint.staging import Staging
from strata.checkpoint.tree import flatten
from strata.errors import Corrupt
from strata.storage.local import LocalStorage
from tests.checkpoint.conftest import assert_same

WHOLE = np.arange(60 * 14, dtype=np.float32).reshape(60, 14)


def save_sharded(storage, boxes, missing=()):
    """What N ranks would write: each its box of one tensor, and a copy of a replicated one."""
    parts = []
    for rank, box in enumerate(boxes):
        if rank in missing:
            continue
        state = {"w": WHOLE[box.slices], "replicated": np.arange(9), "rank": rank}
        shards = {"w": Shard(list(WHOLE.shape), box.offsets)}
        capture = Staging().capture(flatten(state), {}, shards)
        parts.append(write_part(storage, "step-00000001-n", rank, capture))
    commit(
        storage,
        Manifest(
            checkpoint_id="step-00000001-n",
            step=1,
            epoch=0,
            sequence=1,
            created_ns=1,
            size_bytes=sum(part.size_bytes for part in parts),
            world_size=len(boxes),
            parts=parts,
        ),
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("saved", "wanted"), [(1, 3), (3, 1), (4, 3), (7, 5), (5, 14)])
def test_m_read_what_n_saved(tmp_path, axis, saved, wanted):
    save_sharded(LocalStorage(tmp_path), even_boxes([60, 14], saved, axis))
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        assert_same(reader.tensor("w"), WHOLE)
        assert_same(reader.tensor("replicated"), np.arange(9))
        for other in (0, 1):
            for box in even_boxes([60, 14], wanted, other):
                assert_same(reader.slice("w", box.offsets, box.shape), WHOLE[box.slices].copy())
        assert reader.load(rank=saved - 1)["rank"] == saved - 1


def test_only_the_parts_that_hold_some_of_it_are_opened(tmp_path):
    save_sharded(LocalStorage(tmp_path), even_boxes([60, 14], 6))
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        reader.slice("w", [11, 0], [2, 14])
        assert len(reader._open) == 2 - (11 // 10 == 12 // 10)


def test_a_grid_of_boxes_is_put_together(tmp_path):
    rows, columns = even_boxes([60, 14], 3, 0), even_boxes([60, 14], 2, 1)
    grid = [row.common(column) for row in rows for column in columns]
    save_sharded(LocalStorage(tmp_path), grid)
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        assert_same(reader.tensor("w"), WHOLE)
        assert_same(reader.slice("w", [15, 5], [30, 4]), WHOLE[15:45, 5:9].copy())


def test_a_missing_part_is_noticed(tmp_path):
    save_sharded(LocalStorage(tmp_path), even_boxes([60, 14], 4), missing={2})
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        with pytest.raises(Corrupt, match="lacks some of 'w'"):
            reader.tensor("w")
        assert_same(reader.slice("w", [0, 0], [20, 14]), WHOLE[:20])


@settings(deadline=None)
@given(st.data())
def test_a_plan_covers_what_is_wanted_exactly_once(data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    boxes = even_boxes(shape, data.draw(st.integers(1, 12)), axis)
    offsets = [data.draw(st.integers(0, length - 1)) for length in shape]
    lengths = [data.draw(st.integers(1, n - o)) for n, o in zip(shape, offsets, strict=True)]
    wanted = Box(offsets, lengths)
    counts = np.zeros(shape, int)
    for each in overlaps(boxes, wanted):
        counts[each.common.slices] += 1
        assert each.inner.within(boxes[each.index].shape)
        assert each.target.within(wanted.shape)
    expected = np.zeros(shape, int)
    expected[wanted.slices] = 1
    assert (counts == expected).all()


def test_a_thousand_to_777_is_planned_in_a_second():
    tensors, saved, wanted = 20, 1_000, 777
    begun = time.perf_counter()
    found = 0
    for index in range(tensors):
        shape = [1_000_003 + index, 64]
        layout = Layout(even_boxes(shape, saved))
        found += sum(len(layout.overlaps(box)) for box in even_boxes(shape, wanted))
    assert time.perf_counter() - begun < 1.0 * 3, "three times the bound, for a loaded machine"
    assert found == tensors * (saved + wanted - 1)
