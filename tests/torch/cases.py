"""Ordinary training code in many variants, for a plain process and for the workers of a run.

Each case has a model, optimizers and an `update`: what a script does with one batch. The same code
runs in `reference`, without Strata, and in `learner.py`, in the block of a step. Nearly everything
is in double precision: a difference comes from a mistake then, and not from the order of sums.
"""

import contextlib
import shutil

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

SAMPLES, STEPS, BATCH = 240, 20, 48
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def data():
    """Inputs and targets; every row has a number, so that a run can record what it trained."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(SAMPLES, 8))
    targets = inputs @ random.normal(size=(8, 1))
    return {"row": np.arange(SAMPLES), "x": inputs, "y": targets}


class Local:
    """Replaces a step in a process without a run."""

    accumulate = contextlib.nullcontext


def network(*extra):
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), *extra, torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )


class Case:
    """A plain loop: SGD with momentum."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = self.build().to(DEVICE, torch.float64)
        self.called = self.model
        self.optimizers = self.optimize()

    def build(self):
        return network()

    def optimize(self):
        return [torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)]

    def state(self):
        named = {f"optimizer{n}": each for n, each in enumerate(self.optimizers)}
        return {"model": self.model, **named}

    def prepare(self):
        """What a script does before a step."""

    def loss(self, x, y):
        return ((self.called(x) - y) ** 2).mean()

    def update(self, x, y, step):
        self.loss(x, y).backward()
        self.apply()

    def apply(self):
        for each in self.optimizers:
            each.step()
            each.zero_grad()

    def result(self):
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return torch.cat([each.detach().double().reshape(-1) for each in tensors]).cpu()


class Accumulated(Case):
    """Four micro-batches, each of which communicates."""

    quiet = False

    def update(self, x, y, step):
        parts = list(zip(x.chunk(4), y.chunk(4), strict=True))
        for number, (some_x, some_y) in enumerate(parts):
            local = self.quiet and number < len(parts) - 1
            with step.accumulate() if local else contextlib.nullcontext():
                (self.loss(some_x, some_y) / len(parts)).backward()
        self.apply()


class AccumulatedOnce(Accumulated):
    """Four micro-batches, the last of which communicates."""

    quiet = True


class Scaled(Case):
    """A GradScaler that has to skip its first step, with clipping of the unscaled gradients.

    In single precision, as the scale is.
    """

    def optimize(self):
        self.model.float()
        self.scaler = torch.amp.GradScaler(
            DEVICE, init_scale=2.0**127, backoff_factor=2.0**-100, growth_interval=7
        )
        return super().optimize()

    def loss(self, x, y):
        return 1e3 * super().loss(x.float(), y.float())  # times the first scale it overflows

    def state(self):
        return {**super().state(), "scaler": self.scaler}

    def update(self, x, y, step):
        (optimizer,) = self.optimizers
        self.scaler.scale(self.loss(x, y)).backward()
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()


class Scheduled(Case):
    """A learning rate that falls, gradients that are clipped, zeroed in place before backward."""

    def optimize(self):
        optimizers = super().optimize()
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 5, 0.5)
        return optimizers

    def state(self):
        return {**super().state(), "scheduler": self.scheduler}

    def update(self, x, y, step):
        (optimizer,) = self.optimizers
        loss = self.loss(x, y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        optimizer.step()
        self.scheduler.step()


class Compiled(Case):
    """A compiled model."""

    backend = "aot_eager"

    def __init__(self) -> None:
        super().__init__()
        self.called = torch.compile(self.model, backend=self.backend)


class Inductor(Compiled):
    """A model that is compiled to machine code, which needs a C++ compiler."""

    backend = "inductor"


class Tied(Case):
    """One weight in two layers, inside reentrant checkpoints: its gradient arrives several times.

    The last layer is outside of the checkpoints, so the outermost pass computes a gradient first.
    """

    reentrant = True

    class Net(torch.nn.Module):
        def __init__(self, reentrant) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.last = torch.nn.Linear(8, 1)
            self.reentrant = reentrant

        def forward(self, x):
            x = (x * 1.0).requires_grad_()
            for layer in (self.first, self.second, self.first):
                x = checkpoint(lambda x, f=layer: f(x).tanh(), x, use_reentrant=self.reentrant)
            return self.last(x)

    def build(self):
        return self.Net(self.reentrant)


class Checkpointed(Tied):
    """The same with checkpoints that are not reentrant."""

    reentrant = False


class AllCheckpointed(Tied):
    """All trained parameters are inside reentrant checkpoints."""

    def build(self):
        net = super().build()
        net.last.requires_grad_(False)
        return net


class Unused(Case):
    """AdamW with a parameter that no sample uses, and one that few samples use."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.never = torch.nn.Parameter(torch.ones(3))
            self.rare = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            found = self.inner(x)
            marked = x[:, :1] > 1.8
            return found + marked * self.rare if marked.any() else found

    def build(self):
        return self.Net()

    def optimize(self):
        return [torch.optim.AdamW(self.model.parameters(), lr=0.01, weight_decay=0.5)]


class Frozen(Case):
    """A layer that is frozen at first, and trained later on."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = torch.zeros(1)
        self.model[0].requires_grad_(False)

    def state(self):
        return {**super().state(), "updates": self.updates}

    def prepare(self):
        self.model[0].requires_grad_(bool(self.updates >= 6))

    def update(self, x, y, step):
        super().update(x, y, step)
        self.updates += 1


class Normed(Case):
    """Batch norm: each worker normalizes its own part; the statistics are those of rank 0."""

    def build(self):
        return network(torch.nn.BatchNorm1d(16))


class Synced(Case):
    """Batch norm over all workers, for inputs with and without further dimensions."""

    def build(self):
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.SyncBatchNorm(16),
            torch.nn.Unflatten(1, (4, 4)),
            torch.nn.SyncBatchNorm(4, momentum=None, affine=False),
            torch.nn.Flatten(),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 1),
        )


class TwoOptimizers(Case):
    """A part of the model for each of two optimizers."""

    def optimize(self):
        first, *_, last = self.model
        return [
            torch.optim.SGD(first.parameters(), lr=0.05),
            torch.optim.AdamW(last.parameters(), lr=0.01, fused=True),
        ]


class Fused(Case):
    """A fused optimizer, which on a GPU is launched before the host knows the gradients."""

    def optimize(self):
        return [torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)]


class LineSearch(Case):
    """An optimizer that calls forward and backward itself, several times in a step."""

    def optimize(self):
        return [torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)]

    def update(self, x, y, step):
        def closure():
            self.optimizers[0].zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            return loss

        self.optimizers[0].step(closure)


class Dropped(Case):
    """Dropout draws random numbers: equal to the reference with one worker."""

    def build(self):
        return network(torch.nn.Dropout(0.2))


class Autocast(Case):
    """Half precision in the forward pass: equal to the reference with one worker."""

    def loss(self, x, y):
        with torch.autocast(DEVICE, torch.bfloat16):
            found = self.called(x)
        return ((found.double() - y) ** 2).mean()


CASES = {
    "normed": Normed,  # first, so that its statistics have changed when a worker is lost
    "plain": Case,
    "accumulated": Accumulated,
    "accumulated_once": AccumulatedOnce,
    "scaled": Scaled,
    "scheduled": Scheduled,
    "compiled": Compiled,
    "tied": Tied,
    "checkpointed": Checkpointed,
    "all_checkpointed": AllCheckpointed,
    "unused": Unused,
    "frozen": Frozen,
    "synced": Synced,
    "fused": Fused,
    "two_optimizers": TwoOptimizers,
    "line_search": LineSearch,
    "dropped": Dropped,
    "autocast": Autocast,
}
if shutil.which("g++"):
    CASES["inductor"] = Inductor
ALONE = {"dropped", "autocast"}
TOLERANCE = {"scaled": 2e-6}


def reference(name, steps):
    """The result of a case in one plain process, for the rows of each rank in each step.

    All ranks' rows are one batch, except with batch norm. There the reference is what
    DistributedDataParallel computes: the mean of the gradients of the ranks' parts, and the running
    statistics of rank 0.
    """
    torch.set_num_threads(1)  # as the workers have: sums over threads have another order
    columns = {key: torch.from_numpy(value).to(DEVICE) for key, value in data().items()}
    case = CASES[name]()
    torch.manual_seed(1)
    for ranks in steps:
        case.prepare()
        if name == "normed":
            _normed_step(case, columns, ranks)
        else:
            rows = [row for part in ranks for row in part]
            case.update(columns["x"][rows], columns["y"][rows], Local())
    return case.result()


def _normed_step(case, columns, ranks):
    total = sum(map(len, ranks))
    kept = None
    for rows in ranks:
        loss = case.loss(columns["x"][rows], columns["y"][rows])
        (loss * (len(rows) / total)).backward()
        kept = kept or [each.clone() for each in case.model.buffers()]
        for each, value in zip(case.model.buffers(), kept, strict=True):
            each.copy_(value)
    case.apply()
