"""Worker processes that train by local steps: `local_learner.py SCENE JSON`, like `trainee.py`."""

import os
import time

import numpy as np
from trainee import main, place, say, scene

import strata

os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"
SAMPLES = 600
INPUTS = 8


def line():
    """Samples on the plane that the weights have to learn."""
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, INPUTS))
    return strata.open_arrays({"x": x, "y": x @ np.arange(INPUTS) + 1}, name="line")


def descend(weights, part, rate=0.1):
    """Do one local step and return the loss before it."""
    off = part["x"] @ weights["w"] + weights["b"] - part["y"]
    weights["w"] -= rate * part["x"].T @ off / len(off)
    weights["b"] -= rate * off.mean()
    return float((off**2).mean())


def deafen(run, count):
    """Break the connections of the first `count` messages without an answer."""
    take, left = run.blobs.on_message, iter(range(count))

    def broken(*message):
        if next(left, None) is not None:
            raise ConnectionAbortedError
        return take(*message)

    run.blobs.on_message = broken


def dawdle(run, seconds):
    """Delay the first message by `seconds`."""
    take, left = run.blobs.on_message, iter([seconds])

    def slow(*message):
        time.sleep(next(left, 0))
        return take(*message)

    run.blobs.on_message = slow


def mistrust(run):
    """Treat every message as one without a valid token."""
    take = run.blobs.on_message
    run.blobs.on_message = lambda message, sender, proven, cause: take(
        message, sender, False, cause
    )


def cut(run, peer):
    """Use a closed port as the address of a peer."""
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
    """Learn a plane in rounds of four local steps, and print the weights.

    Rounds are slow until there are `crowd` workers, so that another one can join. `forgets` leaves
    the outer optimizer out of the restored state. `cut_off` names a worker whose link is down,
    `mistrusts` rejects every message, `slow_s` delays the first message.
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
        say("joined", address=run._run_state.own_address(), **place(run))
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
