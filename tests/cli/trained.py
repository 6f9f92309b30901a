"""A real run that several test files read: two workers, barriers, checkpoints, and one loss."""

DATA_S = 0.02
STEPS = 60

TRAINING = f"""
import os, signal, time
from pathlib import Path
import numpy as np
import strata

samples = strata.open_arrays({{"x": np.arange({STEPS * 16}, dtype=np.int64)}}, name="numbers")

with strata.join(checkpoint_every=10) as run:
    state = run.restore({{"w": np.zeros(500_000, np.float32)}})
    for batch in run.batches(samples, batch_size=8, epochs=1):
        if run.steps == 25 and run.rank == 1 and not Path("lost").exists():
            Path("lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with run.timing("data"):
            time.sleep({DATA_S})
        try:
            run.average({{"g": np.ones(8, np.float32)}}, len(batch["x"]))
        except strata.GenerationChanged:
            continue
        state["w"] += 1
        run.mark_step(loss=1.0)
        if run.steps % 20 == 0:
            run.barrier(f"after-{{run.steps}}")
        if run.save_due():
            run.save(state)
"""
