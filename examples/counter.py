"""Fits a line by gradient descent, and survives the loss of any worker.

    strata run examples/counter.py --workers 4
    strata run examples/counter.py --workers 4 --config steps=500

The data of step s is a function of s alone, so a worker that comes late can compute the model of
any step for itself: that is how a replacement catches up here. A real model would be fetched from a
peer or a checkpoint instead.
"""

import time

import numpy as np

import strata

TRUTH = np.array([2.0, -1.0, 0.5])
BATCH = 64
LEARNING_RATE = 0.05


def train_step(model, step):
    """One step: the model after it, and the loss before it."""
    random = np.random.default_rng(step)
    inputs = random.normal(size=(BATCH, TRUTH.size))
    error = inputs @ model - inputs @ TRUTH
    return model - LEARNING_RATE * inputs.T @ error / BATCH, float(np.mean(error**2))


def model_after(steps):
    """The model that so many steps lead to."""
    model = np.zeros_like(TRUTH)
    for step in range(steps):
        model, _ = train_step(model, step)
    return model


def main():
    with strata.join() as run:
        steps = int(run.config.get("steps", 200))
        step_s = float(run.config.get("step_s", 0.02))
        model = model_after(run.recovery.step)
        while run.steps < steps:
            step = run.steps
            model, loss = train_step(model, step)
            time.sleep(step_s)  # stands in for the work that a larger model would be
            if run.rank == 0 and (step + 1) % 50 == 0:
                print(f"step {step + 1}: loss {loss:.6f}")
            try:
                if not run.mark_step(loss=loss):
                    break
            except strata.GenerationChanged:
                recovery = run.sync()
                if not recovery.in_place:
                    model = model_after(recovery.step)
    if run.steps >= steps:
        assert np.array_equal(model, model_after(steps)), "a step was lost or applied twice"


if __name__ == "__main__":
    main()
