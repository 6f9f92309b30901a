"""Training of a small model, shared by `fit_lightning.py` and `fit_huggingface.py`.

Under `strata run` these scripts train through Strata's adapter. With `PLAIN=1` they train without
Strata, as one of the processes that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name. Rank 0
prints the final weights, and what it saw of the learning rate and of the evaluation.

`KILLS` lists steps and ranks (`13:1 15:0`): that rank kills itself in that step, once. In the first
generation the last rank sends itself a SIGTERM in step `STOP_AT`, and waits for a stop in step
`WAIT_AT`. `KILL_IN=evaluation` makes it the evaluation after that step.
With `FROM` training starts with these weights, and each worker prints them in its first step.
`STOP_EARLY=1` adds early stopping, `ACCUMULATE` sets the batches per optimizer step, `LOADERS=1`
reads with a worker process, `MAX_STEPS` bounds the steps, `HALF_EPOCHS=1` evaluates twice in each
epoch, and `REFUSED` names something that the adapter has to refuse.
"""

import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import torch

import strata
import strata.torch

PLAIN = bool(os.environ.get("PLAIN"))
KILLS = {tuple(map(int, kill.split(":"))) for kill in os.environ.get("KILLS", "").split()}
STOP_AT = int(os.environ.get("STOP_AT", "-1"))
WAIT_AT = int(os.environ.get("WAIT_AT", "-1"))
STOP_EARLY = bool(os.environ.get("STOP_EARLY"))
REFUSED = os.environ.get("REFUSED", "")
ACCUMULATE = int(os.environ.get("ACCUMULATE", "1"))
FROM = os.environ.get("FROM")
KILL_IN = os.environ.get("KILL_IN", "step")
MAX_STEPS = int(os.environ.get("MAX_STEPS", "-1"))
HALF_EPOCHS = bool(os.environ.get("HALF_EPOCHS"))
READERS = 1 if os.environ.get("LOADERS") else 0
EPOCHS = 5


class Line(torch.nn.Module):
    """A model with dropout and batch normalisation, so that random state and buffers matter.

    In double precision: with three workers the order of sums differs after a recovery, since
    DistributedDataParallel rearranges its buckets, and Adam amplifies the difference where a
    gradient is zero up to rounding (a bias before batch normalisation).
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 1)
        self.double()

    def forward(self, x, labels=None):
        x = x.double()
        hidden = torch.nn.functional.dropout(self.norm(self.first(x)).tanh(), 0.2, self.training)
        output = self.last(hidden)
        return {"loss": ((output - labels) ** 2).mean(), "output": output}


def samples(count, seed):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": each, "labels": each.sum().reshape(1)} for each in x]


def weights_of(model) -> list[float]:
    """All values of a model's state, in its order."""
    return torch.cat([each.double().reshape(-1) for each in model.state_dict().values()]).tolist()


def show_start(model, step: int) -> None:
    """Print the weights with which a task that starts from others begins."""
    if FROM and step == 0:
        print("began " + json.dumps(weights_of(model)), flush=True)


def disturb(run, step: int, place: str = "step") -> None:
    """Kill or stop this process where the test asks for it."""
    if run is None or place != KILL_IN:
        return
    done = Path(f"killed-{step}-{run.rank}")
    if (step, run.rank) in KILLS and not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if run.generation != 1 or run.rank != run.world_size - 1:
        return
    if step == STOP_AT:
        os.kill(os.getpid(), signal.SIGTERM)
    if step == WAIT_AT:
        print("waits for a stop", flush=True)
        while not run.stop_requested:
            time.sleep(0.01)
    if run.stop_requested:
        time.sleep(0.05)  # a last save is agreed upon while it trains; it should not end before


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(samples(64, 1))


def main(train) -> None:
    """Train and print what was learned. `train` takes the run, or None."""
    with nullcontext() if PLAIN else strata.join() as run:
        model, steps, seen = train(run)
        if int(os.environ.get("RANK", "0")) == 0:
            found = {"weights": weights_of(model), "steps": steps, **seen}
            print("fitted " + json.dumps(found))
        if PLAIN and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
