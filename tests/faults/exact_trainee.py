"""The training script of the fault matrix: its state counts how often each sample was applied.

It trains until the file `finish` of its task is there; the workers agree on the step, because each
adds what it saw to the average of that step. Every applied step is a line in the worker's ledger,
with the samples that this worker trained and the counts of the whole model: so the samples are
counted by the script, with nothing of what Strata records.
"""

import json
import os
import sys
import time

import numpy as np

import strata

SAMPLES = 64
GLOBAL_BATCH = 8


def pause(folder):
    """The seconds that a step takes."""
    try:
        with open(f"{folder}/step_s") as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.02


def main(folder, how):
    samples = strata.open_arrays({"x": np.arange(SAMPLES)}, name="numbers")
    with strata.join(**how) as run:
        start = os.environ.get("STRATA_START", "0")
        ledger = f"{folder}/ledger-{run.worker_id}-{start}-{os.getpid()}.jsonl"
        fresh = {"applied": np.zeros(SAMPLES), "finish": np.zeros(1), "weight": np.zeros(2_000)}
        state = run.restore(fresh)
        for batch in run.batches(samples, global_batch=GLOBAL_BATCH, epochs=2_000):
            counted = np.bincount(batch["x"], minlength=SAMPLES).astype(float)
            told = np.full(1, float(os.path.exists(f"{folder}/finish")))
            time.sleep(pause(folder))
            with run.step() as step:
                mean = run.average({"applied": counted, "finish": told})
                state["applied"] += np.rint(mean["applied"] * run.world_size)
                state["finish"] += mean["finish"]
                state["weight"] += 1
                step.log(loss=1.0)
            if run.steps == step.number:
                continue  # the step was undone: its batch comes again
            line = {"step": run.steps, "generation": run.generation, "worker": run.worker_id}
            line |= {"own": batch["x"].tolist(), "applied": state["applied"].tolist()}
            with open(ledger, "a") as file:
                file.write(json.dumps(line) + "\n")
            if state["finish"][0] > 0:
                break


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
