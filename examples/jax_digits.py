"""Trains the network of `digits.py` with JAX: one process a worker, data and state through Strata.

    strata run examples/jax_digits.py --workers 2 --config epochs=2

JAX computes the gradient of a worker's share of a step; `run.average` makes one gradient of them.
The weights are kept as NumPy arrays, which JAX takes as they are, so they are restored in place.
"""

import jax
import jax.numpy as jnp
import numpy as np
from digits import draw_digits, forward, new_model, update

import strata


def loss_of(model, images, labels):
    """The mean cross entropy over a batch."""
    x = images.reshape(len(images), -1).astype(jnp.float32) / 255
    for number in range(2):
        x = jnp.maximum(x @ model[f"w{number}"] + model[f"b{number}"], 0)
    scores = jax.nn.log_softmax(x @ model["w2"] + model["b2"])
    return -scores[jnp.arange(len(labels)), labels].mean()


def main():
    images, labels = draw_digits(20_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    gradient_of = jax.jit(jax.value_and_grad(loss_of))
    with strata.join() as run:
        state = run.restore(new_model(np.random.default_rng(2)))
        epochs = int(run.config.get("epochs", 8))
        for batch in run.batches(digits, batch_size=64, epochs=epochs):
            loss, gradient = gradient_of(state["model"], batch["image"], batch["label"])
            mine = {name: np.asarray(each) for name, each in gradient.items()}
            try:
                mean, loss = run.average((mine, float(loss)), len(batch["label"]))
            except strata.GenerationChanged:
                continue  # somebody was lost in this step: it is done again
            update(state, mean, rate=0.05)
            run.mark_step(loss=loss)
            if run.save_due():
                run.save(state)
        if run.rank == 0:
            images, labels = draw_digits(2_000, np.random.default_rng(3))
            guesses = forward(state["model"], images)[-1].argmax(axis=1)
            print(
                f"accuracy on 2,000 digits that it has not seen: {np.mean(guesses == labels):.1%}"
            )


if __name__ == "__main__":
    main()
