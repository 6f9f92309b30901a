"""Scenes of workers that train by local steps: `local_learner.py SCENE JSON`, like `trainee.py`."""

import os
import time

import numpy as np
from trainee import main, place, say, scene

import strata

os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"
SAMPLES = 600
INPUTS = 8


def line():
    """Samples on a plane, which the weights have to find."""
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, INPUTS))
    return strata.open_arrays({"x": x, "y": x @ np.arange(INPUTS) + 1}, name="line")


def descend(weights, part, rate=0.1):
    """One local step; the loss before it."""
    off = part["x"] @ weights["w"] + weights["b"] - part["y"]
    weights["w"] -= rate * part["x"].T @ off / len(off)
    weights["b"] -= rate * off.mean()
    return float((off**2).mean())


def deafen(run, count):
    """Connections on which something is told break without an answer, the first so many of them."""
    take, left = run.blobs.on_message, iter(range(count))

    def broken(*message):
        if next(left, None) is not None:
            raise ConnectionAbortedError
        return take(*message)

    run.blobs.on_message = broken


@scene
def learn(epochs=4, step_s=0.0, crowd=0, deaf=0, keep=1.0, forgets=False, save_at=0, **given):
    """Learns a plane in rounds of four local steps, and says the weights.

    Rounds take longer until there are `crowd` workers, long enough for another one to come. One
    that `forgets` does not restore the outer optimizer.
    """
    with strata.join(**given) as run:
        weights = {"w": np.zeros(INPUTS), "b": np.zeros(1)}
        local = strata.LocalSteps(run, weights, steps=4, keep=keep)
        deafen(run, deaf)
        run.restore({"weights": weights} | ({} if forgets else {"outer": local}))
        say("joined", address=run._keeping.own_address(), **place(run))
        for batch in run.batches(line(), global_batch=48, epochs=epochs):
            say("training", **place(run))
            with run.step() as step, local.round(batch) as parts:
                for part in parts:
                    loss = descend(weights, part)
                    time.sleep(step_s if run.world_size >= crowd else 0.2)
                step.log(loss=loss)
            if run.steps == step.number:
                say("again", weights=told(weights), **place(run))
                continue
            say("round", loss=loss, weights=told(weights), **place(run))
            if run.steps == save_at:
                run.save()
        say("done", weights=told(weights), **place(run))
    say("left")


def told(weights):
    return [*weights["w"].tolist(), *weights["b"].tolist()]


if __name__ == "__main__":
    main()
