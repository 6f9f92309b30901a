"""Guards that M readers get exactly what they request from N saved parts, with few comparisons."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.manifest import Manifest
from strata.checkpoint.read.box_overlaps import Box, BoxIndex, even_cuts, overlaps
from strata.checkpoint.state.sharded_tensors import Sharded
from strata.checkpoint.state.state_tree import flatten
from strata.checkpoint.write.part_writer import commit, write_part
from strata.checkpoint.write.staging import Staging
from strata.errors import Corrupt
from strata.storage.folder import LocalStorage
from tests.checkpoint.conftest import assert_same

WHOLE = np.arange(60 * 14, dtype=np.float32).reshape(60, 14)


def even_boxes(shape, count, axis=0):
    """A shape cut into `count` boxes along an axis, as evenly as possible."""
    return [
        Box(
            [start if each == axis else 0 for each in range(len(shape))],
            [stop - start if each == axis else length for each, length in enumerate(shape)],
        )
        for start, stop in pairwise(even_cuts(shape[axis], count).tolist())
    ]


def save_sharded(storage, boxes, missing=()):
    """Write what N ranks would: each its box of one tensor, and a copy of a replicated one."""
    parts = []
    for rank, box in enumerate(boxes):
        if rank in missing:
            continue
        own = Sharded(WHOLE[box.slices], list(WHOLE.shape), box.offsets)
        state = {"w": own, "replicated": np.arange(9), "rank": rank}
        capture = Staging().capture(flatten(state), {})
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
def test_m_readers_get_what_n_ranks_saved(tmp_path, axis, saved, wanted):
    save_sharded(LocalStorage(tmp_path), even_boxes([60, 14], saved, axis))
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        assert_same(reader.tensor("w"), WHOLE)
        assert_same(reader.tensor("replicated"), np.arange(9))
        for other in (0, 1):
            for box in even_boxes([60, 14], wanted, other):
                assert_same(reader.slice("w", box.offsets, box.shape), WHOLE[box.slices].copy())
        assert reader.load(rank=saved - 1)["rank"] == saved - 1


def test_slice_opens_only_the_parts_that_hold_it(tmp_path):
    save_sharded(LocalStorage(tmp_path), even_boxes([60, 14], 6))
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        reader.slice("w", [11, 0], [2, 14])
        assert len(reader._open) == 2 - (11 // 10 == 12 // 10)


def test_grid_of_boxes_is_joined(tmp_path):
    rows, columns = even_boxes([60, 14], 3, 0), even_boxes([60, 14], 2, 1)
    grid = [row.common(column) for row in rows for column in columns]
    save_sharded(LocalStorage(tmp_path), grid)
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        assert_same(reader.tensor("w"), WHOLE)
        assert_same(reader.slice("w", [15, 5], [30, 4]), WHOLE[15:45, 5:9].copy())


def test_missing_part_raises_corrupt(tmp_path):
    save_sharded(LocalStorage(tmp_path), even_boxes([60, 14], 4), missing={2})
    with CheckpointManager(tmp_path) as manager, manager.open() as reader:
        with pytest.raises(Corrupt, match="is missing parts of 'w'"):
            reader.tensor("w")
        assert_same(reader.slice("w", [0, 0], [20, 14]), WHOLE[:20])


@settings(deadline=None)
@given(st.data())
def test_overlaps_cover_the_wanted_box_exactly_once(data):
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


def test_one_of_777_ranks_compares_few_of_1000_saved_boxes(monkeypatch):
    layout = BoxIndex(even_boxes([1_000_003, 64], 1_000))
    wanted = even_boxes([1_000_003, 64], 777)[400]
    compared = []
    common = Box.common
    monkeypatch.setattr(Box, "common", lambda a, b: compared.append(1) or common(a, b))
    assert len(layout.overlaps(wanted)) in (2, 3)
    assert len(compared) <= 4
