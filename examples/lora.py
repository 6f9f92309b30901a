"""Fine-tune the GPT of `gpt.py` with LoRA: its weights are frozen, small adapters are trained.

    strata run examples/gpt.py --data-dir language
    strata run examples/lora.py --data-dir language --workers 2 --config base=gpt-1

`base` is a task of the same cluster (here: of the same data folder), or a path of its checkpoints.
Only the adapters have gradients, and the optimizer keeps moments for them alone. A checkpoint holds
the whole model, but tensors that have not changed since the last save are not written again: the
first save writes everything, each later one the adapters and their optimizer (and tensors of less
than 64 KiB). `strata timeline --data language` shows both numbers of each checkpoint: "… written, …
unchanged".
"""

from pathlib import Path

import torch
from gpt import GPT, Settings, loss_of
from torch import nn

import strata
import strata.torch

TEXT = Path(__file__).parents[1] / "docs" / "GLOSSARY.md"
RANK = 4


class Adapted(nn.Linear):
    """A linear layer with frozen weights and a low-rank correction: W x + B A x.

    It is a Linear, so that its weights keep their names in a checkpoint of the base model.
    """

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features)
        self.lora_a = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_a.T @ self.lora_b.T


def with_adapters(model):
    """Put adapters into the attention of a GPT, and freeze everything else."""
    for block in model.blocks:
        block.qkv, block.out = Adapted(block.qkv), Adapted(block.out)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora_" in name
    return model


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with strata.join() as run:
        config = {"text": str(TEXT), "steps": 60, "batch": 16} | run.config
        base, every = config.pop("base", ""), int(config.pop("save_every", 20))
        if not base:
            raise SystemExit("give the task of the base: --config base=TASK")
        settings = Settings(**config)
        model = with_adapters(GPT(settings)).to(run.device)
        adapters = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(adapters, lr=3e-3)
        strata.torch.data_parallel(run, model)
        # The base has no adapters: with strict=False they stay as they are initialised. The
        # optimizer of the base belongs to other parameters.
        run.restore(
            model=model, optimizer=optimizer, from_=base, strict=False, rename={"optimizer": None}
        )
        if run.rank == 0:
            trained, whole = (sum(e.numel() for e in p) for p in (adapters, model.parameters()))
            print(f"training {trained:,} of {whole:,} parameters")
        text = strata.open_dataset(
            settings.text,
            "tokens",
            dtype="uint8",
            length=settings.context + 1,
            stride=settings.context,
        )
        for batch in run.batches(text, global_batch=settings.batch, steps=settings.steps):
            with run.step() as step:
                loss, tokens = loss_of(model, batch, run.device)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step.log(loss=loss, tokens=tokens)
            if step.applied and run.steps % every == 0:
                run.save()
                if run.rank == 0:
                    print(f"step {run.steps}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
