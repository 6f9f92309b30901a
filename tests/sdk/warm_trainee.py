"""Worker processes that start with weights from elsewhere: `warm_trainee.py SCENE JSON`."""

import os
import time

import torch
from trainee import main, place, say, scene

import strata


def net(seed, outputs=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, outputs)
    )


@scene
def begin(seed, from_=None, steps=2, outputs=3, strict=True, step_s=0.0, gate="", **given):
    """Build a model, start with other weights, print them, and train some steps.

    With `gate`, it waits in the middle of the start until that file exists.
    """
    with strata.join(**given) as run:
        model = net(seed, outputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        rename = (lambda name: opened(gate, name)) if gate else None
        parts = {"model": model, "optimizer": optimizer}
        run.restore(from_=from_, strict=strict, rename=rename, **parts)
        state = {name: each.tolist() for name, each in model.state_dict().items()}
        drawn, source = torch.rand(3).tolist(), run.recovery.source
        moments = len(optimizer.state)
        say("began", state=state, drawn=drawn, moments=moments, source=source, **place(run))
        while run.steps < steps:
            try:
                run.barrier(f"step-{run.steps}")
                optimizer.zero_grad()
                model(torch.ones(5, 4)).sum().backward()
                optimizer.step()
                time.sleep(step_s)
                run.mark_step(loss=1.0)
                if run.save_due():
                    run.save()
            except strata.GenerationChanged:
                run.recover()
        say("ended", state={name: each.tolist() for name, each in model.state_dict().items()})
    say("left")


def opened(gate, name):
    """The same name, once the file exists."""
    say("waiting")
    while not os.path.exists(gate):
        time.sleep(0.01)
    return name


if __name__ == "__main__":
    main()
