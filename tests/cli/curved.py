"""A real run whose metrics are known: each worker writes what it logged to a file.

Both workers are killed in step 15, when the checkpoint of step 8 is committed, so the steps from
there on are undone and trained again with other values. The loss of step 20 is not a number, and
that of rank 1 has a spike in step 5.
"""

import json
from collections import defaultdict
from pathlib import Path

from tests.cli.runs import run, script

STEPS = 24
LOST_AT = 15
SPIKE_AT, SPIKE = 5, 100.0
NAN_AT = 20
SAVED_AT = 8
TASK = "script-1"

LOGGING = f"""
import json, math, os, signal, time
from pathlib import Path
import numpy as np
import strata

samples = strata.open_arrays({{"x": np.arange({STEPS * 8}, dtype=np.int64)}}, name="numbers")

with strata.join(checkpoint_every={SAVED_AT}) as run:
    run.log_config({{
        "optimizer": {{"lr": 0.5}}, "tokens_per_sample": 16,
        "flops_per_token": 3e6, "peak_flops": 1e12,
    }})
    state = run.restore({{"w": np.zeros(100, np.float32)}})
    attempt = sum(Path(f"lost{{run.rank}}-{{n}}").exists() for n in range(9))
    out = open(f"logged-{{run.rank}}-{{attempt}}.jsonl", "a")
    for batch in run.batches(samples, global_batch=8, epochs=1):
        if run.steps == {LOST_AT} and not Path(f"lost{{run.rank}}-0").exists():
            while not list(Path("data/checkpoints").glob("*/*/step-*.json")):
                time.sleep(0.01)
            Path(f"lost{{run.rank}}-0").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with run.step() as step:
            run.average({{"g": np.ones(8, np.float32)}})
            state["w"] += 1
            loss = 1 / (step.number + 1) + 0.01 * run.rank + attempt
            if step.number == {SPIKE_AT} and run.rank == 1:
                loss = {SPIKE}
            if step.number == {NAN_AT}:
                loss = math.nan
            step.log(loss=loss, lr=0.5 * 0.9 ** step.number)
        if step.applied:
            out.write(json.dumps([step.number, loss]) + "\\n")
            out.flush()
            if run.steps % 12 == 0 and run.rank == 0:
                run.log(val=float(run.steps))
"""


def logged_losses(folder: Path) -> list[dict[int, list[float]]]:
    """The losses that both workers wrote to files, by step, before and after they were killed."""
    found = []
    for attempt in (0, 1):
        by_step = defaultdict(list)
        for rank in (0, 1):
            for line in (folder / f"logged-{rank}-{attempt}.jsonl").read_text().splitlines():
                step, loss = json.loads(line)
                by_step[step].append(loss)
        found.append(dict(by_step))
    return found


def curved_run(folder: Path) -> Path:
    """Run the script in a folder."""
    name = script(folder, LOGGING)
    code, output = run(folder, name, "--workers", "2", "--data-dir", str(folder / "data"))
    assert code == 0, output
    return folder
