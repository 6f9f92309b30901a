"""Fits a line with another framework's trainer under a run: `fitting.py lightning|huggingface`.

`STOP_AT` sends the process a SIGTERM at that step, as a preemption does.
"""

import os
import signal
import sys

import torch

import strata
import strata.torch

STOP_AT = int(os.environ.get("STOP_AT", "-1"))


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        loss = ((self.layer(x) - labels) ** 2).mean()
        return {"loss": loss}


def samples():
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    return [{"x": each, "labels": each.sum().reshape(1)} for each in x]


def preempt(step: int) -> None:
    if step == STOP_AT:
        os.kill(os.getpid(), signal.SIGTERM)


def lightning(run) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Fitted(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch, number):
            preempt(run.steps)
            return self.line(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(samples(), batch_size=8)
    Trainer(
        max_epochs=5,
        callbacks=[strata.torch.LightningCallback(run)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    ).fit(Fitted(), loader)


def huggingface(run) -> None:
    from transformers import Trainer, TrainingArguments

    class Preempted(Trainer):
        def training_step(self, *inputs, **named):
            preempt(run.steps)
            return super().training_step(*inputs, **named)

    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=5,
        per_device_train_batch_size=8,
        learning_rate=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    Preempted(
        model=Line(),
        args=arguments,
        train_dataset=samples(),
        callbacks=[strata.torch.HuggingFaceCallback(run)],
    ).train()


if __name__ == "__main__":
    with strata.join() as run:
        {"lightning": lightning, "huggingface": huggingface}[sys.argv[1]](run)
        print(f"steps {run.steps} began {run.recovery.step}")
