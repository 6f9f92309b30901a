"""Train on digits with PyTorch's FSDP2: each worker holds a shard of the model and optimizer.

    strata run examples/fsdp_digits.py --workers 4 --kill 1

Needs torch. A lost worker's shard is lost too: all resume from the newest checkpoint, whose tensors
are resharded for the new number of workers.
"""

import numpy as np
import torch
from digits import draw_digits
from torch.distributed.fsdp import fully_shard
from torch_digits import new_model, pixels

import strata
import strata.torch


def sharded_model(mesh):
    """The model of `torch_digits.py`, with each layer sharded over the mesh."""
    model = new_model()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    torch.set_num_threads(1)
    images, labels = draw_digits(10_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    with strata.join(checkpoint_every=50) as run:
        mesh = strata.torch.Mesh(run)

        def build():
            model = sharded_model(mesh.formed())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
            return {"model": model, "optimizer": optimizer}

        run.rebuild(build)
        epochs = int(run.config.get("epochs", 12))
        for batch in run.batches(digits, global_batch=256, epochs=epochs):
            model, optimizer = run.state["model"], run.state["optimizer"]
            with run.step() as step:
                guesses = model(pixels(batch["image"]).to(mesh.device))
                labels = torch.from_numpy(batch["label"]).to(mesh.device)
                loss = torch.nn.functional.cross_entropy(guesses, labels)
                mesh.scale(loss).backward()
                optimizer.step()
                optimizer.zero_grad()
                step.log(loss=loss)
            if step.applied and run.rank == 0 and run.steps % 50 == 0:
                print(f"step {run.steps}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
