"""The training script of `bench_resume`: the same model under torchrun, Lightning and Strata.

Each process trains up to the given number of epochs from its newest checkpoint, if there is one,
and saves at the end. Rank 0 writes the time of its first step.

    resume_script.py HOW FOLDER EPOCHS
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH = 256
SAMPLES = 256
BATCH = 16


def parts():
    """The model, its optimizer, and the dataset."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH))
    return model, torch.optim.AdamW(model.parameters()), data


def noted(folder, rank):
    """Write the time of the first step."""
    if rank == 0 and not (folder / "first").exists():
        (folder / "first.new").write_text(str(time.monotonic()))
        (folder / "first.new").replace(folder / "first")


def by_torchrun(folder, epochs):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    dist.init_process_group("gloo")
    model, optimizer, data = parts()
    model = nn.parallel.DistributedDataParallel(model)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "epoch": 0}
    saved = folder / "dcp"
    if saved.exists():
        dcp.load(state, checkpoint_id=saved)
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"]
        )
    sampler = DistributedSampler(data)
    for epoch in range(state["epoch"], epochs):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, BATCH, sampler=sampler):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            noted(folder, dist.get_rank())
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "epoch": epochs}, checkpoint_id=saved)
    # DDP uses the group while it is deleted: after the group it would wait forever.
    del model, optimizer, weights, moments, state
    dist.barrier()
    dist.destroy_process_group()


def by_lightning(folder, epochs):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, _, self.data = parts()

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.mse_loss(self.model(x), y)

        def on_train_batch_end(self, *_):
            noted(folder, self.global_rank)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.model.parameters())

        def train_dataloader(self):
            return DataLoader(self.data, BATCH, shuffle=True)

    saved = folder / "last.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), ckpt_path=saved if saved.exists() else None)
    trainer.save_checkpoint(saved)


def by_strata(folder, epochs):
    import strata
    import strata.torch

    with strata.join() as run:
        model, optimizer, data = parts()
        strata.torch.data_parallel(run, model)
        run.restore(model=model, optimizer=optimizer)
        loader = run.loader(data, batch_size=BATCH)
        for _ in run.epochs(epochs):
            for x, y in loader:
                with run.step():
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                noted(folder, run.rank)


if __name__ == "__main__":
    hows = {"torchrun": by_torchrun, "lightning": by_lightning, "strata": by_strata}
    hows[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
