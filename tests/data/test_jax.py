"""Guards the JAX helper: NumPy trees become global arrays with the values of their rows."""

import numpy as np
import pytest

from strata.data.reading import jax_arrays
from strata.data.reading.batch_iterator import Batches
from strata.data.reading.jax_arrays import global_arrays
from strata.data.source_dataset import open_arrays
from strata.errors import InvalidArgument, Unavailable


def test_a_batch_becomes_arrays_on_the_devices():
    jax = pytest.importorskip("jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    rows = {"n": np.arange(64), "v": np.ones((64, 3), np.float32)}
    dataset = open_arrays(rows)
    with Batches(dataset, dataset.order(8), stop_step=8) as batches:
        for batch in batches:
            placed = global_arrays(batch, sharding)
            assert isinstance(placed["v"], jax.Array)
            assert placed["n"].tolist() == batch["n"].tolist()
            assert placed["v"].sharding == sharding
    with pytest.raises(InvalidArgument, match="cannot be put on a device"):
        global_arrays({"text": np.array(["a"], object)}, sharding)


def test_missing_jax_has_a_hint(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(jax_arrays, "import_module", missing)
    with pytest.raises(Unavailable, match="pip install jax"):
        global_arrays({}, None)
