"""Train a small GPT on a text file: elastic, with checkpoints, continued after any kill.

    strata run examples/gpt.py --workers 2 --kill 1
    strata run examples/gpt.py --resume          # after Ctrl-C, or a kill of the whole run
    strata run examples/gpt.py --workers 1:4     # takes free slots while it trains

Every byte of the file is a token, so nothing has to be prepared. The defaults train in seconds on a
CPU, on a page of this project's documentation. The same code trains larger models on GPUs:

    strata run examples/gpt.py --workers 8 --config text=corpus.txt --config layers=12 \
        --config width=768 --config heads=12 --config context=1024 --config batch=256 \
        --config steps=100000 --config lr=0.0006 --config compile=true

`strata metrics gpt-1 loss tokens/s --plot --data FOLDER` draws the loss and the speed; `strata run`
prints the folder as `data`.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import strata
import strata.torch

TEXT = Path(__file__).parents[1] / "docs" / "DECISIONS.md"
VOCABULARY = 256


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `--config NAME=VALUE` sets; an unknown name is an error."""

    text: str = str(TEXT)
    layers: int = 2
    width: int = 128
    heads: int = 4
    context: int = 64
    # Samples in a step, over all workers: it stays the same when workers come and go.
    batch: int = 16
    steps: int = 300
    warmup: int = 20
    lr: float = 1e-3
    compile: bool = False


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder over bytes; the embedding is also the output layer."""

    def __init__(self, settings):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, settings.width)
        self.place = nn.Embedding(settings.context, settings.width)
        self.blocks = nn.ModuleList(
            Block(settings.width, settings.heads) for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(settings.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embed.weight.T


def loss_of(model, batch, device):
    """The mean cross entropy of the next token, and the number of tokens."""
    tokens = torch.from_numpy(batch["tokens"]).to(device, torch.long)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    return loss, tokens[:, 1:].numel()


def warmup_and_cosine(settings):
    """The factor of the learning rate in each step."""

    def factor(step):
        past = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
        cosine = 0.55 + 0.45 * math.cos(math.pi * min(max(past, 0.0), 1.0))
        return min((step + 1) / settings.warmup, 1.0) * cosine

    return factor


@torch.no_grad()
def continued(model, text, count, context, device):
    """A text, continued by the model."""
    tokens = torch.tensor([list(text.encode())], device=device)
    for _ in range(count):
        # `forward` is not compiled: every length of the text would be compiled anew.
        scores = model.forward(tokens[:, -context:])[:, -1].float()
        tokens = torch.cat([tokens, torch.multinomial(scores.softmax(-1), 1)], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def main():
    torch.set_num_threads(1)  # workers share the cores of a CPU
    torch.manual_seed(0)
    with strata.join() as run:
        settings = Settings(**run.config)
        # Samples of context + 1 tokens: each token but the last has a next one. No copy is made.
        text = strata.open_dataset(
            settings.text,
            "tokens",
            dtype="uint8",
            length=settings.context + 1,
            stride=settings.context,
        )
        model = GPT(settings).to(run.device)
        if settings.compile:
            model.compile()
        optimizer = torch.optim.AdamW(model.parameters(), settings.lr, (0.9, 0.95), fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_and_cosine(settings))
        strata.torch.data_parallel(run, model)
        run.restore(model=model, optimizer=optimizer, schedule=schedule)

        parameters = sum(each.numel() for each in model.parameters())
        run.log_config(asdict(settings) | {"flops_per_token": 6 * parameters})  # for MFU on GPUs
        for _ in run.epochs(max_steps=settings.steps):
            for batch in run.batches(text, global_batch=settings.batch):
                with run.step() as step:  # applied by every worker or by none
                    loss, tokens = loss_of(model, batch, run.device)
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    step.log(loss=loss, lr=schedule.get_last_lr()[0], tokens=tokens)
                if step.applied and run.rank == 0 and run.steps % 20 == 0:
                    print(f"step {run.steps}: loss {loss.item():.3f}")
        if run.rank == 0:
            said = continued(model, "The coordinator ", 120, settings.context, run.device)
            run.log(sample=strata.Text(said))
            print(said)


if __name__ == "__main__":
    main()
