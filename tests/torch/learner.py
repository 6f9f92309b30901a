"""A small regression by `strata.torch`, run by `strata run` in tests: says its final weights.

Config: `how` is parallel, group or mesh, `signal` what rank 1 sends itself at step 12 of generation
1, `form` what it sends itself while the first group is formed.
"""

import json
import os

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import strata
import strata.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def new_state(spread=lambda model: model):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = spread(model.to(DEVICE))
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)}


class Parallel:
    def __init__(self, run) -> None:
        run.restore(new_state())
        self.parallel = strata.torch.DataParallel(run, run.state["model"])

    def step(self, model, x, y) -> float:
        with self.parallel.averaging(len(x)):
            loss = loss_of(model, x, y)
            loss.backward()
        return loss.item()


class Group:
    def __init__(self, run) -> None:
        run.restore(new_state())
        self.group = strata.torch.Group(run)

    def step(self, model, x, y) -> float:
        loss = loss_of(model, x, y)
        loss.backward()
        self.group.average_gradients(model, len(x))
        return loss.item()


class Mesh:
    """FSDP2: each worker holds a shard of every layer."""

    def __init__(self, run) -> None:
        self.run, self.mesh = run, strata.torch.Mesh(run)
        run.rebuild(lambda: new_state(self.spread))

    def spread(self, model):
        if self.run.config.get("form") and (self.run.rank, self.run.generation) == (1, 1):
            os.kill(os.getpid(), int(self.run.config["form"]))
        mesh = self.mesh.formed()
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def step(self, model, x, y) -> float:
        with self.mesh.step(len(x)) as share:
            loss = loss_of(model, x, y)
            (loss * share).backward()
        return loss.item()


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def main() -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    inputs = random.normal(size=(960, 8)).astype(np.float32)
    targets = inputs @ random.normal(size=(8, 1)).astype(np.float32)
    data = strata.open_arrays({"x": inputs, "y": targets}, name="line")
    with strata.join(checkpoint_every=10) as run:
        ways = {"parallel": Parallel, "group": Group, "mesh": Mesh}
        way = ways[run.config["how"]](run)
        for batch in run.batches(data, global_batch=48, epochs=2):
            model, optimizer = run.state["model"], run.state["optimizer"]
            optimizer.zero_grad()
            if run.rank == 1 and run.steps == 12 and run.generation == 1:
                os.kill(os.getpid(), int(run.config["signal"]))
            try:
                x, y = (torch.from_numpy(batch[name]).to(DEVICE) for name in ("x", "y"))
                loss = way.step(model, x, y)
            except strata.GenerationChanged:
                continue
            optimizer.step()
            run.mark_step(loss=loss)
            if run.save_due():
                run.save()
        weights = torch.cat([whole(each).reshape(-1) for each in run.state["model"].parameters()])
        if run.rank == 0:
            print("weights " + json.dumps([round(w, 7) for w in weights.tolist()]))


def whole(parameter) -> torch.Tensor:
    value = parameter.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


if __name__ == "__main__":
    main()
