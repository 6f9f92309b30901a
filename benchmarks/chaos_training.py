"""What bench_chaos.py trains: a small network by `run.average`; rank 0 prints its final weights."""

import json
import time

import numpy as np

import strata

SAMPLES, INPUTS, HIDDEN = 8_000, 24, 32


def gradients(model, batch):
    hidden = np.tanh(batch["x"] @ model["a"])
    error = hidden @ model["b"] - batch["y"]
    count = max(len(error), 1)
    back = (error @ model["b"].T) * (1 - hidden**2)
    found = {"a": batch["x"].T @ back / count, "b": hidden.T @ error / count}
    return found, float((error**2).mean()) if len(error) else 0.0


def main():
    random = np.random.default_rng(5)
    x = random.normal(size=(SAMPLES, INPUTS))
    y = np.tanh(x @ random.normal(size=(INPUTS, 1)))
    data = strata.open_arrays({"x": x, "y": y}, name="chaos")
    with strata.join() as run:
        model = {
            "a": random.normal(size=(INPUTS, HIDDEN)) / 5,
            "b": random.normal(size=(HIDDEN, 1)) / 5,
        }
        run.restore(model)
        step_s = float(run.config["step_s"])
        for batch in run.batches(data, global_batch=64, epochs=int(run.config["epochs"])):
            time.sleep(step_s)  # stands in for a larger model
            try:
                gradient, loss = run.average(gradients(model, batch), len(batch["y"]))
            except strata.GenerationChanged:
                continue
            for name, weights in model.items():
                weights -= 0.05 * gradient[name]
            run.mark_step(loss=loss)
            if run.save_due():
                run.save(model)
        if run.rank == 0:
            print("weights " + json.dumps([model["a"].sum(), model["b"].sum(), loss]))


if __name__ == "__main__":
    main()
