"""Guards that M readers get from N saved parts exactly what they ask for, and plan it quickly."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.checkpoint.format import Manifest
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.parts import commit, write_part
from strata.checkpoint.reshard import (
    Box,
    Layout,
    even_boxes,
    even_cuts,
    overlaps,
    plan_cuts,
)
from strata.checkpoint.sharded import Sharded
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


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 20))
def test_cuts_agree_with_boxes(length, saved, wanted):
    cuts = plan_cuts(even_cuts(length, saved), even_cuts(length, wanted))
    planned = [
        (int(w), int(s), int(start), int(stop))
        for w, s, start, stop in zip(cuts.wanted, cuts.saved, cuts.start, cuts.stop, strict=True)
    ]
    layout = Layout(even_boxes([length], saved))
    expected = [
        (rank, each.index, each.common.offsets[0], each.common.offsets[0] + each.common.shape[0])
        for rank, box in enumerate(even_boxes([length], wanted))
        for each in layout.overlaps(box)
    ]
    assert planned == expected


def test_a_thousand_to_777_is_planned_in_a_second():
    begun = time.perf_counter()
    for index in range(200):
        length = 1_000_003 + index
        cuts = plan_cuts(even_cuts(length, 1_000), even_cuts(length, 777))
        assert len(cuts.saved) == 1_000 + 777 - 1
        assert int((cuts.stop - cuts.start).sum()) == length
    assert time.perf_counter() - begun < 1.0


def test_one_rank_plans_its_own_share_in_a_second():
    begun = time.perf_counter()
    for index in range(20):
        shape = [1_000_003 + index, 64]
        layout = Layout(even_boxes(shape, 1_000))
        assert len(layout.overlaps(even_boxes(shape, 777)[400])) in (2, 3)
    assert time.perf_counter() - begun < 1.0
