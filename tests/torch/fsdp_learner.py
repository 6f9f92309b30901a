"""A small regression by FSDP2, run by `strata run` in tests: prints its final weights.

Config: `signal` is the signal that rank 1 sends itself in step 12 of generation 1, `form` the one
that it sends itself while the first mesh is formed, `forget` leaves out `mesh.scale`, `from` is a
file of weights to begin with, which are printed.
"""

import json
import os

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard

import strata
import strata.torch


def data():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(960, 8)).astype(np.float32)
    return {"x": inputs, "y": inputs @ random.normal(size=(8, 1)).astype(np.float32)}


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def build(run, mesh):
    if run.config.get("form") and (run.rank, run.generation) == (1, 1):
        os.kill(os.getpid(), int(run.config["form"]))
    formed = mesh.formed()
    model = new_model().to(mesh.device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=formed)
    model = fully_shard(model, mesh=formed)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)}


def main() -> None:
    torch.set_num_threads(1)
    dataset = strata.open_arrays(data(), name="line")
    with strata.join(checkpoint_every=10) as run:
        mesh = strata.torch.Mesh(run)
        run.rebuild(lambda: build(run, mesh), from_=run.config.get("from"))
        if run.config.get("from"):
            print_weights(run, "begun")
        for batch in run.batches(dataset, global_batch=47, epochs=1):
            model, optimizer = run.state["model"], run.state["optimizer"]
            x, y = (torch.from_numpy(batch[name]).to(mesh.device) for name in ("x", "y"))
            if (run.rank, run.steps, run.generation) == (1, 12, 1) and run.config.get("signal"):
                os.kill(os.getpid(), int(run.config["signal"]))
            with run.step() as step:
                loss = ((model(x) - y) ** 2).mean()
                (loss if run.config.get("forget") else mesh.scale(loss)).backward()
                optimizer.step()
                optimizer.zero_grad()
                step.log(loss=loss)
        print_weights(run, "weights")


def print_weights(run, what):
    whole = [each.detach().full_tensor().reshape(-1) for each in run.state["model"].parameters()]
    if run.rank == 0:
        print(f"{what} " + json.dumps(torch.cat(whole).tolist()))


if __name__ == "__main__":
    main()
