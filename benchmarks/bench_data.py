"""How fast shuffled batches come, against a NumPy memory-map gather and against peers.

One worker, warm cache, a shuffled epoch, samples of 1 KiB and 100 KiB; rounds of everything in
turn, so that a slow moment of the machine meets all; medians. `strata_*` are through `Batches`:
arrays, MDS shards and WebDataset tars as matrices (`decode`) and as plain bytes, one object each.
Also: resume to the first batch at any position, evaluating the order of 10^10 samples, and a change
from 4 to 3 workers in the middle of an epoch.

    python bench_data.py [--peers FOLDER] [--install] [--rounds N] [--scale X]

Peers are measured where FOLDER has an environment for them (FOLDER/mds, /wds and /torch), which
--install makes. Prints JSON; exits with 1 if a target that could be measured is missed.
"""

import argparse
import io
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
from common import median, show

from strata.core.order import Order, OrderSpec
from strata.data.batches import Batches
from strata.data.dataset import Dataset, open_dataset

SIZES = {"1KiB": (1 << 10, 200_000, 512), "100KiB": (100 << 10, 4_000, 64)}
NEEDS = {"mds": "mosaicml-streaming", "wds": "webdataset", "torch": "torchdata"}
TARGETS = {
    "1KiB": {"gather": 0.6, "mosaicml": 100, "webdataset": 50, "dataloader": 5},
    "100KiB": {"gather": 0.9, "mosaicml": 15, "webdataset": 8},
}


def write_npy(path: Path, size: int, count: int) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (count, size), np.uint8)
    np.save(path, rows)


def write_mds(folder: Path, rows: np.ndarray, per_file: int) -> None:
    """Shards as MosaicML's MDSWriter lays them out, one column of bytes."""
    folder.mkdir()
    shards = []
    for part, first in enumerate(range(0, len(rows), per_file)):
        block = rows[first : first + per_file]
        count, size = block.shape
        offsets = 4 + 4 * (count + 1) + (4 + size) * np.arange(count + 1, dtype=np.int64)
        heads = np.full((count, 1), size, "<u4").view(np.uint8)
        body = np.concatenate([heads, block], axis=1).tobytes()
        raw = struct.pack("<I", count) + offsets.astype("<u4").tobytes() + body
        name = f"shard.{part:05}.mds"
        (folder / name).write_bytes(raw)
        shards.append(
            {"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None]}
            | {"compression": None, "format": "mds", "hashes": [], "samples": count}
            | {"raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}}
            | {"size_limit": 1 << 26, "version": 2, "zip_data": None}
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def write_tars(folder: Path, rows: np.ndarray, per_file: int) -> None:
    folder.mkdir()
    for part, first in enumerate(range(0, len(rows), per_file)):
        with tarfile.open(folder / f"{part:05}.tar", "w") as tar:
            for at, row in enumerate(rows[first : first + per_file]):
                info = tarfile.TarInfo(f"{first + at:08}.x")
                info.size = row.nbytes
                tar.addfile(info, io.BytesIO(row.tobytes()))


def gather_rate(rows: np.ndarray, batch: int, seed: int) -> tuple[float, float]:
    order = np.random.default_rng(seed).permutation(len(rows))
    began = time.perf_counter(), time.process_time()
    for first in range(0, len(rows) - batch + 1, batch):
        rows[order[first : first + batch]]
    return per_second(len(rows) // batch * batch, began)


def per_second(count: int, began: tuple[float, float]) -> tuple[float, float]:
    """Samples a second, and a second of this process's CPU: steadier on a busy machine."""
    wall_s, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
    return count / wall_s, count / cpu_s


def strata_rate(dataset: Dataset, batch: int, seed: int) -> tuple[float, float]:
    order = dataset.order(batch, seed=seed)
    steps = order.steps_for(1, drop_tail=True)
    began = time.perf_counter(), time.process_time()
    with Batches(dataset, order, stop_step=steps) as batches:
        count = sum(len(each) for columns in batches for each in columns.values())
    assert count == steps * batch
    return per_second(count, began)


def resume_s(dataset: Dataset, batch: int, step: int) -> float:
    order = dataset.order(batch)
    state = Batches(dataset, order, start_step=step).state_dict()
    began = time.perf_counter()
    with Batches(dataset, order) as batches:
        batches.load_state_dict(state)
        next(batches)
        return time.perf_counter() - began


def rates(folder: Path, name: str, rounds: int, scale: float) -> dict[str, object]:
    size, count, batch = SIZES[name]
    count = max(4 * batch, int(count * scale))
    write_npy(folder / f"{name}.npy", size, count)
    rows = np.load(folder / f"{name}.npy", mmap_mode="r")
    write_mds(folder / f"{name}-mds", rows, max(1, (64 << 20) // size))
    write_tars(folder / f"{name}-tar", rows, max(1, (64 << 20) // size))
    paths = {kind: str(folder / f"{name}{end}") for kind, end in ENDS.items()}
    datasets = {
        "strata_npy": open_dataset(paths["npy"]),
        "strata_mds": open_dataset(paths["mds"], decode={"x": "uint8"}),
        "strata_mds_bytes": open_dataset(paths["mds"]),
        "strata_tar": open_dataset(paths["tar"], decode={"x": "uint8"}),
        "strata_tar_bytes": open_dataset(paths["tar"]),
    }
    found: dict[str, list[tuple[float, float]]] = {key: [] for key in ["gather", *datasets]}
    for turn in range(rounds + 1):  # the first warms the cache
        measured = {"gather": gather_rate(rows, batch, turn)}
        measured |= {key: strata_rate(each, batch, turn) for key, each in datasets.items()}
        for key, rate in measured.items() if turn else ():
            found[key].append(rate)
    resumes = [resume_s(datasets["strata_npy"], batch, 10**at) for at in range(8)]
    return {
        "samples_per_s": {key: int(median(r[0] for r in each)) for key, each in found.items()},
        "samples_per_cpu_s": {key: int(median(r[1] for r in each)) for key, each in found.items()},
        "resume_ms": median(resumes, 1e3),
        "paths": paths,
        "samples": count,
        "batch": batch,
    }


ENDS = {"npy": ".npy", "mds": "-mds", "tar": "-tar"}
PEERS = {
    "mosaicml": ("mds", "mds"),
    "webdataset": ("wds", "tar"),
    "dataloader": ("torch", "npy"),
    "stateful": ("torch", "npy"),
}


def peer(name: str, peers: Path, measured: dict, rounds: int) -> dict | None:
    home, kind = PEERS[name]
    python = peers / home / "bin" / "python"
    if not python.exists():
        return None
    samples = min(measured["samples"], 20_000) // measured["batch"] * measured["batch"]
    script = str(Path(__file__).with_name("peer_data.py"))
    arguments = [measured["paths"][kind], str(rounds), str(samples), str(measured["batch"])]
    done = subprocess.run(
        [python, script, name, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"{name} failed: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def install(peers: Path) -> None:
    for home, package in NEEDS.items():
        if not (peers / home).exists():
            subprocess.run([sys.executable, "-m", "venv", peers / home], check=True)
            pip = [peers / home / "bin" / "pip", "install", "--quiet"]
            subprocess.run([*pip, "torch==2.13.0", "numpy"], check=True)
            subprocess.run([*pip, package], check=True)


def huge_order() -> dict[str, object]:
    """10^10 samples in 10^6 shards: memory, and the time to go anywhere and order a batch."""
    result: dict[str, object] = {}
    for mode in ("global", "window", "sequential"):
        spec = OrderSpec(
            total_samples=10**10, shard_size=10**4, global_batch=512, lanes=128, mode=mode
        )
        tracemalloc.start()
        order = Order(spec)
        order.step_samples(1)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        took_s = []
        for at in range(200):
            began = time.perf_counter()
            order.step_samples(at * 7_919_993)
            took_s.append(time.perf_counter() - began)
        block = order.positions(12_345, 12_345 + 160).ravel()
        began = time.perf_counter()
        order.samples(block)
        each_ns = (time.perf_counter() - began) / block.size * 1e9
        seek = {"seek_ms": median(took_s, 1e3), "peak_bytes": peak_bytes}
        result[mode] = seek | {"ns_per_sample_in_blocks": round(each_ns)}
    return result


def resize() -> dict[str, int]:
    """4 workers, 3 from step 200 on: how many of 10,240 samples of an epoch are lost or twice."""
    spec = OrderSpec(total_samples=10_240, shard_size=64, global_batch=32, lanes=16)
    order = Order(spec)
    seen = np.zeros(10_240, np.int64)
    for step in range(order.steps_for(1)):
        for worker in range(4 if step < 200 else 3):
            lanes = range(worker, 16, 4 if step < 200 else 3)
            np.add.at(seen, order.step_samples(step, lanes), 1)
    return {"lost": int((seen == 0).sum()), "twice": int((seen > 1).sum())}


def compared(measured: dict, others: dict[str, dict | None]) -> dict[str, float]:
    """How many times as fast we are; peers that give bytes are compared on their own files."""
    ours = measured["samples_per_s"]
    by_cpu = measured["samples_per_cpu_s"]
    times = {
        "gather": round(ours["strata_npy"] / ours["gather"], 2),
        "gather_by_cpu": round(by_cpu["strata_npy"] / by_cpu["gather"], 2),
    }
    for name, mine in (("mosaicml", "mds"), ("webdataset", "tar"), ("dataloader", "npy")):
        if others.get(name):
            rate = median(others[name]["rates"])
            times[name] = round(ours[f"strata_{mine}"] / rate, 1)
            if mine != "npy":
                times[f"{name}_bytes"] = round(ours[f"strata_{mine}_bytes"] / rate, 1)
    return times


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "peers")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    chosen = parser.parse_args()
    if chosen.install:
        install(chosen.peers)
    folder = Path(tempfile.mkdtemp(prefix="strata-bench-"))
    result: dict[str, object] = {"rounds": chosen.rounds}
    missed = []
    try:
        for name in SIZES:
            measured = rates(folder, name, chosen.rounds, chosen.scale)
            others = {each: peer(each, chosen.peers, measured, chosen.rounds) for each in PEERS}
            times = compared(measured, others)
            for each, wanted in TARGETS[name].items():
                if each in times and times[each] < wanted:
                    missed.append(f"{name}: {times[each]}× {each}, wanted {wanted}×")
            del measured["paths"]
            measured["peers_per_s"] = {
                each: int(median(found["rates"])) for each, found in others.items() if found
            }
            measured["peers_resume_ms"] = {
                each: median(found["resumes_s"], 1e3)
                for each, found in others.items()
                if found and found["resumes_s"]
            }
            result[name] = measured | {"times": times}
    finally:
        shutil.rmtree(folder)
    result |= {"ten_billion": huge_order(), "resize_4_to_3": resize(), "missed": missed}
    show("data", result)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
