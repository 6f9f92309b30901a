"""Trains with the Trainer of Hugging Face; see `fitting.py`."""

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
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

import strata.torch


def train(run):
    seen = {"rates": [], "evaluated": []}

    class Disturbed(Trainer):
        def training_step(self, *inputs, **named):
            show_start(self.model, self.state.global_step)
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
            use_cpu=PLAIN,
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
        trainer = strata.torch.train(run, made, from_=FROM)
    return trainer.model, trainer.state.global_step, seen


if __name__ == "__main__":
    main(train)
