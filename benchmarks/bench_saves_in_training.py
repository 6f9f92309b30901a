"""Cost of a save every two seconds to training on a GPU: the longest stall, and the time lost.

One process trains GPT-2-small in single precision (1.5 GB with AdamW's moments) in `run.step()`
blocks, once without saves and once with a save every two seconds. A stall is how much longer a step
that begins a save took than the median step; the first save counts. Needs a CUDA device.

Prints JSON. Exits with 1 when a stall is above 20 ms or more than 2 % of the training is lost.
"""

import os
import statistics
import sys
import tempfile
import time

import torch
from bench_data_parallel import GPU, Side
from common import show

import strata

SECONDS = 24
EVERY_S = 2.0
STALL_MS, LOST = 20.0, 0.02


def steps_of(run: strata.Run, side: Side, seconds: float) -> list[float]:
    """The milliseconds of each step until the time is over."""
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        with run.step():
            side.step()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - begun) * 1e3)
    return took


def trained(interval_s: float | None) -> tuple[list[float], list[float]]:
    """The steps of one run, and the duration of each capture of a state."""
    os.environ["STRATA_CHECKPOINT_ADAPTIVE"] = "false"
    with strata.join(checkpoint_interval=interval_s) as run:
        side = Side({**GPU, "batch": 8}, "cuda", torch.float32)
        for _ in range(30):
            side.step()  # the device warms up
        run.restore(model=side.model, optimizer=side.optimizer)
        stalls: list[float] = []
        save = run._run_state.saver.save

        def timed(*given: object) -> float:
            begun = time.perf_counter()
            found = save(*given)
            stalls.append((time.perf_counter() - begun) * 1e3)
            return found

        run._run_state.saver.save = timed
        took = steps_of(run, side, SECONDS)
        return took, stalls.copy()  # the save at the end of the run stops no step


def main() -> None:
    os.chdir(tempfile.mkdtemp())
    torch.set_float32_matmul_precision("high")
    without, _ = trained(None)
    saving, stalls = trained(EVERY_S)
    lost = statistics.mean(saving) / statistics.mean(without) - 1
    found = {
        "device": torch.cuda.get_device_name(),
        "step_ms": round(statistics.median(without), 2),
        "saves": len(stalls),
        "stalls_ms": [round(each, 1) for each in stalls],
        "lost": round(lost, 4),
        "longest_step_ms": round(max(saving), 1),
    }
    show("saves_in_training", found)
    sys.exit(max(stalls, default=STALL_MS + 1) > STALL_MS or lost > LOST)


if __name__ == "__main__":
    main()
