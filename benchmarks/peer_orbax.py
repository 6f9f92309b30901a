"""Run by bench_checkpoint.py in Orbax's own environment: saves as much in as many tensors.

    python peer_orbax.py FOLDER MIB TENSORS

For each line on stdin it saves once and prints JSON: how long the call took, and how long it was
until the checkpoint was complete. Imports nothing of Strata.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp


def main():
    folder, mib, tensors = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    random, count = np.random.default_rng(7), mib * 2**20 // tensors // 4
    state = {
        f"layer-{i:03d}": jnp.asarray(random.standard_normal(count, np.float32))
        for i in range(tensors)
    }
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    for _ in sys.stdin:
        began = time.perf_counter()
        checkpointer.save(folder / "orbax", args=ocp.args.StandardSave(state))
        stall_s = time.perf_counter() - began
        checkpointer.wait_until_finished()
        total_s = time.perf_counter() - began
        shutil.rmtree(folder / "orbax")
        print(json.dumps({"stall_s": stall_s, "total_s": total_s}), flush=True)


if __name__ == "__main__":
    main()
