"""Train the network of `digits.py` with JAX: one process per worker, data and state by Strata.

    strata run examples/jax_digits.py --workers 2 --config epochs=2

JAX computes the gradient of a worker's share of a step; `run.average` averages the gradients. JAX
arrays are immutable, so each step makes a new state, which is assigned to `run.state`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from digits import accuracy, draw_digits, new_model, unseen_digits

import strata


def loss_of(model, images, labels):
    """The mean cross entropy over a batch."""
    x = images.reshape(len(images), -1).astype(jnp.float32) / 255
    for number in range(2):
        x = jnp.maximum(x @ model[f"w{number}"] + model[f"b{number}"], 0)
    scores = jax.nn.log_softmax(x @ model["w2"] + model["b2"])
    return -scores[jnp.arange(len(labels)), labels].mean()


@jax.jit
def update(state, gradient):
    """The state after one step of gradient descent with momentum."""
    momentum = jax.tree.map(lambda m, g: 0.9 * m - 0.05 * g, state["momentum"], gradient)
    model = jax.tree.map(jnp.add, state["model"], momentum)
    return {"model": model, "momentum": momentum}


def main():
    images, labels = draw_digits(20_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    gradient_of = jax.jit(jax.value_and_grad(loss_of))
    with strata.join() as run:
        run.restore(jax.tree.map(jnp.asarray, new_model(np.random.default_rng(2))))
        epochs = int(run.config.get("epochs", 8))
        for batch in run.batches(digits, batch_size=64, epochs=epochs):
            with run.step() as step:
                own = gradient_of(run.state["model"], batch["image"], batch["label"])
                loss, gradient = run.average(own)
                run.state = update(run.state, gradient)
                step.log(loss=loss)
        right = run.evaluate(unseen_digits(), lambda batch: accuracy(run.state["model"], batch))
        if run.rank == 0:
            print(f"accuracy on 2,000 unseen digits: {right:.1%}")


if __name__ == "__main__":
    main()
