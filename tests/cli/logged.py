"""A real run that logs numbers, images, texts and histograms, and is rolled back once: both of its
workers are killed in step 15."""

STEPS = 24
EVERY = 4

LOGGING = f"""
import os, signal
from pathlib import Path
import numpy as np
import strata

samples = strata.open_arrays({{"x": np.arange({STEPS * 8}, dtype=np.int64)}}, name="numbers")

with strata.join(checkpoint_every=8) as run:
    state = run.restore({{"w": np.zeros(100, np.float32)}})
    for batch in run.batches(samples, global_batch=8, epochs=1):
        if run.steps == 15 and not Path(f"lost{{run.rank}}").exists():
            Path(f"lost{{run.rank}}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with run.step() as step:
            run.average({{"g": np.ones(8, np.float32)}})
            state["w"] += 1
            step.log(loss=1 / (step.number + 1), lr=0.5)
            if step.number % {EVERY} == 0 and run.rank == 0:
                pixels = np.full((4, 6, 3), 10 * step.number, np.uint8)
                step.log(sample=strata.Image(pixels, caption=f"step {{step.number}}"))
                step.log(weights=strata.Histogram(state["w"] + np.arange(100), bins=10))
        if step.applied and run.steps % 12 == 0 and run.rank == 0:
            run.log(note=strata.Text(f"after {{run.steps}} steps"), val=float(run.steps))
"""
