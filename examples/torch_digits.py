"""Train on digits with PyTorch, data-parallel: `strata.torch.data_parallel` instead of DDP.

    strata run examples/torch_digits.py --workers 4 --kill 1

Needs torch. Losing a worker costs only the current step.
"""

import numpy as np
import torch
from digits import SIDE, draw_digits

import strata
import strata.torch


def new_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(SIDE * SIDE, 96),
        torch.nn.ReLU(),
        torch.nn.Linear(96, 10),
    )


def pixels(images):
    return torch.from_numpy(images).float() / 255


def main():
    torch.set_num_threads(1)
    images, labels = draw_digits(10_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    with strata.join() as run:
        model = new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        strata.torch.data_parallel(run, model)
        run.restore(model=model, optimizer=optimizer)
        epochs = int(run.config.get("epochs", 12))
        for batch in run.batches(digits, global_batch=256, epochs=epochs):
            with run.step() as step:
                guesses = model(pixels(batch["image"]))
                loss = torch.nn.functional.cross_entropy(guesses, torch.from_numpy(batch["label"]))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step.log(loss=loss)
        if run.rank == 0:
            images, labels = draw_digits(2_000, np.random.default_rng(3))
            right = model(pixels(images)).argmax(dim=1).numpy() == labels
            print(f"accuracy on 2,000 unseen digits: {right.mean():.1%}")


if __name__ == "__main__":
    main()
