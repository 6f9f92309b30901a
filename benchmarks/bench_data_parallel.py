"""Time of a training step: bare, with DistributedDataParallel, and with `data_parallel`.

On a GPU one process trains GPT-2-small (124 million parameters in bfloat16, batch 16 × 1,024),
eagerly and compiled. One worker alone needs no communication, so `data_parallel` is measured twice:
as it is, and with everything that several workers do (buckets, all-reduces by nccl, the wait before
the optimizer). DistributedDataParallel always does these. On the CPU four workers, real processes
under a real coordinator, train a small transformer by gloo with one thread each.

The sides take turns in rounds, so that all see the same machine; medians over the rounds count.
Prints JSON. Exits with 1 when `data_parallel` takes more than 1.01 times the step of
DistributedDataParallel on the GPU, or 1.05 times on the CPU.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import median, show
from processes import coordinator
from torch.nn.parallel import DistributedDataParallel

import strata
from strata.sdk.steps.step_block import StepHooks
from strata.torch.data_parallel import DataParallel

ROUNDS = 7
GPU = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50_304, "length": 1_024, "batch": 16}
CPU = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 4_096, "length": 64, "batch": 4}
WORKERS = 4
GPU_BOUND, CPU_BOUND = 1.01, 1.05


class Layer(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.inner, self.outer = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide, self.narrow = (
            torch.nn.Linear(width, 4 * width),
            torch.nn.Linear(4 * width, width),
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.inner(self.first(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outer(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x)), approximate="tanh"))


class Transformer(torch.nn.Module):
    """GPT-2's architecture, with the output weights tied to the embedding."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        width = size["width"]
        self.tokens = torch.nn.Embedding(size["vocabulary"], width)
        self.places = torch.nn.Embedding(size["length"], width)
        self.layers = torch.nn.ModuleList(
            Layer(width, size["heads"]) for _ in range(size["layers"])
        )
        self.last = torch.nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.last(x) @ self.tokens.weight.t()


class Side:
    """One way of training: its own model, and the code around its step."""

    def __init__(self, size: dict[str, int], device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.model = Transformer(size).to(device, dtype)
        self.called: Callable[[torch.Tensor], torch.Tensor] = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        shape = (size["batch"], size["length"])
        self.tokens = torch.randint(0, size["vocabulary"], shape, device=device)

    def step(self) -> None:
        logits = self.called(self.tokens)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), self.tokens.view(-1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Ours(Side):
    """With `data_parallel`; the hooks of the other sides are not part of its steps."""

    def __init__(self, run: strata.Run, communicate: bool, *given: object) -> None:
        super().__init__(*given)
        self.run, self.hooks = run, StepHooks()
        hook = DataParallel(run, self.model, None, True, True)
        hook.always_communicate = communicate
        self.hooks.add(hook)

    def step(self) -> None:
        self.run._hooks = self.hooks
        with self.run.step():
            super().step()


class Distributed(Side):
    """With DistributedDataParallel."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.called = DistributedDataParallel(self.model)


def timed_rounds(sides: dict[str, Side], steps: int, warm: int, sync: Callable[[], object]):
    """Milliseconds per step, by side: the sides take turns."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        for _ in range(warm):
            side.step()
        sync()
    for _ in range(ROUNDS):
        for name, side in sides.items():
            sync()
            began = time.perf_counter()
            for _ in range(steps):
                side.step()
            sync()
            found[name].append((time.perf_counter() - began) / steps)
    return {name: median(values, 1e3) for name, values in found.items()}


def join_torch(run: strata.Run, backend: str, folder: str) -> None:
    """Form the default group, for DistributedDataParallel."""
    store = dist.FileStore(f"{folder}/store", run.world_size)
    dist.init_process_group(
        backend,
        store=store,
        rank=run.rank,
        world_size=run.world_size,
        timeout=timedelta(minutes=5),
    )


def on_gpu(run: strata.Run, folder: str) -> dict[str, object]:
    """GPT-2-small in one process."""
    join_torch(run, "nccl", folder)
    given = (GPU, "cuda", torch.bfloat16)
    found: dict[str, object] = {}
    for kind in ("eager", "compiled"):
        makers = {
            "bare": partial(Side, *given),
            "ddp": partial(Distributed, *given),
            "ours": partial(Ours, run, False, *given),
            "ours, communicating": partial(Ours, run, True, *given),
        }
        sides = {name: make() for name, make in makers.items()}
        if kind == "compiled":
            for side in sides.values():
                side.called = torch.compile(side.called)
        found[kind] = timed_rounds(sides, 20, 8, torch.cuda.synchronize)
        del sides
        torch.cuda.empty_cache()
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **found}


def on_cpu(run: strata.Run, folder: str) -> dict[str, object]:
    """A small transformer on several workers."""
    torch.set_num_threads(1)
    join_torch(run, "gloo", folder)
    given = (CPU, "cpu", torch.float32)
    sides = {
        "bare": Side(*given),
        "ddp": Distributed(*given),
        "ours": Ours(run, False, *given),
    }
    size = sum(each.numel() for each in sides["bare"].model.parameters())
    times = timed_rounds(sides, 5, 3, dist.barrier)
    return {"parameters": size, "workers": run.world_size, "torch": torch.__version__, **times}


def work(address: str, device: str, folder: str, worker: str, world_size: int) -> None:
    """Run one worker, which prints its measurements."""
    with strata.join(address, worker, world_size=world_size) as run:
        found = (on_gpu if device == "gpu" else on_cpu)(run, folder)
        run.barrier("measured")
        if run.rank == 0:
            print("result " + json.dumps(found), flush=True)
    dist.destroy_process_group()


def measured(device: str, workers: int) -> dict[str, object]:
    """The measurements of the workers of one task."""
    with tempfile.TemporaryDirectory() as folder, coordinator(Path(folder)) as server:
        return crew_of(f"127.0.0.1:{server.port}", device, workers, folder)


def crew_of(address: str, device: str, workers: int, folder: str) -> dict[str, object]:
    command = [sys.executable, __file__, address, device, folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1" if device == "cpu" else "8"}
    crew = [
        subprocess.Popen(
            [*command, f"{device}-{number}", str(workers)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(workers)
    ]
    said = [worker.communicate(timeout=500)[0] for worker in crew]
    (line,) = [each for text in said for each in text.splitlines() if each.startswith("result ")]
    return json.loads(line.removeprefix("result "))


def main() -> None:
    found: dict[str, object] = {}
    late = False
    if torch.cuda.is_available():
        gpu = found["gpu"] = measured("gpu", 1)
        for times in (gpu["eager"], gpu["compiled"]):
            for side in ("ours", "ours, communicating"):
                ratio = times[f"{side} / ddp"] = round(times[side] / times["ddp"], 4)
                late |= ratio > GPU_BOUND
    cpu = found["cpu"] = measured("cpu", WORKERS)
    cpu["ours / ddp"] = round(cpu["ours"] / cpu["ddp"], 4)
    late |= cpu["ours / ddp"] > CPU_BOUND
    show("data_parallel", found)
    sys.exit(late)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(*sys.argv[1:5], int(sys.argv[5]))
    else:
        main()
