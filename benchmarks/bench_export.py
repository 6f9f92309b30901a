"""Export of a checkpoint of 4 ranks, beside a plain copy of its bytes.

A state of 1 GiB in 200 tensors that all ranks hold alike, saved in four parts. Each round takes, in
turn, a plain copy of the parts (`shutil.copyfile`, which the kernel does, and fsync) and an export
to each format (which also ends with fsync). The parts are dropped from the page cache before each.
The figures are medians; the ratios are the medians of the rounds' own ratios.

Memory is the peak of a process during the export, above its memory just before. It is measured for
that state, and for one whose only tensor is cut by columns, so that it is joined in memory: there
the size of that tensor is subtracted.

    python benchmarks/bench_export.py [--folder FOLDER] [--rounds 5] [--mib 1024]

Prints one JSON object. Without torch, its formats are left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from checkpoint_measures import Figures, forget, timed
from common import show

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.export.checkpoint_export import CheckpointExport, ExportRequest
from strata.checkpoint.manifest import Manifest
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.state.sharded_tensors import Sharded
from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.write.part_writer import commit, write_part
from strata.checkpoint.write.rank_shares import own_share
from strata.checkpoint.write.staging import Staging
from strata.storage.folder import LocalStorage

RANKS = 4
TENSORS = 200
CHECKPOINT = "step-00000001-1"
CONFIG = '{"model_type": "gpt2"}'
FORMATS = ["safetensors", "hf", "torch", "dcp"]
LEAST_SPEED = 0.5
MOST_MIB = 256


def rows_of(rank: int, mib: int) -> dict[str, object]:
    """A state that every rank holds; each writes its share."""
    count = mib * 2**20 // TENSORS // 4
    random = np.random.default_rng(7)
    weights = {f"layer-{i:03d}": random.standard_normal(count, np.float32) for i in range(TENSORS)}
    return {"model": weights, "config": CONFIG}


def columns_of(rank: int, mib: int) -> dict[str, object]:
    """A tensor of half that size, of which a rank holds some columns."""
    rows, columns = mib * 2**20 // 2 // 4 // 4096, 4096
    own = np.full((rows, columns // RANKS), float(rank), np.float32)
    box = Sharded(own, [rows, columns], [0, rank * columns // RANKS])
    return {"model": {"weight": box}, "config": CONFIG}


def save(folder: Path, state_of, mib: int) -> None:
    storage, parts = LocalStorage(folder), []
    for rank in range(RANKS):
        flat = flatten(state_of(rank, mib))
        share = FlatState(flat.tree if rank == 0 else None, own_share(flat, rank, RANKS))
        parts.append(write_part(storage, CHECKPOINT, rank, Staging().capture(share, {})))
    size_bytes = sum(part.size_bytes for part in parts)
    manifest = Manifest(
        checkpoint_id=CHECKPOINT,
        step=1,
        epoch=0,
        sequence=1,
        created_ns=1,
        size_bytes=size_bytes,
        world_size=RANKS,
        parts=parts,
    )
    commit(storage, manifest)


def export(folder: Path, wanted: str, out: Path) -> None:
    storage = LocalStorage(folder)
    with CheckpointReader(storage, Catalog(storage).read(CHECKPOINT)) as reader:
        CheckpointExport(reader, ExportRequest(format=wanted, out=out)).run()


def copy(folder: Path, out: Path) -> None:
    out.mkdir()
    for part in sorted((folder / CHECKPOINT).glob("*.safetensors")):
        shutil.copyfile(part, out / part.name)
        fd = os.open(out / part.name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def memory_mib(figure: str) -> float:
    """A figure of this process from the kernel; ru_maxrss would be that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{figure}:")[2].split()[0]) / 1024


def print_growth(folder: Path, wanted: str, out: Path) -> None:
    """Print how far the peak memory of one export is above the memory before it."""
    storage = LocalStorage(folder)
    with CheckpointReader(storage, Catalog(storage).read(CHECKPOINT)) as reader:
        job = CheckpointExport(reader, ExportRequest(format=wanted, out=out))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = memory_mib("VmRSS")
        job.run()
    print(memory_mib("VmHWM") - before)


def growth_mib(folder: Path, wanted: str, out: Path) -> float:
    command = [sys.executable, __file__, "--growth", str(folder), wanted, str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(out)
    return float(done.stdout.splitlines()[-1])


def measure(folder: Path, rounds: int, mib: int) -> dict[str, object]:
    formats = FORMATS[:2]
    with suppress(ModuleNotFoundError):
        import_module("strata.checkpoint.export.dcp_export")  # importing torch is not measured
        formats = FORMATS
    rows, columns = folder / "rows", folder / "columns"
    save(rows, rows_of, mib)
    save(columns, columns_of, mib)
    figures, out = Figures(), folder / "out"
    for _ in range(rounds):
        works = {"copy": partial(copy, rows, out)}
        works |= {name: partial(export, rows, name, out) for name in formats}
        for name, work in works.items():
            forget(rows)
            figures[f"{name}_s"].append(timed(work))
            shutil.rmtree(out)
    speeds = {name: round(figures.ratio("copy_s", f"{name}_s"), 3) for name in formats}
    beyond = {
        "rows": {name: round(growth_mib(rows, name, out), 1) for name in formats},
        "columns": {name: round(growth_mib(columns, name, out) - mib / 2, 1) for name in formats},
    }
    return {
        "state_mib": mib,
        "ranks": RANKS,
        "rounds": rounds,
        "seconds": figures.medians(),
        "speed_to_copy": speeds,
        "slowest_speed_to_copy": min(speeds.values()),
        "memory_mib": beyond,
        "largest_memory_mib": largest(beyond),
        "targets": {
            "speed_to_copy": f">= {LEAST_SPEED}: {verdict(min(speeds.values()) >= LEAST_SPEED)}",
            "memory_mib": f"<= {MOST_MIB}: {verdict(largest(beyond) <= MOST_MIB)}",
        },
    }


def largest(beyond: dict[str, dict[str, float]]) -> float:
    return max(value for some in beyond.values() for value in some.values())


def verdict(met: bool) -> str:
    return "met" if met else "missed"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--growth", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.growth:
        folder, wanted, out = options.growth
        return print_growth(Path(folder), wanted, Path(out))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options.rounds, options.mib)
    return show("export", results)


if __name__ == "__main__":
    main()
