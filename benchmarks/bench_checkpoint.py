"""What a checkpoint costs: the stall, the durable save, the restore, the time stolen from training.

A state of 1 GiB in 200 tensors. Each figure stands beside what the machine can do at all (one
thread's memcpy into prepared memory; O_DIRECT + fsync; a raw parallel read) and beside other
libraries where they are installed (torch.save, safetensors, torch.distributed.checkpoint). All are
taken in turn, round by round, so that a busy moment hits them alike; the figures are medians.

    python benchmarks/bench_checkpoint.py [--folder FOLDER] [--rounds 5] [--mib 1024]

Prints one JSON object. Peers need `pip install torch==2.13.0 safetensors`, best in an environment
of their own; without them they are left out.
"""

import argparse
import json
import mmap
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.reshard import even_cuts, plan_cuts
from strata.storage.parallel import for_each

TENSORS = 200
BLOCK = 16 * 1024 * 1024
TARGETS = {
    "capture_to_memcpy": ("<=", 1.1),
    "fresh_to_disk_fresh": ("<=", 1.2),
    "recycled_to_disk_fresh": ("<=", 0.7),
    "best_dcp_to_ours": (">=", 4.0),
    "stolen_to_dcp_thread": ("<=", 0.15),
    "stolen_to_dcp_process": ("<=", 0.3),
    "dcp_load_to_restore": (">=", 3.0),
    "restore_to_raw_read": ("<=", 1.5),
    "staging_to_state": ("<=", 1.1),
    "reshard_plan_s": ("<=", 1.0),
}


def make_state(mib: int) -> dict[str, np.ndarray]:
    count = mib * 2**20 // TENSORS // 4
    random = np.random.default_rng(7)
    return {
        f"layer-{i:03d}.weight": random.standard_normal(count, np.float32) for i in range(TENSORS)
    }


def prepared(size: int) -> memoryview:
    memory = mmap.mmap(-1, -(-size // BLOCK) * BLOCK)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[::4096] = 1
    return memoryview(memory)


def timed(work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def write_direct(path: Path, image: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    for_each(lambda at: os.pwrite(fd, image[at : at + BLOCK], at), range(0, image.nbytes, BLOCK), 4)
    os.fsync(fd)
    os.close(fd)


def read_raw(path: Path, image: memoryview, direct: bool) -> None:
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    for_each(
        lambda at: os.preadv(fd, [image[at : at + BLOCK]], at), range(0, image.nbytes, BLOCK), 8
    )
    os.close(fd)


def forget(path: Path) -> None:
    """Takes files out of the page cache, so that a read is a read."""
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def training_step(matrix: np.ndarray) -> None:
    """About half in Python, half in a kernel that lets go of the GIL, as a training loop is."""
    matrix @ matrix
    total = 0
    for index in range(12_000):
        total += index


class Training:
    """Runs steps while something is in flight; what it lost is what the other took."""

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(1).standard_normal((256, 256), np.float32)

    def step_s(self) -> float:
        return statistics.median(timed(lambda: training_step(self.matrix)) for _ in range(200))

    def stolen_s(self, step_s: float, in_flight) -> float:
        begun, steps = time.perf_counter(), 0
        while in_flight():
            training_step(self.matrix)
            steps += 1
        return time.perf_counter() - begun - steps * step_s


class Figures(defaultdict):
    """Every round's figure by name."""

    def __init__(self) -> None:
        super().__init__(list)

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(values), 4) for name, values in self.items()}


def measure_ours(figures, name, manager, state, step, training) -> None:
    begun = time.perf_counter()
    manager.save(state, step=step)
    figures[f"{name}_stall_s"].append(time.perf_counter() - begun)
    while not manager.progress.committed:
        time.sleep(0.001)
    figures[f"{name}_total_s"].append(time.perf_counter() - begun)
    manager.wait_pending()
    figures[f"{name}_with_retention_s"].append(time.perf_counter() - begun)
    step_s = training.step_s()
    manager.save(state, step=step + 1)
    figures[f"{name}_stolen_s"].append(training.stolen_s(step_s, lambda: manager.busy))
    manager.wait_pending()


def measure_limits(figures, folder: Path, state, image: memoryview) -> None:
    target = np.frombuffer(image, np.uint8)

    def copy() -> None:
        at = 0
        for array in state.values():
            flat = array.view(np.uint8)
            np.copyto(target[at : at + flat.nbytes], flat)
            at += flat.nbytes

    figures["memcpy_s"].append(timed(copy))
    fresh = folder / "limit-fresh"
    figures["disk_fresh_s"].append(timed(partial(write_direct, fresh, image)))
    figures["disk_recycled_s"].append(timed(partial(write_direct, fresh, image)))
    forget(fresh)
    figures["read_raw_s"].append(timed(partial(read_raw, fresh, image, False)))
    figures["read_direct_s"].append(timed(partial(read_raw, fresh, image, True)))
    fresh.unlink()


def measure_restore(figures, manager, state) -> None:
    part = Path(manager.latest().path)
    forget(part)
    figures["restore_s"].append(timed(partial(manager.load, into=state)))


class Peers:
    """What other libraries take for the same tensors."""

    def __init__(self, folder: Path, state) -> None:
        import torch
        import torch.distributed.checkpoint as dcp
        from safetensors.torch import save_file

        self.torch, self.dcp, self.save_file = torch, dcp, save_file
        self.folder = folder
        self.state = {name: torch.from_numpy(array) for name, array in state.items()}
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29531")
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)

    def versions(self) -> dict[str, str]:
        import safetensors

        return {"torch": self.torch.__version__, "safetensors": safetensors.__version__}

    def synced(self, save, path: Path) -> None:
        save(path)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def measure(self, figures, training) -> None:
        file = self.folder / "peer"
        for name, save in (
            ("torch_save", lambda path: self.torch.save(self.state, path)),
            ("safetensors", lambda path: self.save_file(self.state, path)),
        ):
            figures[f"{name}_total_s"].append(timed(partial(self.synced, save, file)))
            file.unlink()
        folder = self.folder / "dcp"
        save = partial(self.dcp.save, self.state, checkpoint_id=str(folder))
        figures["dcp_save_total_s"].append(timed(save))
        forget(folder)
        target = {name: self.torch.zeros_like(value) for name, value in self.state.items()}
        load = partial(self.dcp.load, target, checkpoint_id=str(folder))
        figures["dcp_load_s"].append(timed(load))
        del target
        shutil.rmtree(folder)
        for name, kind in self.async_kinds().items():
            self.measure_async(figures, name, kind, training)

    def async_kinds(self) -> dict[str, object]:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        return {
            "dcp_thread": AsyncCheckpointerType.THREAD,
            "dcp_process": AsyncCheckpointerType.PROCESS,
        }

    def measure_async(self, figures, name, kind, training) -> None:
        folder = self.folder / name
        save = partial(
            self.dcp.async_save,
            self.state,
            checkpoint_id=str(folder),
            async_checkpointer_type=kind,
        )
        begun = time.perf_counter()
        future = save()
        figures[f"{name}_stall_s"].append(time.perf_counter() - begun)
        future.result()
        figures[f"{name}_total_s"].append(time.perf_counter() - begun)
        shutil.rmtree(folder)
        step_s = training.step_s()
        future = save()
        figures[f"{name}_stolen_s"].append(training.stolen_s(step_s, lambda: not future.done()))
        future.result()
        shutil.rmtree(folder)


def memory_growth(folder: Path, saves: int = 100) -> dict[str, float]:
    """Resident memory after a few saves and after many, of 64 MiB each."""
    state = {"a": np.zeros(16 * 2**20, np.float32)}
    with CheckpointManager(folder, keep_count=2) as manager:
        for step in range(10):
            manager.save(state, step=step)
        manager.wait_pending()
        before = resident_mib()
        for step in range(10, saves):
            manager.save(state, step=step)
        manager.wait_pending()
        staging = manager._staging.size_bytes / state["a"].nbytes
        return {"growth_mib": round(resident_mib() - before, 1), "staging_to_state": staging}


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def reshard_plan_s() -> float:
    """Where 777 ranks find what 1,000 saved, for 200 tensors."""

    def plan() -> None:
        for index in range(TENSORS):
            length = 1_000_003 + index
            plan_cuts(even_cuts(length, 1_000), even_cuts(length, 777))

    return timed(plan)


def ratios(figures: dict[str, float]) -> dict[str, float]:
    found = {
        "capture_to_memcpy": figures["recycled_stall_s"] / figures["memcpy_s"],
        "fresh_to_disk_fresh": figures["fresh_total_s"] / figures["disk_fresh_s"],
        "recycled_to_disk_fresh": figures["recycled_total_s"] / figures["disk_fresh_s"],
        "recycled_to_disk_recycled": figures["recycled_total_s"] / figures["disk_recycled_s"],
        "restore_to_raw_read": figures["restore_s"] / figures["read_raw_s"],
    }
    if "dcp_load_s" in figures:
        best = min(figures[f"{name}_total_s"] for name in ("dcp_save", "dcp_thread", "dcp_process"))
        found |= {
            "best_dcp_to_ours": best / figures["recycled_total_s"],
            "stolen_to_dcp_thread": figures["recycled_stolen_s"] / figures["dcp_thread_stolen_s"],
            "stolen_to_dcp_process": figures["recycled_stolen_s"] / figures["dcp_process_stolen_s"],
            "dcp_load_to_restore": figures["dcp_load_s"] / figures["restore_s"],
        }
    return found


def verdicts(found: dict[str, float]) -> dict[str, str]:
    told = {}
    for name, (sign, bound) in TARGETS.items():
        if name in found:
            met = found[name] <= bound if sign == "<=" else found[name] >= bound
            told[name] = f"{found[name]:.2f} {sign} {bound}: {'met' if met else 'missed'}"
    return told


def measure(folder: Path, rounds: int, mib: int) -> dict[str, object]:
    state = make_state(mib)
    image = prepared(sum(array.nbytes for array in state.values()))
    figures, training = Figures(), Training()
    peers = None
    with suppress(ImportError):
        peers = Peers(folder, state)
    recycled = CheckpointManager(folder / "recycled", keep_count=1)
    fresh = CheckpointManager(folder / "fresh", keep_count=1, recycle=False)
    for manager in (recycled, fresh):
        manager.prepare(state)
        for step in range(3):
            manager.save(state, step=step)
        manager.wait_pending()
    for turn in range(rounds):
        measure_limits(figures, folder, state, image)
        measure_ours(figures, "recycled", recycled, state, 10 + 2 * turn, training)
        measure_ours(figures, "fresh", fresh, state, 10 + 2 * turn, training)
        measure_restore(figures, recycled, state)
        if peers is not None:
            peers.measure(figures, training)
    for manager in (recycled, fresh):
        manager.close()
    medians = figures.medians()
    found = ratios(medians) | memory_growth(folder / "growth")
    found["reshard_plan_s"] = reshard_plan_s()
    return {
        "state_mib": mib,
        "rounds": rounds,
        "peers": peers.versions() if peers is not None else "not installed",
        "seconds": medians,
        "ratios": {name: round(value, 3) for name, value in found.items()},
        "targets": verdicts(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options.rounds, options.mib)
    machine = {"machine": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({"benchmark": "checkpoint", **machine, **results}, indent=2))


if __name__ == "__main__":
    main()
