"""The global random generators of Python, NumPy and PyTorch (CPU): seed, compare, restore.

Code that reads samples draws from these generators (flips, crops, masks). Seeding them for each
sample makes a draw depend on the sample's position alone, and not on the process that reads it.
Restoring them afterwards keeps the training script's own generators (dropout, initialisation)
where they were. Generators of CUDA devices are not touched.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from strata.data.torch.loader_adapter import import_torch


def seed_generators(word: int) -> None:
    """Seed the three generators from one 64-bit number; about 6 µs."""
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    import_torch("torch").default_generator.manual_seed(word)


@contextmanager
def restored_generators() -> Iterator[None]:
    """Give the three generators back the state that they had before the block."""
    generator = import_torch("torch").default_generator
    python, numpy, torch = (
        random.getstate(),
        np.random.get_state(legacy=False),
        generator.get_state(),
    )
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        generator.set_state(torch)


def generator_states() -> tuple[Any, ...]:
    """The states of the three generators, in a form that can be compared with ==."""
    numpy: Any = np.random.get_state(legacy=False)
    inner = ((name, np.asarray(value).tobytes()) for name, value in numpy["state"].items())
    torch = import_torch("torch").default_generator.get_state().numpy().tobytes()
    gauss = (numpy.get("has_gauss"), numpy.get("gauss"))
    return random.getstate(), tuple(inner), gauss, torch
