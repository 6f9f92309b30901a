"""Copies a part of a tensor, given as bytes, into the memory of a view."""

import numpy as np

from strata.checkpoint.read.box_overlaps import Box
from strata.checkpoint.read.read_targets import TargetView
from strata.checkpoint.state.array_bytes import Bytes


def copy_box(data: Bytes, box: Box, view: TargetView) -> None:
    """Copy what a view wants of the bytes of a box, in C order, into the memory of the view."""
    common = view.box.common(box)
    if common is None:
        return
    element = f"V{view.tensor.item_bytes}"
    target = np.frombuffer(view.memory, element).reshape(view.box.shape)
    source = data.view(element).reshape(box.shape)
    target[common.relative_to(view.box).slices] = source[common.relative_to(box).slices]
