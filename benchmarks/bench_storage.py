"""What S3 storage carries: PUT and GET against obstore alone and boto3, CPU seconds per GiB.

Starts a SeaweedFS server (from the test requirements) on loopback with its data in memory where
there is room, so that client and server, not a disk, are what is measured. Takes turns, reports
medians.

    python benchmarks/bench_storage.py [--mib 512] [--rounds 5]

Prints one JSON object. boto3 is left out where it is not installed.
"""

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import obstore
from obstore.store import S3Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from strata.storage.s3 import S3Storage
from tests.storage.server import BUCKET, running

BLOCK = 16 * 1024 * 1024


class Contest:
    """Several ways to do one thing, measured in turn."""

    def __init__(self, mib: int) -> None:
        self.mib = mib
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)

    def turn(self, name: str, work) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.rates[name].append(self.mib / (time.perf_counter() - wall))
        self.cpu[name].append((time.process_time() - cpu) * 1024 / self.mib)

    def result(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "mib_per_s": round(statistics.median(rates), 1),
                "cpu_s_per_gib": round(statistics.median(self.cpu[name]), 3),
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


def boto3_client(settings):
    try:
        import boto3
    except ImportError:
        return None
    return boto3.client(
        "s3",
        endpoint_url=settings.aws_endpoint_url,
        region_name=settings.aws_region,
        aws_access_key_id=settings.aws_access_key_id,
        aws_secret_access_key=settings.aws_secret_access_key,
    )


def measure(settings, mib: int, rounds: int) -> dict[str, object]:
    data = np.random.default_rng(1).integers(0, 255, mib * 2**20, np.uint8)
    view, target = memoryview(data), memoryview(bytearray(data.nbytes))
    ours, alone, boto3 = (
        S3Storage(BUCKET, "bench", settings),
        obstore_alone(settings),
        boto3_client(settings),
    )
    put, get = Contest(mib), Contest(mib)
    for _ in range(rounds):
        blocks = (view[at : at + BLOCK] for at in range(0, view.nbytes, BLOCK))
        put.turn("strata", lambda blocks=blocks: ours.put_stream("a", blocks))
        put.turn("obstore", lambda: obstore.put(alone, "b", view))
        put.turn(
            "obstore, parts of 16 MiB",
            lambda: obstore.put(alone, "b", view, chunk_size=BLOCK, max_concurrency=16),
        )
        get.turn("strata", lambda: ours.download("a", target))
        get.turn("obstore", lambda: alone.get("b").bytes())
        if boto3 is not None:
            put.turn("boto3", lambda: boto3.upload_fileobj(io.BytesIO(view), BUCKET, "c"))
            get.turn("boto3", lambda: boto3.download_fileobj(BUCKET, "c", io.BytesIO()))
    assert target == view
    return {"put": put.result(), "get": get.result()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        running(Path(folder) / "s3") as settings,
    ):
        results = measure(settings, options.mib, options.rounds)
    machine = {"machine": platform.platform(), "cores": os.cpu_count(), "load": os.getloadavg()}
    print(json.dumps({"benchmark": "storage", "mib": options.mib, **machine, **results}, indent=2))


if __name__ == "__main__":
    main()
