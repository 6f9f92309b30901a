"""Train with JAX: a Flax model and an Optax optimizer; data, averaging and state by Strata.

    strata run examples/flax_digits.py --workers 2 --kill 1

Needs jax, flax and optax. Each worker computes the gradient of its share of a step with `jax.jit`;
`run.average` averages the gradients. JAX arrays are immutable, so each step makes a new state.
It is assigned to `run.state`: the run saves it, restores it, and gives it to a replacement.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import SIDE, draw_digits, unseen_digits
from flax.training.train_state import TrainState

import strata


class Classifier(nn.Module):
    """A network with two hidden layers."""

    @nn.compact
    def __call__(self, images):
        x = images.reshape(len(images), -1).astype(jnp.float32) / 255
        for _ in range(2):
            x = nn.relu(nn.Dense(96)(x))
        return nn.Dense(10)(x)


def new_state():
    """Parameters and the state of the optimizer; the same on all workers, by the fixed seed."""
    model = Classifier()
    parameters = model.init(jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 1)))
    return TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.adam(2e-3))


@jax.jit
def gradients(state, images, labels):
    """The loss of a batch, and its gradient."""

    def loss_of(parameters):
        scores = state.apply_fn(parameters, images)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    return jax.value_and_grad(loss_of)(state.params)


@jax.jit
def update(state, gradient):
    return state.apply_gradients(grads=gradient)


def accuracy(state, batch):
    """The fraction of a batch that is classified correctly."""
    scores = state.apply_fn(state.params, batch["image"])
    return float((scores.argmax(axis=1) == batch["label"]).mean())


def main():
    images, labels = draw_digits(20_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    with strata.join() as run:
        run.restore(new_state())
        epochs = int(run.config.get("epochs", 4))
        for batch in run.batches(digits, global_batch=128, epochs=epochs):
            with run.step() as step:
                own = gradients(run.state, batch["image"], batch["label"])
                loss, gradient = run.average(own)
                run.state = update(run.state, gradient)
                step.log(loss=loss)
            if step.applied and run.rank == 0 and run.steps % 100 == 0:
                print(f"step {run.steps}: loss {loss:.4f}")
        right = run.evaluate(unseen_digits(), lambda batch: accuracy(run.state, batch))
        if run.rank == 0:
            print(f"accuracy on 2,000 unseen digits: {right:.1%}")


if __name__ == "__main__":
    main()
