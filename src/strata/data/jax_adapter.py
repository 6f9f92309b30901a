"""JAX: each process's share of a step as part of global arrays.

    for batch in run.batches("imagenet-1k", global_batch=512, epochs=3):
        batch = global_arrays(batch, sharding)

Every process of a JAX run gives the rows it has; together they are the global batch, laid out over
the devices as the sharding says. JAX wants equal shares, so let the number of workers divide the
lanes. jax is imported when this is called and nowhere else.
"""

from importlib import import_module
from typing import Any

import numpy as np

from strata.errors import InvalidArgument, Unavailable


def global_arrays(batch: Any, sharding: Any) -> Any:
    """The same tree with NumPy arrays made into `jax.Array`s by the sharding."""
    try:
        jax = import_module("jax")
    except ImportError as error:
        raise Unavailable("JAX is not installed", hint="pip install jax") from error

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject:
            raise InvalidArgument(
                f"{leaf!r:.60} is no array of numbers, and cannot be put on a device",
                hint="name the columns of numbers, or make numbers of it in a transform",
            )
        return jax.make_array_from_process_local_data(sharding, leaf)

    return jax.tree.map(placed, batch)
