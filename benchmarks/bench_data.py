"""Throughput of shuffled batches, compared with a NumPy memory-map gather and with peers.

One worker, warm cache, a shuffled epoch, samples of 1 KiB and 100 KiB. All are measured in turns,
in rounds, so that other load affects all alike; figures are medians. `gather` indexes a
memory-mapped array; its loop holds a batch until it has the next one, as any loop does. `strata_*`
use `Batches` with its defaults: arrays, MDS shards and WebDataset tars as matrices (`decode`) and
as plain bytes, one object each. `strata_npy_asked` has no read-ahead. `overlap` is the speed-up by
read-ahead of a loop that computes for as long as the gather takes.

Also: resume to the first batch in the middle of an epoch of 10^6 samples (files with holes; HF
datasets has 20,000 of them), evaluating the order of 10^10 samples, and a change from 4 to 3
workers in the middle of an epoch, ours and the peers'.

    python bench_data.py [--peers FOLDER] [--install] [--rounds N] [--scale X]

Peers are measured where FOLDER has an environment for them (FOLDER/mds, /wds, /torch, /grain, /hf
and /litdata), which --install makes. Prints JSON; exits with 1 if a target that could be measured
is missed.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import median, show

from strata.core.order import Order, OrderSpec
from strata.data.reading.batch_iterator import Batches
from strata.data.source_dataset import Dataset, open_dataset

SIZES = {"1KiB": (1 << 10, 200_000, 512), "100KiB": (100 << 10, 4_000, 64)}
NEEDS = {
    "mds": ["torch==2.13.0", "mosaicml-streaming"],
    "wds": ["torch==2.13.0", "webdataset"],
    "torch": ["torch==2.13.0", "torchdata"],
    "grain": ["grain"],
    "hf": ["datasets"],
    "litdata": ["torch==2.13.0", "litdata"],
}
TARGETS = {
    "1KiB": {"gather": 0.6, "mosaicml": 100, "webdataset": 50, "dataloader": 5, "resume": 20},
    "100KiB": {"gather": 0.9, "mosaicml": 15, "webdataset": 8, "resume": 20},
}
DEEP_SAMPLES = 1_000_000


def write_npy(path: Path, size: int, count: int) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (count, size), np.uint8)
    np.save(path, rows)


def write_mds(folder: Path, rows: np.ndarray, per_file: int) -> None:
    """Write shards as MosaicML's MDSWriter does, with one column of bytes."""
    folder.mkdir()
    shards = []
    for part, first in enumerate(range(0, len(rows), per_file)):
        block = rows[first : first + per_file]
        count, size = block.shape
        offsets = 4 + 4 * (count + 1) + (4 + size) * np.arange(count + 1, dtype=np.int64)
        heads = np.full((count, 1), size, "<u4").view(np.uint8)
        body = np.concatenate([heads, block], axis=1).tobytes()
        raw = struct.pack("<I", count) + offsets.astype("<u4").tobytes() + body
        (folder / f"shard.{part:05}.mds").write_bytes(raw)
        shards.append(mds_entry(part, "bytes", None, count, len(raw)))
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def mds_entry(part: int, encoding: str, size: int | None, count: int, file_bytes: int) -> dict:
    """The entry of a shard in index.json."""
    name = f"shard.{part:05}.mds"
    return (
        {"column_names": ["x"], "column_encodings": [encoding], "column_sizes": [size]}
        | {"compression": None, "format": "mds", "hashes": [], "samples": count}
        | {"raw_data": {"basename": name, "bytes": file_bytes, "hashes": {}}}
        | {"size_limit": 1 << 26, "version": 2, "zip_data": None}
    )


def write_tars(folder: Path, rows: np.ndarray, per_file: int) -> None:
    folder.mkdir()
    for part, first in enumerate(range(0, len(rows), per_file)):
        with tarfile.open(folder / f"{part:05}.tar", "w") as tar:
            for at, row in enumerate(rows[first : first + per_file]):
                info = tarfile.TarInfo(f"{first + at:08}.x")
                info.size = row.nbytes
                tar.addfile(info, io.BytesIO(row.tobytes()))


def write_holes(path: Path, size: int) -> None:
    """Write an array of many rows as a sparse file, which takes no space."""
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (DEEP_SAMPLES, size)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + DEEP_SAMPLES * size)


def write_mds_holes(folder: Path, size: int, per_file: int) -> None:
    """Write as many samples in MDS shards as sparse files."""
    folder.mkdir()
    shards = []
    for part, first in enumerate(range(0, DEEP_SAMPLES, per_file)):
        count = min(per_file, DEEP_SAMPLES - first)
        offsets = 4 + 4 * (count + 1) + size * np.arange(count + 1, dtype=np.int64)
        with (folder / f"shard.{part:05}.mds").open("wb") as file:
            file.write(struct.pack("<I", count) + offsets.astype("<u4").tobytes())
            file.truncate(int(offsets[-1]))
        shards.append(mds_entry(part, f"ndarray:uint8:{size}", size, count, int(offsets[-1])))
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def gathered(rows: np.ndarray, batch: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
    order = np.random.default_rng(seed).permutation(len(rows))
    for first in range(0, len(rows) - batch + 1, batch):
        yield {"data": rows[order[first : first + batch]]}


def through_strata(
    dataset: Dataset, batch: int, seed: int, **how: int
) -> Iterator[dict[str, np.ndarray]]:
    order = dataset.order(batch, seed=seed)
    with Batches(dataset, order, stop_step=order.steps_for(1, drop_tail=True), **how) as batches:
        yield from batches


def computing(
    batches: Iterator[dict[str, np.ndarray]], for_s: float
) -> Iterator[dict[str, np.ndarray]]:
    """A loop that computes for this long per batch, without the GIL, as training does."""
    numbers = np.random.default_rng(0).random(4_096)
    for batch in batches:
        until_s = time.perf_counter() + for_s
        while time.perf_counter() < until_s:
            np.sort(numbers)
        yield batch


def rate(batches: Iterator[dict[str, np.ndarray]]) -> tuple[float, float]:
    """Samples per second, and per second of this process's CPU, which other load hardly changes."""
    began = time.perf_counter(), time.process_time()
    count = 0
    for columns in batches:
        count += len(next(iter(columns.values())))
    return count / (time.perf_counter() - began[0]), count / (time.process_time() - began[1])


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
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(rounds + 1):  # the first warms the cache
        measured = {"gather": rate(gathered(rows, batch, turn))}
        for key, each in datasets.items():
            measured[key] = rate(through_strata(each, batch, turn))
        arrays = datasets["strata_npy"]
        measured["strata_npy_asked"] = rate(through_strata(arrays, batch, turn, prefetch_bytes=0))
        gather_s = batch / measured["gather"][0]
        for key, how in {"busy": {}, "busy_asked": {"prefetch_bytes": 0}}.items():
            measured[key] = rate(computing(through_strata(arrays, batch, turn, **how), gather_s))
        for key, pair in measured.items() if turn else ():
            found.setdefault(key, []).append(pair)
    write_holes(folder / f"{name}-deep.npy", size)
    write_mds_holes(folder / f"{name}-deep-mds", size, max(1, (64 << 20) // size))
    deep = open_dataset(str(folder / f"{name}-deep.npy"))
    middle = DEEP_SAMPLES // batch // 2
    resumes = [resume_s(deep, batch, middle) for _ in range(rounds + 1)][1:]
    return {
        "samples_per_s": {key: int(median(r[0] for r in each)) for key, each in found.items()},
        "samples_per_cpu_s": {key: int(median(r[1] for r in each)) for key, each in found.items()},
        "resume_ms": median(resumes, 1e3),
        "paths": paths | {end: str(folder / f"{name}-{end}") for end in ("deep.npy", "deep-mds")},
        "samples": count,
        "batch": batch,
        "middle": middle,
    }


ENDS = {"npy": ".npy", "mds": "-mds", "tar": "-tar"}
HOMES = {
    "mosaicml": "mds",
    "webdataset": "wds",
    "dataloader": "torch",
    "stateful": "torch",
    "grain": "grain",
    "huggingface": "hf",
    "litdata": "litdata",
}
OWN_FILES = {"mosaicml": "mds", "webdataset": "tar"}
RESUMED = {
    "mosaicml": "deep-mds",
    "huggingface": "npy",
    "stateful": "deep.npy",
    "grain": "deep.npy",
}
RESIZED = ("mosaicml", "litdata", "stateful", "grain", "huggingface")
PEER_TIMEOUT_S = 120


def ask(peers: Path, what: str, name: str, *arguments: object) -> Any:
    """The result of peer_data.py in a peer's environment; empty if there is none."""
    python = peers / HOMES[name] / "bin" / "python"
    if not python.exists():
        return None
    script = str(Path(__file__).with_name("peer_data.py"))
    command = [python, script, what, name, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PEER_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        print(f"{name} took more than {PEER_TIMEOUT_S} s to {what}", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{name} failed to {what}: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def peer_rates(peers: Path, measured: dict, rounds: int) -> dict[str, float]:
    """Samples per second of each peer on a part of the same data, because peers are slower."""
    batch = measured["batch"]
    samples = min(measured["samples"], 20 * batch) // batch * batch
    found = {}
    for name in HOMES:
        path = measured["paths"][OWN_FILES.get(name, "npy")]
        rates = ask(peers, "rate", name, path, rounds, samples, batch)
        if rates:
            found[name] = median(rates)
    return found


def peer_resumes_ms(peers: Path, measured: dict, rounds: int) -> dict[str, float]:
    found = {}
    for name, kind in RESUMED.items():
        where = (measured["paths"][kind], rounds, measured["middle"], measured["batch"])
        times = ask(peers, "resume", name, *where)
        if times:
            found[name] = median(times, 1e3)
    return found


def install(peers: Path) -> None:
    for home, packages in NEEDS.items():
        if not (peers / home).exists():
            subprocess.run([sys.executable, "-m", "venv", peers / home], check=True)
            pip = [peers / home / "bin" / "pip", "install", "--quiet"]
            subprocess.run([*pip, "numpy", *packages], check=True)


def huge_order() -> dict[str, object]:
    """10^10 samples in 10^6 shards: memory, and the time to seek and order a batch."""
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
    """4 workers, then 3 from step 200 on: the number of 10,240 samples that are lost or
    repeated."""
    spec = OrderSpec(total_samples=10_240, shard_size=64, global_batch=32, lanes=16)
    order = Order(spec)
    seen = np.zeros(10_240, np.int64)
    for step in range(order.steps_for(1)):
        for worker in range(4 if step < 200 else 3):
            lanes = range(worker, 16, 4 if step < 200 else 3)
            np.add.at(seen, order.step_samples(step, lanes), 1)
    return {"lost": int((seen == 0).sum()), "twice": int((seen > 1).sum())}


def compared(measured: dict, others: dict[str, float], resumes: dict[str, float]) -> dict:
    """How many times as fast Strata is; peers with their own format are compared on that."""
    ours, by_cpu = measured["samples_per_s"], measured["samples_per_cpu_s"]
    times = {
        "gather": round(ours["strata_npy"] / ours["gather"], 2),
        "gather_by_cpu": round(by_cpu["strata_npy"] / by_cpu["gather"], 2),
        "gather_asked": round(ours["strata_npy_asked"] / ours["gather"], 2),
        "overlap": round(ours["busy"] / ours["busy_asked"], 2),
    }
    for name, theirs in others.items():
        kind = OWN_FILES.get(name, "npy")
        times[name] = round(ours[f"strata_{kind}"] / theirs, 1)
        if kind != "npy":
            times[f"{name}_bytes"] = round(ours[f"strata_{kind}_bytes"] / theirs, 1)
    if resumes:
        times["resume"] = round(min(resumes.values()) / measured["resume_ms"], 1)
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
            others = peer_rates(chosen.peers, measured, chosen.rounds)
            resumes = peer_resumes_ms(chosen.peers, measured, chosen.rounds)
            times = compared(measured, others, resumes)
            for each, wanted in TARGETS[name].items():
                if each in times and times[each] < wanted:
                    missed.append(f"{name}: {times[each]}× {each}, wanted {wanted}×")
            del measured["paths"]
            result[name] = measured | {
                "peers_per_s": {each: int(found) for each, found in others.items()},
                "peers_resume_ms": resumes,
                "times": times,
            }
    finally:
        shutil.rmtree(folder)
    theirs = {each: ask(chosen.peers, "resize", each) for each in RESIZED}
    result |= {"ten_billion": huge_order(), "resize_4_to_3": {"strata": resize(), **theirs}}
    show("data", result | {"missed": missed})
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
