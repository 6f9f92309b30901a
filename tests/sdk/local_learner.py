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


def dawdle(run, seconds):
    """Take so long for the first message that arrives."""
    take, left = run.blobs.on_message, iter([seconds])

    def slow(*message):
        time.sleep(next(left, 0))
        return take(*message)

    run.blobs.on_message = slow


def mistrust(run):
    """Take every message for one that does not prove where it comes from."""
    take = run.blobs.on_message
    run.blobs.on_message = lambda message, sender, proven, cause: take(
        message, sender, False, cause
    )


def cut(run, peer):
    """Reach a peer at a port where nothing listens."""
    circle = run.circle

    def without_peer(exchange):
        found = circle(exchange)
        found.addresses[peer] = "127.0.0.1:1"
        return found

    run.circle = without_peer


@scene
def learn(
    epochs=4,
    step_s=0.0,
    crowd=0,
    deaf=0,
    slow_s=0,
    mistrusts=False,
    cut_off="",
    keep=1.0,
    forgets=False,
    save_at=0,
    **given,
):
    """Learns a plane in rounds of four local steps, and says the weights.

    Rounds take longer until there are `crowd` workers, long enough for another one to come. One
    that `forgets` does not restore the outer optimizer. The link to a worker that is `cut_off` is
    down; one that `mistrusts` takes no message, one with `slow_s` takes the first one late.
    """
    with strata.join(**given) as run:
        weights = {"w": np.zeros(INPUTS), "b": np.zeros(1)}
        local = strata.LocalSteps(run, weights, steps=4, keep=keep)
        deafen(run, deaf)
        if slow_s:
            dawdle(run, slow_s)
        if mistrusts:
            mistrust(run)
        if cut_off:
            cut(run, cut_off)
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
