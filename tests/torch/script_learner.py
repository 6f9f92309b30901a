"""An ordinary training loop, as `strata run` runs it in tests; see `scripts.py` for the plain one.

Config: `script` is the name of the script, `die_at` the steps in which the last rank kills itself,
each once (`7,12`), `folder` where rank 0 writes its weights.
"""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from scripts import (
    EPOCHS,
    PATIENCE,
    Ragged,
    accelerated_update,
    build,
    fabric_update,
    loss_of,
    mean_loss,
    padded,
    validation,
)

import strata
import strata.torch
from strata.errors import NotAllowedNow


def disturb(run):
    """Kill this process in the step that the test asks for."""
    dies = str(run.steps) in str(run.config.get("die_at", "")).split(",")
    done = Path(str(run.config["folder"]), f"died-{run.steps}")
    if dies and run.rank == run.world_size - 1 and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def update(run, parts, batch):
    """One step: applied by every worker or by none."""
    model, optimizer = parts["model"], parts["optimizer"]
    with run.step() as step:
        loss = loss_of(model, batch)
        disturb(run)
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
    """Stop when the validation loss has not improved for a few epochs."""
    best, bad = float("inf"), 0
    loader = loading(run, Ragged(72), processes=0)
    for _ in run.epochs(50):
        for batch in loader:
            update(run, parts, batch)
        loss = evaluate(run, parts)
        best, bad = (loss, 0) if loss < best - 0.05 else (best, bad + 1)
        if run.agree(bad >= PATIENCE):
            break


def accelerate(run, parts):
    """The same loop with accelerate: one line of it differs from a plain script."""
    accelerator = strata.torch.Accelerator(run, cpu=True, gradient_accumulation_steps=2)
    given = accelerator.prepare(*parts.values())
    parts |= dict(zip(parts, given, strict=True))
    run.restore(**parts)
    disturb_between_micro_batches(run, parts["model"])
    for _ in run.epochs(EPOCHS):
        for batch in loading(run, Ragged(72), processes=0):
            with run.step():
                accelerated_update(accelerator, parts, batch)
    assert accelerator.is_main_process == (run.rank == 0)
    assert accelerator.num_processes == run.world_size
    with pytest.raises(NotAllowedNow, match=r"Accelerator.gather does not know the workers"):
        accelerator.gather(torch.ones(1))


def fabric(run, parts):
    """The same loop with Fabric."""
    fabric = strata.torch.Fabric(run, accelerator="cpu")
    parts["model"], parts["optimizer"] = fabric.setup(parts["model"], parts["optimizer"])
    run.restore(**parts)
    disturb_between_micro_batches(run, parts["model"])
    for _ in run.epochs(EPOCHS):
        for batch in loading(run, Ragged(72), processes=0):
            with run.step():
                fabric_update(fabric, parts, batch)
        parts["scheduler"].step()
    assert (fabric.global_rank, fabric.world_size) == (run.rank, run.world_size)
    fabric.save(os.path.join(run.config["folder"], "fabric.ckpt"), {"model": parts["model"]})
    with pytest.raises(NotAllowedNow, match=r"Fabric.all_reduce does not know the workers"):
        fabric.all_reduce(torch.ones(1))


def disturb_between_micro_batches(run, model):
    """Kill this process in the second forward pass of the step that the test asks for."""
    seen = []

    def look(*_):
        seen.append(run.steps)
        if seen.count(run.steps) == 2:
            disturb(run)

    model.register_forward_pre_hook(look)


PLAIN = (per_epoch, two_phases, early_stop)
OTHERS = (accelerate, fabric)


def main():
    torch.set_num_threads(1)
    with strata.join() as run:
        parts = build()
        name = run.config["script"]
        if name in {each.__name__ for each in PLAIN}:
            strata.torch.data_parallel(run, parts["model"])
            run.restore(**parts)
        {each.__name__: each for each in (*PLAIN, *OTHERS)}[name](run, parts)
        if run.rank == 0:
            torch.save(
                {"weights": parts["model"].state_dict(), "steps": run.steps},
                os.path.join(run.config["folder"], "weights.pt"),
            )


if __name__ == "__main__":
    main()
