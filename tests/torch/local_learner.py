"""A small regression by `strata.torch.LocalSteps`, run by `strata run` in tests: prints its
weights.

Config: `signal` is the signal that rank 1 sends itself in round 5 of generation 1.
"""

import hashlib
import os

import numpy as np
import torch

import strata
import strata.torch

STEPS = 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    inputs = random.normal(size=(960, 8)).astype(np.float32)
    targets = inputs @ random.normal(size=(8, 1)).astype(np.float32)
    data = strata.open_arrays({"x": inputs, "y": targets}, name="line")
    with strata.join() as run:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1).bfloat16()
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        local = strata.torch.LocalSteps(run, model, STEPS, momentum=0.5)
        run.restore({"model": model, "outer": local})
        for batch in run.batches(data, global_batch=48 * STEPS, epochs=8):
            with run.step() as step, local.round(batch) as parts:
                for part in parts:
                    loss = train(model, optimizer, part)
                if run.rank == 1 and run.steps == 5 and run.generation == 1:
                    os.kill(os.getpid(), int(run.config["signal"]))
                step.log(loss=loss)
        weights = [*model.parameters(), model[1].running_mean, model[1].running_var]
        said = b"".join(each.detach().float().numpy().tobytes() for each in weights)
        print(f"weights {hashlib.sha256(said).hexdigest()} off {off(model, inputs, targets):.4f}")


def train(model, optimizer, part) -> float:
    optimizer.zero_grad()
    loss = error(model, part["x"], part["y"])
    loss.backward()
    optimizer.step()
    return loss.item()


def error(model, x, y) -> torch.Tensor:
    hidden = model[1](model[0](torch.from_numpy(x)))
    return ((model[2](hidden.bfloat16()).float() - torch.from_numpy(y)) ** 2).mean()


def off(model, x, y) -> float:
    """The error in evaluation, which uses the running statistics, as a fraction of the variance."""
    with torch.no_grad():
        return error(model.eval(), x, y).item() / float(y.var())


if __name__ == "__main__":
    main()
