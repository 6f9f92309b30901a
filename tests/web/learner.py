"""The training script of the tests of curves: it logs values that depend on the step and the rank,
and each worker writes what it logged to a file of its own."""

import json
import math
import time
from pathlib import Path

import numpy as np

import strata

BATCH, SHAPES = 8, 24


def loss_of(step, rank, lr):
    """The loss of a worker in a step: it falls, with a ripple that differs between ranks."""
    return 2.5 * math.exp(-lr * step / 40) + 0.05 * math.sin(step * 0.9 + rank) + 0.3 + 0.02 * rank


def logged_by(run):
    """The file of a worker in the folder of its task."""
    return Path(f"logged-{run.task_id}-{run.rank}.jsonl")


def main():
    with strata.join() as run, logged_by(run).open("a") as out:
        config = {"steps": 200, "step_s": 0.01, "lr": 0.5, "nan_at": -1} | run.config
        numbers = np.arange(config["steps"] * BATCH, dtype=np.int64)
        data = strata.open_arrays({"x": numbers}, name=f"numbers-{config['steps']}")
        run.log_config({"tokens_per_sample": 128, "model": {"width": config.get("width", 64)}})
        state = run.restore({"w": np.zeros(200, np.float32)})
        for _ in run.batches(data, global_batch=BATCH, epochs=1):
            with run.step() as step:
                number = step.number
                run.average({"g": np.ones(8, np.float32)})
                state["w"] += np.sin(np.arange(200, dtype=np.float32) * number) * 0.01
                loss = loss_of(number, run.rank, config["lr"])
                if number == config["nan_at"]:
                    loss = math.nan
                step.log(
                    loss=loss,
                    lr=config["lr"] * 0.99**number,
                    grad_norm=1 + abs(math.sin(number * 0.37 + run.rank)),
                )
            if step.applied:
                out.write(json.dumps([number, loss]) + "\n")
                out.flush()
                if run.rank == 0 and run.steps % 20 == 0:
                    log_media(run, state["w"], config)
            time.sleep(config["step_s"])


def log_media(run, weights, config):
    """An evaluation: a metric, a picture, a text and a histogram."""
    rows, columns = np.mgrid[0:SHAPES, 0:SHAPES]
    ring = np.hypot(rows - SHAPES / 2, columns - SHAPES / 2) < SHAPES / 4 + run.steps % 40 / 8
    pixels = np.stack([ring * 220, rows * 9, columns * 9], axis=2).astype(np.uint8)
    val_loss = loss_of(run.steps, 0, config["lr"]) + 0.1
    run.log(
        val_loss=val_loss,
        sample=strata.Image(pixels, caption=f"ring after {run.steps} steps"),
        answer=strata.Text(f"After {run.steps} steps the model answers: {'x' * (run.steps // 20)}"),
        weights=strata.Histogram(weights, bins=40),
    )


if __name__ == "__main__":
    main()
