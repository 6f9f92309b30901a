"""A manager on each kind of storage, and a state with one value of each type."""

import itertools

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.storage.folder import LocalStorage
from strata.storage.s3 import S3Storage
from tests.storage.server import BUCKET

_prefixes = itertools.count()


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return LocalStorage(tmp_path / "checkpoints")
    settings = request.getfixturevalue("s3_settings")
    return S3Storage(BUCKET, f"checkpoints/{next(_prefixes)}", settings)


@pytest.fixture
def manager(storage):
    with CheckpointManager(storage) as opened:
        yield opened


@pytest.fixture
def local(tmp_path):
    with CheckpointManager(tmp_path / "checkpoints") as opened:
        yield opened


@pytest.fixture
def state():
    return sample_state(1)


def sample_state(seed: int) -> dict:
    random = np.random.default_rng(seed)
    return {
        "model": {
            "weight": random.standard_normal((300, 7)).astype(np.float32),
            "bias": random.standard_normal(7).astype(np.float16),
            "layers": [random.integers(0, 9, 5), random.integers(0, 9, (0, 4))],
        },
        "optimizer": {"state": {0: {"exp_avg": random.standard_normal(9)}}, "betas": (0.9, 0.999)},
        "seed": seed,
        "name": "trial ü",
        "best": None,
        "raw": b"some bytes",
    }


def assert_same(got, wanted):
    """Assert the same structure, types and values, bit for bit."""
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for key, value in wanted.items():
            assert_same(got[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()
    elif isinstance(wanted, float) and wanted != wanted:
        assert got != got
    else:
        assert got == wanted
