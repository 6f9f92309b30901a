"""An ordinary script for torchrun, with nothing of Strata in it, that Strata runs unchanged.

    torchrun --nproc-per-node 2 examples/torchrun_ddp.py --epochs 4
    strata run --wrap torchrun examples/torchrun_ddp.py --workers 2 -- --epochs 4

Under Strata it gets the same environment variables, and gains the dashboard, the log of every rank
and `strata why`. When a rank dies, all ranks are started again, as torchrun does: the script
continues from its own last save, so the steps since then are trained again. The save stays in the
working folder (`--save`): delete it to train from the beginning again. docs/TUTORIAL.md shows
how to port such a script, so that a loss costs one step and each sample is trained once.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits import draw_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--save", type=Path, default=Path("torchrun_ddp.pt"))
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
images, labels = draw_digits(4_000, np.random.default_rng(1))
data = TensorDataset(torch.from_numpy(images).float().flatten(1) / 255, torch.from_numpy(labels))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = nn.Sequential(nn.Linear(data[0][0].numel(), 96), nn.ReLU(), nn.Linear(96, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

first = 0
if options.save.exists():
    saved = torch.load(options.save)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1
    print(f"rank {dist.get_rank()} continues at epoch {first}")
model = DistributedDataParallel(model)

for epoch in range(first, options.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": epoch}, options.save.with_suffix(".partial"))
        os.replace(options.save.with_suffix(".partial"), options.save)  # never half a file
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.barrier()
dist.destroy_process_group()
