"""What the Python blocks of the documentation leave out: a small model, data and functions."""

import os

import numpy as np
import torch
from torch.utils.data import TensorDataset

import strata
import strata.torch

torch.set_num_threads(1)
os.makedirs("corpus", exist_ok=True)
(np.arange(1_000_000) % 50).astype(np.uint16).tofile("corpus/tokens.u16")


def Net():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


points = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
train_set = valid_set = TensorDataset(points, points[:, :3].argmax(1))
model = Net()
layer = model[0]
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
pixels, answer = np.zeros((8, 8), np.uint8), "forty-two"
saved = strata.CheckpointManager("./ckpts")
saved.save({"model": model.state_dict()}, step=10, epoch=1)
saved.wait_pending()
loss_of = torch.nn.functional.cross_entropy


def score(batch):
    x, y = batch
    return float((model(x).argmax(1) == y).float().mean())
