"""Fit a line by gradient descent, and survive the loss of any worker.

    strata run examples/counter.py --workers 4
    strata run examples/counter.py --workers 4 --config steps=500

The shortest script: no dataset, no framework. The data of step s depends on s alone, so the script
can compute at the end what the model must be.
"""

import time

import numpy as np

import strata

TRUTH = np.array([2.0, -1.0, 0.5])
BATCH = 64
LEARNING_RATE = 0.05


def train_step(model, number):
    """Do one step; returns the new model, and the loss before it."""
    random = np.random.default_rng(number)
    inputs = random.normal(size=(BATCH, TRUTH.size))
    error = inputs @ model - inputs @ TRUTH
    return model - LEARNING_RATE * inputs.T @ error / BATCH, float(np.mean(error**2))


def model_after(steps):
    """The model after `steps` steps."""
    model = np.zeros_like(TRUTH)
    for number in range(steps):
        model, _ = train_step(model, number)
    return model


def main():
    with strata.join() as run:
        steps = int(run.config.get("steps", 200))
        step_s = float(run.config.get("step_s", 0.02))
        run.restore(model=np.zeros_like(TRUTH))
        while run.steps < steps:
            with run.step() as step:
                model, loss = train_step(run.state["model"], step.number)
                time.sleep(step_s)  # simulates the work of a larger model
                loss = run.average(loss)
                run.state = {"model": model}
                step.log(loss=loss)
            if step.applied and run.rank == 0 and run.steps % 50 == 0:
                print(f"step {run.steps}: loss {loss:.6f}")
        assert np.array_equal(run.state["model"], model_after(steps)), "a step was lost or repeated"


if __name__ == "__main__":
    main()
