"""Time from a thousand acknowledgements to a committed checkpoint.

A coordinator's engine with its log on disk, and a folder with a thousand parts and sidecars. All
ranks acknowledge at once; the clock stops when the manifest is written and the commit is durable.
The same with the sidecars alone (read, compared, merged, written) tells what the storage takes.

    python benchmarks/bench_seal.py [--ranks 1000] [--rounds 5]

Prints one JSON object; the figures are medians.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from common import show

from strata.checkpoint.state.state_tree import FlatState, flatten
from strata.checkpoint.write.part_sidecar import Sidecar, write_sidecar
from strata.checkpoint.write.part_writer import write_part
from strata.checkpoint.write.rank_shares import shape_digest
from strata.checkpoint.write.staging import Staging
from strata.config import Settings
from strata.coordinator.checkpoint_files import CheckpointPlaces, Sealing, write_manifest
from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint
from strata.core.cluster import CODEC
from strata.core.generations.recovery import EnterGeneration
from strata.core.rule_settings import Timeouts
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.store.sqlite import SqliteStore

TENSORS = 8
GOAL_S = 0.1


class Cluster:
    """An engine with the given number of workers, all in training."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.ranks = ranks
        self.store = SqliteStore(folder / "log.db", CODEC)
        patient = Timeouts(heartbeat_timeout_s=3600, hang_floor_s=3600)
        kernel = Kernel(self.store, read_clock, patient)
        kernel.start("bench", "0")
        self.engine = Engine(kernel)
        self.places = CheckpointPlaces(Settings(data_dir=str(folder)), "bench")
        self.sealing = Sealing(self.engine, Heartbeats(), self.places, 3600)
        self.workers: list[tuple[str, int]] = []

    async def start(self) -> None:
        self.engine.start()
        self.sealing.start()
        joined = await asyncio.gather(
            *(
                self.engine.submit(
                    RegisterWorker(worker=f"w{rank}", world_size=self.ranks, syncs=True)
                )
                for rank in range(self.ranks)
            )
        )
        self.task = self.engine.kernel.state.tasks[joined[0].task]
        self.workers = [(worker.id, worker.incarnation) for worker in joined]
        await asyncio.gather(
            *(
                self.engine.submit(EnterGeneration(worker=w, incarnation=i, generation=1))
                for w, i in self.workers
            )
        )

    async def stop(self) -> None:
        await self.sealing.stop()
        await self.engine.stop()
        self.store.close()

    async def begin(self, step: int) -> str:
        worker, incarnation = self.workers[0]
        begun = BeginCheckpoint(worker=worker, incarnation=incarnation, generation=1, step=step)
        return (await self.engine.submit(begun)).id

    async def acknowledge(self, checkpoint: str, checksums: dict[int, str]) -> float:
        """Seconds from the first acknowledgement to the durable commit."""
        state = self.engine.kernel.state
        begun_s = time.perf_counter()
        asked = [
            self.engine.submit(
                AckPart(
                    worker=worker,
                    incarnation=incarnation,
                    checkpoint=checkpoint,
                    path=checkpoint,
                    size_bytes=4096,
                    checksum=checksums[state.workers[worker].rank],
                )
            )
            for worker, incarnation in self.workers
        ]
        await asyncio.gather(*asked)
        while self.task.checkpoints[checkpoint].state == "sealing":
            await asyncio.sleep(0.001)
        took_s = time.perf_counter() - begun_s
        assert self.task.checkpoints[checkpoint].state == "committed"
        return took_s


def write_parts(storage, checkpoint: str, ranks: int, step: int) -> dict[int, str]:
    """Write the files of every rank: a small part and its sidecar."""
    flat = flatten({f"layer-{i}": np.zeros(4, np.float32) for i in range(TENSORS)})
    staging, checksums = Staging(), {}
    for rank in range(ranks):
        own = FlatState(flat.tree if rank == 0 else None, flat.sources if rank == 0 else {})
        part = write_part(storage, checkpoint, rank, staging.capture(own, {}))
        checksums[rank] = part.xxh3
        write_sidecar(
            storage,
            Sidecar(
                checkpoint_id=checkpoint,
                step=step,
                epoch=0,
                attempt=1,
                world_size=ranks,
                shapes=shape_digest(flat),
                part=part,
            ),
        )
    return checksums


async def measure(folder: Path, ranks: int, rounds: int) -> dict[str, list[float]]:
    cluster = Cluster(folder, ranks)
    await cluster.start()
    storage = cluster.places.storage(cluster.task.id)
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for step in range(1, rounds + 1):
        checkpoint = await cluster.begin(step)
        checksums = await asyncio.to_thread(write_parts, storage, checkpoint, ranks, step)
        begun_cpu_s = time.process_time()
        figures["acks_to_committed_s"].append(await cluster.acknowledge(checkpoint, checksums))
        figures["acks_to_committed_cpu_s"].append(time.process_time() - begun_cpu_s)
        saved = cluster.task.checkpoints[checkpoint]
        begun_s = time.perf_counter()
        await asyncio.to_thread(write_manifest, storage, saved)
        figures["manifest_alone_s"].append(time.perf_counter() - begun_s)
    await cluster.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder), options.ranks, options.rounds))
    medians = {name: round(statistics.median(values), 4) for name, values in figures.items()}
    met = medians["acks_to_committed_s"] < GOAL_S
    show(
        "seal",
        {
            "ranks": options.ranks,
            "medians": medians,
            "best": {name: round(min(values), 4) for name, values in figures.items()},
            "target": f"< {GOAL_S} s: {'met' if met else 'missed'}",
        },
    )


if __name__ == "__main__":
    main()
