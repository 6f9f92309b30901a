"""Train like `digits.py` with a fraction of its traffic: sixteen local steps per round.

    strata run examples/local_steps.py --workers 4 --kill 1

Each worker trains alone for sixteen steps; then the workers exchange the changes of their weights,
in eight bits, and an outer optimizer applies the mean on all workers (`strata.LocalSteps`).
"""

import numpy as np
from digits import accuracy, draw_digits, gradients, new_model, unseen_digits, update

import strata

STEPS = 16


def main():
    images, labels = draw_digits(20_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    with strata.join() as run:
        state = new_model(np.random.default_rng(2))
        weights = state["model"]
        local = strata.LocalSteps(run, weights, STEPS)
        run.restore({"weights": weights, "outer": local})  # the inner momentum stays on each worker
        epochs = int(run.config.get("epochs", 24))
        for batch in run.batches(digits, batch_size=STEPS * 32, epochs=epochs):
            with run.step() as step, local.round(batch) as parts:
                for part in parts:
                    gradient, loss = gradients(weights, part)
                    update(state, gradient, rate=0.02)
                step.log(loss=loss)
            if step.applied and run.rank == 0 and run.steps % 20 == 0:
                print(f"round {run.steps}: loss {loss:.4f}")
        right = run.evaluate(unseen_digits(), lambda batch: accuracy(weights, batch))
        if run.rank == 0:
            print(f"accuracy on 2,000 unseen digits: {right:.1%}")


if __name__ == "__main__":
    main()
