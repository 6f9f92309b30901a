"""Cost of a checkpoint: stall, durable save, restore, and time taken from training.

A state of 1 GiB in 200 tensors, all of which change between two saves. Each figure is compared with
the limit of the machine (one thread's memcpy into prepared memory; O_DIRECT + fsync; a raw parallel
read) and with other libraries that are installed (`checkpoint_peers`). All are measured in turns,
round by round, so that other load affects all alike; figures are medians, comparisons are medians
of the ratios of the rounds. Takes about four minutes.

    python benchmarks/bench_checkpoint.py [--folder FOLDER] [--rounds 5] [--mib 1024]
                                          [--orbax PYTHON]

Prints one JSON object. Torch is imported from this environment, Orbax from that of `--orbax` (its
python; `pip install orbax-checkpoint`); libraries that are not installed are left out.
"""

import argparse
import os
import resource
import tempfile
import time
from contextlib import nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from checkpoint_measures import Figures, Training, forget, timed
from checkpoint_peers import DCP_KINDS, TorchPeers
from common import show
from processes import answering

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.read.box_overlaps import Box, even_cuts, overlaps
from strata.storage.huge_pages import huge_memory, populate
from strata.storage.io_threads import for_each

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
    memory = huge_memory(-(-size // BLOCK) * BLOCK)
    populate(memory)
    return memoryview(memory)


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


def train_on(state) -> None:
    """Change every tensor, because unchanged tensors would not be written."""
    for array in state.values():
        array += 1


def measure_ours(figures, name, manager, state, step, training) -> None:
    train_on(state)
    begun = time.perf_counter()
    manager.save(state, step=step)
    figures[f"{name}_stall_s"].append(time.perf_counter() - begun)
    while not manager.progress.committed:
        time.sleep(0.001)
    figures[f"{name}_total_s"].append(time.perf_counter() - begun)
    manager.wait_pending()
    figures[f"{name}_with_retention_s"].append(time.perf_counter() - begun)
    train_on(state)
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


def memory_growth(folder: Path, saves: int = 100) -> dict[str, float]:
    """Resident memory after a few saves and after many, of 64 MiB each."""
    state = {"a": np.zeros(16 * 2**20, np.float32)}
    with CheckpointManager(folder, keep_count=2) as manager:
        for step in range(saves + 10):
            train_on(state)
            manager.save(state, step=step)
            if step == 10:
                manager.wait_pending()
                before = resident_mib()
        manager.wait_pending()
        staging = manager._staging.size_bytes / state["a"].nbytes
        return {"growth_mib": round(resident_mib() - before, 1), "staging_to_state": staging}


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def reshard_plan_s() -> float:
    """Seconds in which one of 777 ranks finds its rows of 200 tensors that 1,000 ranks saved."""
    saved, wanted = even_cuts(1_000_003, 1_000).tolist(), even_cuts(1_000_003, 777).tolist()
    boxes = [Box([start, 0], [stop - start, 64]) for start, stop in pairwise(saved)]
    own = Box([wanted[400], 0], [wanted[401] - wanted[400], 64])

    def plan() -> None:
        for _ in range(TENSORS):
            overlaps(boxes, own)

    return timed(plan)


def ratios(figures: Figures) -> dict[str, float]:
    found = {
        "capture_to_memcpy": figures.ratio("recycled_stall_s", "memcpy_s"),
        "fresh_to_disk_fresh": figures.ratio("fresh_total_s", "disk_fresh_s"),
        "recycled_to_disk_fresh": figures.ratio("recycled_total_s", "disk_fresh_s"),
        "recycled_to_disk_recycled": figures.ratio("recycled_total_s", "disk_recycled_s"),
        "restore_to_raw_read": figures.ratio("restore_s", "read_raw_s"),
    }
    if "dcp_load_s" in figures:
        totals = [f"{name}_total_s" for name in ("dcp_save", *DCP_KINDS)]
        best = min(totals, key=figures.median)
        found |= {
            "best_dcp_to_ours": figures.ratio(best, "recycled_total_s"),
            "stolen_to_dcp_thread": figures.ratio("recycled_stolen_s", "dcp_thread_stolen_s"),
            "stolen_to_dcp_process": figures.ratio("recycled_stolen_s", "dcp_process_stolen_s"),
            "dcp_load_to_restore": figures.ratio("dcp_load_s", "restore_s"),
        }
    return found


def verdicts(found: dict[str, float]) -> dict[str, str]:
    verdicts_by_name = {}
    for name, (sign, bound) in TARGETS.items():
        if name in found:
            met = found[name] <= bound if sign == "<=" else found[name] >= bound
            verdicts_by_name[name] = (
                f"{found[name]:.2f} {sign} {bound}: {'met' if met else 'missed'}"
            )
    return verdicts_by_name


def measure(folder: Path, rounds: int, mib: int, orbax) -> dict[str, object]:
    """Measure everything, round by round; `orbax` is a program that saves once, if installed."""
    state = make_state(mib)
    image = prepared(sum(array.nbytes for array in state.values()))
    figures, training = Figures(), Training()
    peers = None
    with suppress(ImportError):
        peers = TorchPeers(folder, state)
    recycled = CheckpointManager(folder / "recycled", keep_count=1)
    fresh = CheckpointManager(folder / "fresh", keep_count=1, recycle=False)
    for manager in (recycled, fresh):
        manager.prepare(state)
        for step in range(3):
            train_on(state)
            manager.save(state, step=step)
        manager.wait_pending()
    for turn in range(rounds):
        measure_limits(figures, folder, state, image)
        measure_ours(figures, "recycled", recycled, state, 10 + 2 * turn, training)
        measure_ours(figures, "fresh", fresh, state, 10 + 2 * turn, training)
        measure_restore(figures, recycled, state)
        if peers is not None:
            peers.measure(figures, training)
        if orbax is not None:
            for name, took_s in orbax("save").items():
                figures[f"orbax_{name}"].append(took_s)
    for manager in (recycled, fresh):
        manager.close()
    found = ratios(figures) | memory_growth(folder / "growth")
    found["reshard_plan_s"] = reshard_plan_s()
    return {
        "state_mib": mib,
        "rounds": rounds,
        "peers": peers.versions() if peers is not None else "not installed",
        "seconds": figures.medians(),
        "ratios": {name: round(value, 3) for name, value in found.items()},
        "targets": verdicts(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--orbax", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        script = Path(__file__).with_name("peer_orbax.py")
        program = [options.orbax, script, folder, options.mib, TENSORS]
        with answering(program) if options.orbax else nullcontext() as orbax:
            results = measure(Path(folder), options.rounds, options.mib, orbax)
    show("checkpoint", results)


if __name__ == "__main__":
    main()
