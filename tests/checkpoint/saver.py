"""A process that saves in a loop until it is killed; prints each committed step."""

import sys

import numpy as np

from strata.checkpoint.manager import CheckpointManager


def state_at(step: int) -> dict:
    return {"step": step, "a": np.full(1_500_000, step, np.int32), "b": np.full(7, step / 2)}


if __name__ == "__main__":
    manager = CheckpointManager(sys.argv[1], keep_count=int(sys.argv[2]))
    latest = manager.latest()
    step = latest.step if latest is not None else 0
    while True:
        step += 1
        manager.save(state_at(step), step=step)
        if step % 2:
            manager.wait_pending()
            print(step, flush=True)
