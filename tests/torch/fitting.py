"""Trains a small model with another framework's trainer: `fitting.py lightning|huggingface`.

Under `strata run` it trains through Strata's adapter. With `PLAIN=1` it trains without Strata, as
one of the processes that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name. Rank 0 prints the
final weights, and what it saw of the learning rate and of the evaluation.

`KILL_AT` is the step in which rank `KILL_RANK` (the last) kills itself in generation 1, `STOP_AT`
the step in which it sends itself a SIGTERM, `WAIT_AT` the step in which it waits for a stop.
`KILL_IN=evaluation` makes it the evaluation after that step.
`STOP_EARLY=1` adds early stopping, `ACCUMULATE` sets the batches per optimizer step, `LOADERS=1`
reads with a worker process, `MAX_STEPS` bounds the steps, `HALF_EPOCHS=1` evaluates twice in each
epoch, and `REFUSED` names something that the adapter has to refuse.
"""

import json
import os
import signal
import sys
import time
from contextlib import nullcontext

import torch

import strata
import strata.torch

PLAIN = bool(os.environ.get("PLAIN"))
KILL_AT = int(os.environ.get("KILL_AT", "-1"))
STOP_AT = int(os.environ.get("STOP_AT", "-1"))
KILL_RANK = int(os.environ.get("KILL_RANK", "-1"))
WAIT_AT = int(os.environ.get("WAIT_AT", "-1"))
STOP_EARLY = bool(os.environ.get("STOP_EARLY"))
REFUSED = os.environ.get("REFUSED", "")
ACCUMULATE = int(os.environ.get("ACCUMULATE", "1"))
KILL_IN = os.environ.get("KILL_IN", "step")
MAX_STEPS = int(os.environ.get("MAX_STEPS", "-1"))
HALF_EPOCHS = bool(os.environ.get("HALF_EPOCHS"))
READERS = 1 if os.environ.get("LOADERS") else 0
EPOCHS = 5


class Line(torch.nn.Module):
    """With dropout and batch normalisation, so that random state and buffers matter.

    In double precision: with three workers the order of sums differs after a recovery, since
    DistributedDataParallel arranges its buckets anew, and Adam enlarges the difference where a
    gradient is zero but for rounding (a bias before batch normalisation).
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


def disturb(run, step: int, place: str = "step") -> None:
    """Kills or stops this process where the test asks for it."""
    if place != KILL_IN:
        return
    if run is None or run.generation != 1 or run.rank != KILL_RANK % run.world_size:
        return
    if step == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == STOP_AT:
        os.kill(os.getpid(), signal.SIGTERM)
    if step == WAIT_AT:
        print("waits for a stop", flush=True)
        while not run.stop_requested:
            time.sleep(0.01)
    if run.stop_requested:
        time.sleep(0.05)  # a last save is agreed upon while it trains; it should not end before


def lightning_module(run):
    from lightning.pytorch import LightningModule

    class Fitted(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch, number):
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


def lightning(run):
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.callbacks import EarlyStopping

    seen = {"rates": [], "evaluated": []}

    class Seen(Callback):
        def on_train_batch_start(self, trainer, module, batch, number) -> None:
            seen["rates"].append(trainer.optimizers[0].param_groups[0]["lr"])

        def on_validation_end(self, trainer, module) -> None:
            if not trainer.sanity_checking:
                seen["evaluated"].append(trainer.callback_metrics["valid"].item())

    model = lightning_module(run)
    stopping = [EarlyStopping("valid", min_delta=10.0, patience=1)] if STOP_EARLY else []
    trainer = Trainer(
        max_epochs=EPOCHS,
        max_steps=MAX_STEPS,
        val_check_interval=0.5 if HALF_EPOCHS else 1.0,
        accumulate_grad_batches=ACCUMULATE,
        strategy="ddp" if PLAIN else strata.torch.LightningStrategy(run),
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


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(samples(64, 1))


def huggingface(run):
    from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

    seen = {"rates": [], "evaluated": []}

    class Disturbed(Trainer):
        def training_step(self, *inputs, **named):
            disturb(run, self.state.global_step)
            return super().training_step(*inputs, **named)

        def prediction_step(self, *inputs, **named):
            disturb(run, self.state.global_step, "evaluation")
            return super().prediction_step(*inputs, **named)

    class Seen(TrainerCallback):
        def on_step_begin(self, args, state, control, lr_scheduler=None, **_) -> None:
            seen["rates"].append(lr_scheduler.get_last_lr()[0])

        def on_evaluate(self, args, state, control, metrics=None, **_) -> None:
            seen["evaluated"].append(metrics["eval_loss"])

    def make_trainer():
        torch.manual_seed(0)
        best = {"metric_for_best_model": "loss", "greater_is_better": False} if STOP_EARLY else {}
        arguments = TrainingArguments(
            output_dir="out",
            num_train_epochs=EPOCHS,
            max_steps=10 if REFUSED == "iterable" else MAX_STEPS,
            per_device_train_batch_size=8 // int(os.environ.get("WORLD_SIZE", "1")),
            gradient_accumulation_steps=ACCUMULATE,
            learning_rate=0.05,
            warmup_steps=5,
            logging_steps=1,
            eval_strategy="steps" if HALF_EPOCHS else "epoch",
            eval_steps=4 if HALF_EPOCHS else None,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            dataloader_num_workers=READERS,
            ignore_data_skip=REFUSED == "skip",
            **best,
        )
        stopping = [EarlyStoppingCallback(1, 10.0)] if STOP_EARLY else []
        return Disturbed(
            model=Line(),
            args=arguments,
            train_dataset=Stream() if REFUSED == "iterable" else samples(64, 1),
            eval_dataset=samples(16, 2),
            callbacks=[Seen(), *stopping],
        )

    if PLAIN:
        trainer = make_trainer()
        trainer.train()
    else:
        made = make_trainer() if REFUSED == "trainer" else make_trainer
        trainer = strata.torch.train(run, made)
    return trainer.model, trainer.state.global_step, seen


if __name__ == "__main__":
    with nullcontext() if PLAIN else strata.join() as run:
        model, steps, seen = {"lightning": lightning, "huggingface": huggingface}[sys.argv[1]](run)
        rank = int(os.environ.get("RANK", "0"))
        if rank == 0:
            weights = torch.cat([each.double().reshape(-1) for each in model.state_dict().values()])
            print("fitted " + json.dumps({"weights": weights.tolist(), "steps": steps, **seen}))
        if PLAIN and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
