"""Train with Hugging Face's Trainer: a function that builds it, and one line instead of `train()`.

    strata run examples/hf_text.py --workers 2 --kill 1

Needs transformers. The model is a small GPT-2 over bytes, so nothing is downloaded. After a loss
all workers continue after the last complete step, by the Trainer's own resume: the final weights
are those of a run that lost nobody. The checkpoints are Strata's, so `save_strategy` is "no".
"""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import strata
import strata.torch

TEXT = Path(__file__).parents[1] / "docs" / "GLOSSARY.md"
CONTEXT = 64


def samples():
    """Pieces of the text, as the Trainer expects them; GPT-2 shifts the labels itself."""
    tokens = torch.tensor(list(TEXT.read_bytes()))
    pieces = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def make_trainer(config):
    """Called once in each generation: model and TrainingArguments are created here."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": CONTEXT, "vocab_size": 256}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    data = samples()
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=int(config.get("steps", 100)),
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=10,
        eval_strategy="epoch",
        save_strategy="no",
        ddp_find_unused_parameters=False,
        report_to=[],  # `strata run` shows and records what the Trainer logs
        disable_tqdm=True,
    )
    return Trainer(model=model, args=arguments, train_dataset=data[:-16], eval_dataset=data[-16:])


def main():
    torch.set_num_threads(1)
    with strata.join() as run:
        trainer = strata.torch.train(run, lambda: make_trainer(run.config))
        if run.rank == 0:
            losses = [
                each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each
            ]
            print(f"step {trainer.state.global_step}: evaluation loss {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
