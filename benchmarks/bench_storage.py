"""Throughput of S3 storage: PUT and GET compared with obstore alone and boto3, CPU per GiB.

Starts a SeaweedFS server (from the test requirements) on loopback, with its data in memory if there
is room, so that client and server are measured and not a disk. All are measured in turns; figures
are medians.

    python benchmarks/bench_storage.py [--mib 256] [--rounds 5] [--boto3 PYTHON]

Prints one JSON object. boto3 is taken from the environment of `--boto3` (its python; `pip install
boto3`), and left out without.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import obstore
import psutil
from common import show
from obstore.store import S3Store
from processes import answering

sys.path.insert(0, str(Path(__file__).parents[1]))
from strata.storage.s3 import S3Storage
from tests.storage.server import BUCKET, running

BLOCK = 16 * 1024 * 1024
TUNED = "obstore, parts of 16 MiB"
TARGETS = {TUNED: 0.9, "boto3": 4.0}


class Contest:
    """Several ways to do the same thing, measured in turns."""

    def __init__(self, mib: int, server: psutil.Process) -> None:
        self.mib, self.server = mib, server
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.server_cpu: dict[str, list[float]] = defaultdict(list)

    def turn(self, name: str, work) -> None:
        """Measure work in this process."""

        def run_here() -> dict[str, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            return {
                "wall_s": time.perf_counter() - wall,
                "cpu_s": time.process_time() - cpu,
            }

        self.turn_of(name, run_here)

    def turn_of(self, name: str, work) -> None:
        """Measure work that reports its own duration."""
        before_s = self._server_s()
        took = work()
        self.rates[name].append(self.mib / took["wall_s"])
        self.cpu[name].append(took["cpu_s"] * 1024 / self.mib)
        self.server_cpu[name].append((self._server_s() - before_s) * 1024 / self.mib)

    def _server_s(self) -> float:
        times = self.server.cpu_times()
        return times.user + times.system

    def ratio(self, name: str, reference: str) -> float:
        """The median of the ratios of the rounds; both figures of a round have the same
        conditions."""
        pairs = zip(self.rates[name], self.rates[reference], strict=True)
        return statistics.median(mine / its for mine, its in pairs)

    def result(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "mib_per_s": round(statistics.median(rates), 1),
                "cpu_s_per_gib": round(statistics.median(self.cpu[name]), 3),
                "server_cpu_s_per_gib": round(statistics.median(self.server_cpu[name]), 3),
            }
            for name, rates in self.rates.items()
        }


def obstore_alone(settings) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=settings.aws_endpoint_url,
        region=settings.aws_region,
        access_key_id=settings.aws_access_key_id,
        secret_access_key=settings.aws_secret_access_key,
        client_options={"allow_http": True},
    )


def boto3_program(python: str, settings, mib: int) -> list[object]:
    return [
        python,
        Path(__file__).with_name("peer_boto3.py"),
        settings.aws_endpoint_url,
        settings.aws_region,
        settings.aws_access_key_id,
        settings.aws_secret_access_key,
        BUCKET,
        mib,
    ]


def measure(settings, mib: int, rounds: int, boto3) -> dict[str, object]:
    """Measure everything, round by round; `boto3` is a program that puts or gets once, if
    installed."""
    data = np.random.default_rng(1).integers(0, 255, mib * 2**20, np.uint8)
    view, target = memoryview(data), memoryview(bytearray(data.nbytes))
    ours, alone = S3Storage(BUCKET, "bench", settings), obstore_alone(settings)
    (server,) = [child for child in psutil.Process().children() if child.name() == "weed"]
    put, get = Contest(mib, server), Contest(mib, server)
    for _ in range(rounds):
        blocks = (view[at : at + BLOCK] for at in range(0, view.nbytes, BLOCK))
        put.turn("strata", lambda blocks=blocks: ours.put_stream("a", blocks))
        put.turn("obstore", lambda: obstore.put(alone, "b", view))
        put.turn(
            TUNED,
            lambda: obstore.put(alone, "b", view, chunk_size=BLOCK, max_concurrency=16),
        )
        get.turn("strata", lambda: ours.download("a", target))
        get.turn("obstore", lambda: alone.get("b").bytes())
        if boto3 is not None:
            put.turn_of("boto3", lambda: boto3("put"))
            get.turn_of("boto3", lambda: boto3("get"))
    assert target == view
    return {"put": put.result(), "get": get.result(), "targets": verdicts(put)}


def verdicts(put: Contest) -> dict[str, str]:
    verdicts_by_name = {}
    for name, least in TARGETS.items():
        if name in put.rates:
            found = put.ratio("strata", name)
            verdicts_by_name[f"PUT to {name}"] = (
                f"{found:.2f} >= {least}: {'met' if found >= least else 'missed'}"
            )
    return verdicts_by_name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--boto3", default="")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        running(Path(folder) / "s3") as settings,
    ):
        program = boto3_program(options.boto3, settings, options.mib)
        with answering(program) if options.boto3 else nullcontext() as boto3:
            results = measure(settings, options.mib, options.rounds, boto3)
    show("storage", {"mib": options.mib, **results})


if __name__ == "__main__":
    main()
