"""A small regression by `strata.torch`, run by `strata run` in tests: says its final weights.

Config: `how` is parallel or group, `signal` what rank 1 sends itself at step 12 of generation 1.
"""

import json
import os

import numpy as np
import torch

import strata
import strata.torch

STEPS = 40


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    inputs = random.normal(size=(960, 8)).astype(np.float32)
    targets = inputs @ random.normal(size=(8, 1)).astype(np.float32)
    data = strata.open_arrays({"x": inputs, "y": targets}, name="line")
    with strata.join() as run:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        train = parallel_step if run.config["how"] == "parallel" else group_step
        ours = (
            strata.torch.DataParallel(run, model)
            if train is parallel_step
            else strata.torch.Group(run)
        )
        run.restore({"model": model, "optimizer": optimizer})
        for batch in run.batches(data, global_batch=48, epochs=2):
            x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
            optimizer.zero_grad()
            if run.rank == 1 and run.steps == 12 and run.generation == 1:
                os.kill(os.getpid(), int(run.config["signal"]))
            try:
                loss = train(ours, model, x, y)
            except strata.GenerationChanged:
                continue
            optimizer.step()
            run.step(loss=loss)
        if run.rank == 0:
            weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
            print("weights " + json.dumps([round(w, 7) for w in weights.tolist()]))


def parallel_step(parallel, model, x, y) -> float:
    with parallel.averaging(len(x)):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
    return loss.item()


def group_step(group, model, x, y) -> float:
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    group.average_gradients(model, len(x))
    return loss.item()


if __name__ == "__main__":
    main()
