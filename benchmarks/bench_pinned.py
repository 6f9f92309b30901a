"""Throughput of batches to a CUDA device, through pinned and through plain memory.

Images of 150 KiB in a memory-mapped array, shuffled, read through `strata.torch.Loading` with
worker processes and without, copied to the device without waiting, and summed there. Every batch
is checked to be pinned or not, as requested, and the sums are compared with those of the order's
samples: a copy that the next batch had overwritten would give a different sum. A transform with
state is checked in the same way.
Needs a CUDA device and PyTorch.

    python benchmarks/bench_pinned.py [--rounds 5] [--images 4096]

Prints JSON; figures are medians.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import median, show

from strata.data.formats.row_gather import objects
from strata.data.reading.lane_transforms import Packing, PerLane
from strata.data.source_dataset import Dataset, open_arrays, open_dataset
from strata.torch import Loading

SHAPE, BATCH = (3, 224, 224), 64
WAYS = {
    f"{'pinned' if pinned else 'plain'}_{processes}": {
        "pin_memory": pinned,
        "num_workers": processes,
        "persistent_workers": processes > 0,
    }
    for pinned in (False, True)
    for processes in (0, 4)
}


def train(dataset: Dataset, seed: int, sums: np.ndarray, how: dict) -> float:
    """Images per second of one epoch; checks the samples and the memory of each batch."""
    order = dataset.order(BATCH, seed=seed)
    steps = order.steps_for(1, drop_tail=True)
    stream = Loading(**how)(dataset, order, None, 0, steps)
    found = []
    next_batch = next(stream)
    began = time.perf_counter()
    for step in range(steps):
        batch = next_batch
        assert batch["data"].is_pinned() == how["pin_memory"]
        images = batch["data"].to("cuda", non_blocking=True)
        found.append(images.sum(dim=(1, 2, 3), dtype=torch.int64))
        if step + 1 < steps:
            next_batch = next(stream)
    torch.cuda.synchronize()
    took_s = time.perf_counter() - began
    wanted = sums[order.samples(np.arange(steps * BATCH))]
    assert np.array_equal(torch.cat(found).cpu().numpy(), wanted)
    stream.close()
    return steps * BATCH / took_s


def check_packing() -> None:
    """Check that rows made by a transform with state are pinned, too."""
    documents = objects([np.arange(1, 3 + row % 17) for row in range(256)], 256)
    dataset = open_arrays({"tokens": documents})
    packing = PerLane(lambda: Packing("tokens", 64))
    engine = Loading(num_workers=2, pin_memory=True)
    stream = engine(dataset, dataset.order(16, lanes=4), None, 0, 16, transform=packing)
    batches = [next(stream) for _ in range(16)]
    stream.close()
    made = [values for batch in batches for values in batch.values()]
    assert all(values.is_pinned() for values in made if values.numel())
    tokens = sum(int((batch["segments"] > 0).sum()) for batch in batches)
    assert tokens == sum(map(len, documents))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=4_096)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no CUDA device", file=sys.stderr)
        return 0
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="strata-pinned-") as folder:
        path = Path(folder) / "images.npy"
        images = np.random.default_rng(0).integers(0, 256, (chosen.images, *SHAPE), np.uint8)
        np.save(path, images)
        sums = images.reshape(chosen.images, -1).sum(axis=1, dtype=np.int64)
        del images
        dataset = open_dataset(str(path))
        for turn in range(chosen.rounds + 1):  # the first warms the cache
            for name, how in WAYS.items():
                rate = train(dataset, turn, sums, how)
                rates[name] += [rate] if turn else []
    check_packing()
    figures = {name: int(median(found)) for name, found in rates.items()}
    show("pinned", {"device": torch.cuda.get_device_name(), "images_per_s": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
