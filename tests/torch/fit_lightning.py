"""Trains with Lightning; see `fitting.py`."""

import os

import torch
from fitting import (
    ACCUMULATE,
    EPOCHS,
    FROM,
    HALF_EPOCHS,
    MAX_STEPS,
    PLAIN,
    READERS,
    REFUSED,
    STOP_EARLY,
    Line,
    Stream,
    disturb,
    main,
    samples,
    show_start,
)
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

import strata.torch


def module(run):
    class Fitted(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch, number):
            show_start(self.line, self.trainer.global_step)
            disturb(run, self.trainer.global_step)
            loss = self.line(**batch)["loss"]
            if REFUSED == "monitor":
                self.log("train", loss, on_epoch=True)
            return loss

        def validation_step(self, batch, number):
            disturb(run, self.trainer.global_step, "evaluation")
            self.log("valid", self.line(**batch)["loss"], sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            by_step = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            monitored = "train" if REFUSED == "monitor" else "valid"
            on_plateau = {"scheduler": plateau, "monitor": monitored}
            if REFUSED == "plateau":
                return [optimizer], [{**on_plateau, "interval": "step"}]
            return [optimizer], [{"scheduler": by_step, "interval": "step"}, on_plateau]

    torch.manual_seed(0)
    return Fitted()


def train(run):
    seen = {"rates": [], "evaluated": []}

    class Seen(Callback):
        def on_train_batch_start(self, trainer, module, batch, number) -> None:
            seen["rates"].append(trainer.optimizers[0].param_groups[0]["lr"])

        def on_validation_end(self, trainer, module) -> None:
            if not trainer.sanity_checking:
                seen["evaluated"].append(trainer.callback_metrics["valid"].item())

    model = module(run)
    stopping = [EarlyStopping("valid", min_delta=10.0, patience=1)] if STOP_EARLY else []
    trainer = Trainer(
        max_epochs=EPOCHS,
        max_steps=MAX_STEPS,
        val_check_interval=0.5 if HALF_EPOCHS else 1.0,
        accumulate_grad_batches=ACCUMULATE,
        strategy="ddp" if PLAIN else strata.torch.LightningStrategy(run, from_=FROM),
        devices=int(os.environ.get("WORLD_SIZE", "1")) if PLAIN else 1,
        callbacks=[Seen(), *stopping],
        use_distributed_sampler=REFUSED != "sampler",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    batch = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    loader = torch.utils.data.DataLoader(samples(64, 1), batch, shuffle=True, num_workers=READERS)
    if REFUSED == "iterable":
        loader = torch.utils.data.DataLoader(Stream())
    valid = torch.utils.data.DataLoader(samples(16, 2), batch)
    trainer.fit(model, loader, valid)
    return model.line, trainer.global_step, seen


if __name__ == "__main__":
    main(train)
