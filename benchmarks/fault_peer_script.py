"""The training script of `bench_fault_peers`: two workers that count their own samples.

In each step every worker trains `BATCH` samples, and all average. The model is the number of steps
it applied. Each process writes every applied step, with the moment, into a ledger of its own. When
file `hang` exists, the worker whose pid it names waits for ever in its main thread.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

STEP_S = 0.05
SAVE_EVERY = 20
BATCH = 4


class Ledger:
    """The applied steps of this process."""

    def __init__(self, folder, worker):
        self.folder, self.worker = Path(folder), worker
        self.file = (self.folder / f"ledger-{worker}-{os.getpid()}.jsonl").open("a")

    def applied(self, step, world):
        """Write a step."""
        line = {"step": step, "t": time.time(), "worker": self.worker, "pid": os.getpid()}
        self.file.write(json.dumps(line | {"samples": BATCH, "world": world}) + "\n")
        self.file.flush()

    def compute(self):
        """Take the time of a step; hang if this process is meant to."""
        time.sleep(STEP_S)
        hang = self.folder / "hang"
        if hang.exists() and hang.read_text() == str(os.getpid()):
            while True:
                time.sleep(1)

    @property
    def over(self):
        """Whether the run is to end."""
        return (self.folder / "finish").exists()


def train_with_all_reduce(folder, rank, world):
    """Average with torch.distributed; rank 0 saves, all resume from its checkpoint."""
    import torch.distributed as dist

    ledger = Ledger(folder, rank)
    saved = Path(folder) / "saved.pt"
    step = int(torch.load(saved)) if saved.exists() else 0
    while not ledger.over:
        ledger.compute()
        slope = torch.ones(4_096)
        dist.all_reduce(slope)
        step += 1
        ledger.applied(step, world)
        if rank == 0 and step % SAVE_EVERY == 0:
            torch.save(torch.tensor(step), f"{saved}.new")
            os.replace(f"{saved}.new", saved)


def by_torchrun(folder):
    """A worker of torchrun."""
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # A store for each restart: from torchrun's own, restarted ranks got addresses of dead ones.
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = dist.FileStore(f"{folder}/store-{restarts}", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    train_with_all_reduce(folder, rank, world)


def by_ray(folder):
    """The driver of Ray Train."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
    from ray.train.torch import TorchConfig, TorchTrainer

    def loop(config):
        context = get_context()
        train_with_all_reduce(config["folder"], context.get_world_rank(), context.get_world_size())

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True)
    TorchTrainer(
        loop,
        train_loop_config={"folder": folder},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()


def by_torchft(folder, worker, lighthouse):
    """A replica group of one process with torchft."""
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo

    ledger = Ledger(folder, worker)
    applied = torch.zeros(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=lambda state: applied.copy_(state["applied"]),
        state_dict=lambda: {"applied": applied},
        min_replica_size=1,
        replica_id=f"replica_{worker}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
    )
    while not ledger.over:
        manager.start_quorum()
        ledger.compute()
        manager.allreduce(torch.ones(4_096)).wait()
        if manager.should_commit():
            applied += 1
            ledger.applied(manager.current_step(), manager.num_participants())
    manager.shutdown()


if __name__ == "__main__":
    {"torchrun": by_torchrun, "ray": by_ray, "torchft": by_torchft}[sys.argv[1]](*sys.argv[2:])
