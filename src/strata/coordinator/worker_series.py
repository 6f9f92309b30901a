"""What workers use, as series: each worker's own for a bounded number, and sums over all.

Workers are taken in the order they registered, so that the same ones keep their series from one
scrape to the next.
"""

from collections.abc import Callable, Mapping
from itertools import islice

from strata.coordinator.exposition import Exposition, Kind, Number, labels
from strata.coordinator.observed import Seen
from strata.core.resources import GpuMetrics, ResourceMetrics
from strata.core.workers import Worker

OfWorker = Callable[[ResourceMetrics], Number | None]
OfGpu = Callable[[GpuMetrics], Number]

PER_WORKER: tuple[tuple[Kind, str, str, OfWorker], ...] = (
    ("gauge", "cpu_ratio", "CPU use; 1 is one core.", lambda r: r.cpu_percent / 100),
    ("gauge", "memory_used_bytes", "Memory in use.", lambda r: r.memory_used_bytes),
    ("gauge", "disk_free_bytes", "Free space where it writes.", lambda r: r.disk_free_bytes),
    ("counter", "disk_read_bytes_total", "Bytes read from disk.", lambda r: r.disk_read_bytes),
    ("counter", "disk_written_bytes_total", "Bytes written.", lambda r: r.disk_write_bytes),
    (
        "counter",
        "network_received_bytes_total",
        "TCP bytes received.",
        lambda r: r.network_rx_bytes,
    ),
    ("counter", "network_sent_bytes_total", "TCP bytes sent.", lambda r: r.network_tx_bytes),
)
PER_GPU: tuple[tuple[str, str, OfGpu], ...] = (
    ("utilization_ratio", "Use of a card, 0 to 1.", lambda g: g.utilization_percent / 100),
    ("memory_used_bytes", "Memory in use on a card.", lambda g: g.memory_used_bytes),
    ("memory_total_bytes", "Memory of a card.", lambda g: g.memory_total_bytes),
)
STEP_TEXT = "The step that a worker last reported."


def add_workers(
    page: Exposition, workers: Mapping[str, Worker], seen: Mapping[str, Seen], limit: int
) -> None:
    """Adds the series of workers that are alive and have told what they use."""
    known = [
        (worker, beat.step, beat.resources)
        for worker in workers.values()
        if worker.alive and (beat := seen.get(worker.id)) and beat.resources is not None
    ]
    _add_sums(page, [resources for _, _, resources in known])
    shown = [
        (labels(worker=worker.id, task=worker.task), step, resources)
        for worker, step, resources in islice(known, limit)
    ]
    page.add("gauge", "strata_worker_step", STEP_TEXT, [(tags, step) for tags, step, _ in shown])
    for kind, name, text, value in PER_WORKER:
        measured = ((tags, value(resources)) for tags, _, resources in shown)
        samples = [(tags, each) for tags, each in measured if each is not None]
        page.add(kind, f"strata_worker_{name}", f"{text} By worker.", samples)
    cards = [
        (f'{tags[:-1]},gpu="{card.index}"}}', card)
        for tags, _, resources in shown
        for card in resources.gpu_metrics
    ]
    for name, text, measure in PER_GPU:
        samples = [(tags, measure(card)) for tags, card in cards]
        page.add("gauge", f"strata_worker_gpu_{name}", f"{text} By worker.", samples)
    page.one(
        "gauge",
        "strata_worker_series_omitted",
        "Workers that have no series of their own; they are in the sums.",
        len(known) - len(shown),
    )


def _add_sums(page: Exposition, resources: list[ResourceMetrics]) -> None:
    cards = [card for each in resources for card in each.gpu_metrics]
    use = sum(card.utilization_percent for card in cards) / 100
    for name, text, value in (
        (
            "cpu_ratio",
            "CPU use of all workers; 1 is one core.",
            sum(each.cpu_percent for each in resources) / 100,
        ),
        (
            "memory_used_bytes",
            "Memory in use by all workers.",
            sum(each.memory_used_bytes for each in resources),
        ),
        ("gpus", "Cards that workers report.", len(cards)),
        ("gpu_utilization_ratio", "Mean use of all cards.", use / len(cards) if cards else None),
        (
            "gpu_memory_used_bytes",
            "Memory in use on all cards.",
            sum(card.memory_used_bytes for card in cards),
        ),
    ):
        page.one("gauge", f"strata_cluster_{name}", text, value)
