"""The training script of the fault matrix: its state counts how often each sample was applied.

It trains until the file `finish` of its task is there; the workers agree on the step, because each
adds what it saw to the average of that step. Every applied step is a line in the worker's ledger,
with the samples that this worker trained and the counts of the whole model: so the samples are
counted by the script, with nothing of what Strata records.

Other files let a fault meet a certain moment: `meet` (all workers go to a barrier, and rank 1 does
not arrive while `hold` is there), `hang-WORKER` (its main thread waits) and `hold_save` (parts of
checkpoints are not written while it is there).
"""

import json
import os
import sys
import time

import numpy as np

import strata
from strata.storage.folder import LocalStorage

SAMPLES = 64
GLOBAL_BATCH = 8


def pause(folder):
    """The seconds that a step takes."""
    try:
        with open(f"{folder}/step_s") as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.02


def wait_while(file):
    while os.path.exists(file):
        time.sleep(0.01)


def hold_saves(folder):
    """Write no part of a checkpoint while the file `hold_save` is there."""
    put_stream = LocalStorage.put_stream

    def held(storage, *given, **more):
        wait_while(f"{folder}/hold_save")
        return put_stream(storage, *given, **more)

    LocalStorage.put_stream = held


def main(folder, how):
    hold_saves(folder)
    samples = strata.open_arrays({"x": np.arange(SAMPLES)}, name="numbers")
    with strata.join(**how) as run:
        name = f"{run.worker_id}-{os.environ.get('STRATA_START', '0')}-{os.getpid()}"
        fresh = {"applied": np.zeros(SAMPLES), "finish": np.zeros(1), "weight": np.zeros(2_000)}
        state = run.restore(fresh)
        for batch in run.batches(samples, global_batch=GLOBAL_BATCH, epochs=2_000):
            counted = np.bincount(batch["x"], minlength=SAMPLES).astype(float)
            told = [float(os.path.exists(f"{folder}/{each}")) for each in ("finish", "meet")]
            time.sleep(pause(folder))
            wait_while(f"{folder}/hang-{run.worker_id}")
            generation = run.generation  # afterwards it is 0 until this worker has joined the next
            with run.step() as step:
                mean = run.average({"applied": counted, "told": np.array(told)})
                state["applied"] += np.rint(mean["applied"] * run.world_size)
                state["finish"] += mean["told"][0]
                state["weight"] += 1
                step.log(loss=1.0)
            if run.steps == step.number:
                continue  # the step was undone: its batch comes again
            line = {"step": run.steps, "generation": generation, "worker": run.worker_id}
            line |= {"own": batch["x"].tolist(), "applied": state["applied"].tolist()}
            with open(f"{folder}/ledger-{name}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            if mean["told"][1] > 0:
                if run.rank == 1:
                    wait_while(f"{folder}/hold")
                run.barrier(f"step-{run.steps}")
            if state["finish"][0] > 0:
                break


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
