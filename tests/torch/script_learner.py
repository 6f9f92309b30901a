"""The loop that people write, as `strata run` runs it in tests; see `scripts.py` for the plain one.

Config: `script` is the name of the script, `die_at` the step in which the last rank kills itself in
generation 1, `folder` where rank 0 writes its weights.
"""

import os
import signal
from functools import partial

import torch
from scripts import (
    EPOCHS,
    PATIENCE,
    Ragged,
    build,
    loss_of,
    mean_loss,
    padded,
    validation,
)

import strata
import strata.torch


def update(run, parts, batch):
    """One step: applied by every worker or by none."""
    model, optimizer = parts["model"], parts["optimizer"]
    with run.step() as step:
        loss = loss_of(model, batch)
        dies = run.steps == int(run.config.get("die_at", -1)) and run.generation == 1
        if dies and run.rank == run.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss)


def loading(run, dataset, processes):
    """The batches of a torch Dataset with ragged samples."""
    return run.loader(
        dataset, global_batch=12, collate_fn=padded, num_workers=processes, shuffle=False
    )


def evaluate(run, parts):
    """The mean loss over the validation set."""
    score = partial(mean_loss, parts["model"])
    return run.evaluate(validation(), score, batch_size=8, collate_fn=padded)


def per_epoch(run, parts):
    """A loop for each epoch, then an evaluation and a step of the scheduler."""
    loader = loading(run, Ragged(72), processes=1)
    for _ in run.epochs(EPOCHS):
        for batch in loader:
            update(run, parts, batch)
        evaluate(run, parts)
        parts["scheduler"].step()


def two_phases(run, parts):
    """One dataset after the other."""
    for dataset, steps in ((Ragged(72), 6), (Ragged(48, seed=5), 8)):
        for batch in run.loader(dataset, global_batch=12, collate_fn=padded, steps=steps):
            update(run, parts, batch)


def early_stop(run, parts):
    """Stops when the validation loss has not improved for a few epochs."""
    best, bad = float("inf"), 0
    loader = loading(run, Ragged(72), processes=0)
    for _ in run.epochs(50):
        for batch in loader:
            update(run, parts, batch)
        loss = evaluate(run, parts)
        best, bad = (loss, 0) if loss < best - 0.05 else (best, bad + 1)
        if run.agree(bad >= PATIENCE):
            break


def main():
    torch.set_num_threads(1)
    with strata.join() as run:
        parts = build()
        strata.torch.data_parallel(run, parts["model"])
        run.restore(**parts)
        {"per_epoch": per_epoch, "two_phases": two_phases, "early_stop": early_stop}[
            run.config["script"]
        ](run, parts)
        if run.rank == 0:
            torch.save(
                {"weights": parts["model"].state_dict(), "steps": run.steps},
                os.path.join(run.config["folder"], "weights.pt"),
            )


if __name__ == "__main__":
    main()
