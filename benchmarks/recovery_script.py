"""The training script of `bench_recovery`: the same loop under torchrun and under Strata.

Under torchrun the gradients are averaged by gloo, and all workers resume from a checkpoint after a
restart; under Strata by `run.average`, and the survivors keep the state. Rank 0 writes each applied
step with its time and the number of workers; each process writes its pid.
"""

import os
import sys
import time
from pathlib import Path

import torch

STEP_S = 0.02
SIZE = 4_096


def noted(folder, generation, rank, world):
    """Write a line for a step that is done."""
    if rank == 0:
        with (folder / "steps").open("a") as file:
            file.write(f"{generation} {world} {time.monotonic()}\n")


def begun(folder, generation, rank):
    (folder / f"pid-{rank}.new").write_text(f"{generation} {os.getpid()}")
    (folder / f"pid-{rank}.new").replace(folder / f"pid-{rank}")


def gradient(weights):
    time.sleep(STEP_S)
    return weights * 0.01 + 1.0


def by_torchrun(folder):
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
    # A store for each restart: from torchrun's own, restarted ranks got addresses of dead ones.
    store = dist.FileStore(str(folder / f"store-{generation}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    begun(folder, generation, rank)
    saved = folder / "saved.pt"
    weights, step = torch.zeros(SIZE), 0
    if saved.exists():
        weights, step = torch.load(saved)
    while not (folder / "finish").exists():
        slope = gradient(weights)
        dist.all_reduce(slope)
        weights -= slope / world
        step += 1
        noted(folder, generation, rank, world)
        if rank == 0 and step % 50 == 0:
            torch.save((weights, step), f"{saved}.new")
            os.replace(f"{saved}.new", saved)


def by_strata(folder):
    import strata

    with strata.join() as run:
        begun(folder, run.generation, run.rank)
        state = run.restore({"weights": torch.zeros(SIZE).numpy()})
        while not (folder / "finish").exists():
            try:
                slope = gradient(torch.from_numpy(state["weights"]))
                state["weights"] -= run.average(slope.numpy())
                noted(folder, run.generation, run.rank, run.world_size)
                if not run.mark_step():
                    break
            except strata.GenerationChanged:
                run.recover()
                begun(folder, run.generation, run.rank)


if __name__ == "__main__":
    {"torchrun": by_torchrun, "strata": by_strata}[sys.argv[1]](Path(sys.argv[2]))
