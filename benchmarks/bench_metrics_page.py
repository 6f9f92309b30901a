"""GET /metrics at 10,000 workers: our text format compared with `prometheus_client`.

Ours is the page of a real engine, read from its state; `prometheus_client` renders the samples of
that page. The page is written on the coordinator's event loop, so its time delays every worker.
Run: `python benchmarks/bench_metrics_page.py [workers]`, CPU milliseconds.
"""

import sys
from collections.abc import Iterator

from common import cpu_timed, show, spread
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.coordinator.metrics.coordinator_metrics import MAX_WORKER_SERIES, Metrics
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.core.record.event_codec import CODEC
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.store.memory_store import MemoryStore

WORKERS = 10_000
GPUS = 8
ROUNDS = 10


def cluster(workers: int) -> tuple[Engine, Heartbeats]:
    """An engine with one task whose workers have registered and sent a heartbeat."""
    kernel = Kernel(MemoryStore(CODEC), read_clock)
    kernel.start("bench", "0")
    names = [f"worker-{number}" for number in range(workers)]
    commands = [RegisterWorker(worker=name, world_size=workers, syncs=False) for name in names]
    kernel.commit(kernel.decide(commands))
    heartbeats = Heartbeats()
    used = resources()
    for name in names:
        heartbeats.note(
            name, LastHeartbeat(incarnation=1, last_heartbeat_ms=1, step=1_000, resources=used)
        )
    return Engine(kernel), heartbeats


def resources() -> ResourceMetrics:
    """What each worker measures."""
    gpus = [
        GpuMetrics(
            index=index,
            name="H200",
            utilization_percent=87.5,
            memory_used_bytes=2**36,
            memory_total_bytes=2**37,
        )
        for index in range(GPUS)
    ]
    return ResourceMetrics(
        cpu_percent=250.0,
        memory_used_bytes=2**33,
        gpu_metrics=gpus,
        disk_read_bytes=10**9,
        disk_write_bytes=10**9,
        disk_free_bytes=10**12,
        network_rx_bytes=10**9,
        network_tx_bytes=10**9,
    )


class Collector:
    """What a custom collector of `prometheus_client` does: one family object for each scrape."""

    def __init__(self, page: str) -> None:
        self._families = [
            (family.name, family.documentation, family.type, list(family.samples))
            for family in text_string_to_metric_families(page)
        ]

    def collect(self) -> Iterator[Metric]:
        for name, documentation, kind, samples in self._families:
            family = Metric(name, documentation, kind)
            for sample in samples:
                family.add_sample(sample.name, sample.labels, sample.value)
            yield family


def main() -> None:
    workers = int(sys.argv[1]) if sys.argv[1:] else WORKERS
    engine, heartbeats = cluster(workers)
    result: dict[str, object] = {"workers": workers, "gpus_per_worker": GPUS}
    for limit in (MAX_WORKER_SERIES, workers):
        metrics = Metrics(engine, heartbeats, max_worker_series=limit)
        page = metrics.prometheus()
        registry = CollectorRegistry()
        registry.register(Collector(page))
        writers = {"ours": metrics.prometheus, "client": lambda: generate_latest(registry)}  # noqa: B023
        figures: dict[str, object] = {
            "samples": sum(not row.startswith("#") for row in page.splitlines())
        }
        for name, write in writers.items():
            seconds = [cpu_timed(write) for _ in range(ROUNDS)]
            figures[f"{name}_ms"] = spread(seconds, 1e3)
        result[f"workers_with_series_{limit}"] = figures
    show("metrics_page", result)


if __name__ == "__main__":
    main()
