"""JAX: each process's share of a step as part of global arrays.

    for batch in run.batches("imagenet-1k", global_batch=512, epochs=3):
        batch = global_arrays(batch, sharding)

Every process of a JAX run passes the rows it has; together they are the global batch, laid out over
the devices by the sharding. JAX needs equal shares, so the number of workers should divide the
lanes. jax is imported only when this function is called.
"""

from importlib import import_module
from typing import Any

import numpy as np

from strata.errors import InvalidArgument, Unavailable


def global_arrays(batch: Any, sharding: Any) -> Any:
    """The same tree with its NumPy arrays turned into `jax.Array`s with this sharding."""
    try:
        jax = import_module("jax")
    except ImportError as error:
        raise Unavailable("JAX is not installed", hint="pip install jax") from error

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject:
            raise InvalidArgument(
                f"{leaf!r:.60} is not a numeric array, so it cannot be put on a device",
                hint="select numeric columns, or convert it to numbers in a transform",
            )
        return jax.make_array_from_process_local_data(sharding, leaf)

    return jax.tree.map(placed, batch)
