"""Train a small model with JAX under `strata run` in tests; `plain` does the same without Strata.

The state is a pytree with a NamedTuple, as in Optax, and each step makes a new one. A step trains
all samples, so their order does not matter to the plain process. Config: `die_at` is the step in
which the last rank kills itself in generation 1, `folder` is for the result.
"""

import os
import signal
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import strata

STEPS, SAMPLES = 24, 96


class Moments(NamedTuple):
    count: jax.Array
    mu: dict
    nu: dict


def columns():
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, 6)).astype(np.float32)
    return {"x": x, "y": (x @ random.normal(size=6)).astype(np.float32)}


def new_state():
    weights = {"w": jnp.full(6, 0.1), "b": jnp.zeros(())}
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"weights": weights, "moments": Moments(jnp.zeros((), jnp.int32), zeros, zeros)}


def loss_of(weights, x, y):
    return jnp.mean((x @ weights["w"] + weights["b"] - y) ** 2)


gradient_of = jax.jit(jax.value_and_grad(loss_of))


@jax.jit
def update(state, gradient):
    """One step of Adam."""
    count = state["moments"].count + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["moments"].mu, gradient)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["moments"].nu, gradient)

    def moved(w, m, v):
        return w - 0.05 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    weights = jax.tree.map(moved, state["weights"], mu, nu)
    return {"weights": weights, "moments": Moments(count, mu, nu)}


def plain():
    state, data = new_state(), columns()
    for _ in range(STEPS):
        _, gradient = gradient_of(state["weights"], data["x"], data["y"])
        state = update(state, gradient)
    return state


def main():
    with strata.join() as run:
        run.restore(new_state())
        line = strata.open_arrays(columns(), name="line")
        for batch in run.batches(line, global_batch=SAMPLES, steps=STEPS):
            with run.step() as step:
                dies = run.steps == int(run.config.get("die_at", -1)) and run.generation == 1
                if dies and run.rank == run.world_size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                own = gradient_of(run.state["weights"], batch["x"], batch["y"])
                loss, gradient = run.average(own)
                run.state = update(run.state, gradient)
                step.log(loss=loss)
        assert isinstance(run.state["moments"], Moments)
        assert isinstance(run.state["weights"]["w"], jax.Array)
        if run.rank == 0:
            weights = {name: np.asarray(each) for name, each in run.state["weights"].items()}
            np.savez(Path(run.config["folder"]) / "weights.npz", **weights)


if __name__ == "__main__":
    main()
