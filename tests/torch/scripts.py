"""Plain training scripts, without anything of Strata: what the same loops on workers compute."""

import torch
from torch.utils.data import DataLoader, Dataset

EPOCHS = 3
PATIENCE = 2


class Ragged(Dataset):
    """Samples of different lengths, which need a `collate_fn`."""

    def __init__(self, count, seed=1):
        random = torch.Generator().manual_seed(seed)
        self.rows = [torch.randn(1 + n % 5, generator=random) for n in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return row, row.sum()


def validation():
    return [Ragged(30, seed=9)[n] for n in range(30)]


def padded(samples):
    rows, targets = zip(*samples, strict=True)
    lengths = torch.tensor([len(row) for row in rows])
    wide = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    filled = torch.zeros(len(rows), 5)
    filled[:, : wide.shape[1]] = wide
    return filled, lengths, torch.stack(targets)


def build():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def loss_of(model, batch):
    rows, _, targets = batch
    return ((model(rows.double()).squeeze(1) - targets) ** 2).mean()


def mean_loss(model, batch):
    with torch.no_grad():
        return loss_of(model, batch)


def update(parts, batch):
    loss_of(parts["model"], batch).backward()
    parts["optimizer"].step()
    parts["optimizer"].zero_grad()


def batches(dataset):
    return DataLoader(dataset, batch_size=12, collate_fn=padded)


def per_epoch(parts):
    for _ in range(EPOCHS):
        for batch in batches(Ragged(72)):
            update(parts, batch)
        parts["scheduler"].step()
    return EPOCHS * 6


def two_phases(parts):
    for dataset, steps in ((Ragged(72), 6), (Ragged(48, seed=5), 8)):
        given = [batch for _ in range(3) for batch in batches(dataset)]
        for batch in given[:steps]:
            update(parts, batch)
    return 14


def early_stop(parts):
    best, bad, steps = float("inf"), 0, 0
    while bad < PATIENCE:
        for batch in batches(Ragged(72)):
            update(parts, batch)
            steps += 1
        loss = float(mean_loss(parts["model"], padded(validation())))
        best, bad = (loss, 0) if loss < best - 0.05 else (best, bad + 1)
    return steps


def halves(batch):
    """The two micro-batches of an update."""
    return zip(*(each.chunk(2) for each in batch), strict=True)


def accelerated_update(accelerator, parts, batch):
    """An update with two micro-batches, clipping and a scheduler, as written for accelerate."""
    for part in halves(batch):
        with accelerator.accumulate(parts["model"]):
            accelerator.backward(loss_of(parts["model"], part))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(parts["model"].parameters(), 0.5)
            parts["optimizer"].step()
            parts["scheduler"].step()
            parts["optimizer"].zero_grad()


def fabric_update(fabric, parts, batch):
    """An update with two micro-batches and clipping, as written for Fabric."""
    model, optimizer = parts["model"], parts["optimizer"]
    for last, part in enumerate(halves(batch)):
        with fabric.no_backward_sync(model, enabled=not last):
            fabric.backward(loss_of(model, part) / 2)
    fabric.clip_gradients(model, optimizer, max_norm=0.5)
    optimizer.step()
    optimizer.zero_grad()


def accelerate(parts):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    given = accelerator.prepare(*parts.values())
    parts |= dict(zip(parts, given, strict=True))
    for _ in range(EPOCHS):
        for batch in batches(Ragged(72)):
            accelerated_update(accelerator, parts, batch)
    AcceleratorState._reset_state(reset_partial_state=True)
    return EPOCHS * 6


def fabric(parts):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    parts["model"], parts["optimizer"] = fabric.setup(parts["model"], parts["optimizer"])
    for _ in range(EPOCHS):
        for batch in batches(Ragged(72)):
            fabric_update(fabric, parts, batch)
        parts["scheduler"].step()
    return EPOCHS * 6


SCRIPTS = {each.__name__: each for each in (per_epoch, two_phases, early_stop, accelerate, fabric)}


def reference(name):
    """The weights and the steps of a plain run."""
    torch.set_num_threads(1)
    parts = build()
    steps = SCRIPTS[name](parts)
    return parts["model"].state_dict(), steps
