"""A process that is one rank of an FSDP2 model: `fsdp.py save|load|grid RANK WORLD_SIZE FOLDER
PORT`.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Replicate, Shard

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.state.stateful import plain, restore_into
from strata.checkpoint.write.part_sidecar import Sidecar, write_sidecar
from strata.checkpoint.write.part_writer import write_part
from strata.checkpoint.write.rank_shares import own_share, shape_digest
from strata.checkpoint.write.staging import Staging
from strata.storage.folder import LocalStorage

CHECKPOINT = "step-00000003-1"


def whole_model() -> torch.nn.Module:
    """The same on every rank, and of sizes that no number of ranks divides evenly."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(13, 31), torch.nn.ReLU(), torch.nn.Linear(31, 7))


def sharded(mesh) -> dict[str, object]:
    model = whole_model()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(4, 13)).sum().backward()
    optimizer.step()
    number_all(model, optimizer, mesh)
    grid = torch.arange(35.0).reshape(7, 5)
    return {
        "model": model,
        "optimizer": optimizer,
        "columns": distribute_tensor(grid.clone(), mesh, [Shard(1)]),
        "copies": distribute_tensor(grid.clone(), mesh, [Replicate()]),
    }


def number_all(model, optimizer, mesh) -> None:
    """Give every parameter and moment numbers that do not depend on the number of ranks."""
    moments = [value for each in optimizer.state.values() for value in each.values()]
    with torch.no_grad():
        for index, value in enumerate([*model.parameters(), *moments]):
            if isinstance(value, DTensor):
                numbers = torch.arange(value.numel(), dtype=value.dtype).reshape(value.shape)
                value.copy_(distribute_tensor(numbers + index, mesh, value.placements))


def on_a_grid(world_size: int) -> dict[str, object]:
    """FSDP2 over tensor parallelism: the two linear layers are cut by columns, then by rows, and
    each part again. Every element's value is its position in the whole tensor.
    """
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(float(parameter.numel())).reshape(parameter.shape))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return {"model": model}


def save(storage: LocalStorage, state: dict[str, object], rank: int, world_size: int) -> None:
    flat = flatten(plain(state))
    sources = own_share(flat, rank, world_size)
    capture = Staging().capture(FlatState(flat.tree if rank == 0 else None, sources), {})
    part = write_part(storage, CHECKPOINT, rank, capture)
    sidecar = Sidecar(
        checkpoint_id=CHECKPOINT,
        step=3,
        epoch=0,
        attempt=1,
        world_size=world_size,
        shapes=shape_digest(flat),
        part=part,
    )
    write_sidecar(storage, sidecar)
    print(part.xxh3)


def whole(value: object) -> object:
    return value.full_tensor() if isinstance(value, DTensor) else value


def spoiled(state: dict[str, object]) -> None:
    with torch.no_grad():
        for value in [*state["model"].parameters(), state["columns"], state["copies"]]:
            value.to_local().fill_(-1)


def load(storage: LocalStorage, state: dict[str, object], expected: dict[str, object]) -> None:
    spoiled(state)
    with CheckpointReader(storage, Catalog(storage).read(CHECKPOINT)) as reader:
        restore_into(state, reader.load(plain(state)))
    for name, value in plain(expected)["model"].items():
        assert torch.equal(whole(plain(state)["model"][name]), whole(value)), name
    for name in ("columns", "copies"):
        assert torch.equal(whole(state[name]), whole(expected[name])), name
    moments, wanted = (plain(each)["optimizer"]["state"] for each in (state, expected))
    for index in wanted:
        for name, value in wanted[index].items():
            assert torch.equal(whole(moments[index][name]), whole(value)), (index, name)
    print("same")


def main() -> None:
    what, rank, world_size, folder, port = sys.argv[1:]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE=world_size)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (int(world_size),))
    storage = LocalStorage(Path(folder))
    if what == "grid":
        save(storage, on_a_grid(int(world_size)), int(rank), int(world_size))
    elif what == "save":
        save(storage, sharded(mesh), int(rank), int(world_size))
    else:
        load(storage, sharded(mesh), sharded(mesh))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo sometimes aborts while its threads are destroyed, after all work is done


if __name__ == "__main__":
    main()
