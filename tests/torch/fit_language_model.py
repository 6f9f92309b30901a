"""Trains a tiny GPT-2 with the Trainer of Hugging Face, and saves the result beside the run."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import strata
import strata.torch


def make_trainer():
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 31, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    numbers = torch.arange(8)
    data = [{"input_ids": (numbers + i) % 31, "labels": (numbers + i) % 31} for i in range(12)]
    return Trainer(model=model, args=arguments, train_dataset=data)


with strata.join() as run:
    trainer = strata.torch.train(run, make_trainer)
    if run.rank == 0:
        trainer.save_model("final")
