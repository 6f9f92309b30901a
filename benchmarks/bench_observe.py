"""What watching costs: a log line taken and written, a line captured, a sample exposed.

CPU time, best of three. Run with `prometheus-client` installed to see it beside our own writer of
its text format.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable

from strata.coordinator.exposition import Exposition, labels
from strata.coordinator.logs import Line, LogStore, Query
from strata.sdk.capture import capture_output
from strata.sdk.resources import ResourceSampler

LINES = 50_000
SAMPLES = 20_000


def best_s(work: Callable[[], object]) -> float:
    """The least CPU time of three runs."""
    times = []
    for _ in range(3):
        began_s = time.process_time()
        work()
        times.append(time.process_time() - began_s)
    return min(times)


def show(name: str, seconds: float, count: int) -> None:
    print(f"{name:<46} {seconds / count * 1e6:8.2f} µs  {count / seconds:12,.0f}/s")


def logs() -> None:
    lines = [
        Line("info", f"step {i} loss 0.1234 812.3 samples/s", "worker", "t", f"w{i % 64}", "stdout")
        for i in range(LINES)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = LogStore(folder)

        def in_batches() -> None:
            for first in range(0, LINES, 500):
                store.extend(lines[first : first + 500])
            store.flush()

        def one_by_one() -> None:
            for line in lines:
                store.append(line)
            store.flush()

        show("log lines in batches of 500, on disk", best_s(in_batches), LINES)
        show("log lines one by one, on disk", best_s(one_by_one), LINES)
        stored = store.stats().lines
        search = Query(search="not to be found")
        show("log lines searched for a text", best_s(lambda: store.recent(search)), stored)
        store.close()


def capture() -> None:
    def speak() -> None:
        for i in range(LINES):
            print("step", i, "loss 0.1234 812.3 samples/s")

    with contextlib.redirect_stdout(io.StringIO()):
        plain_s = best_s(speak)
        with capture_output(lambda *line: None):
            captured_s = best_s(speak)
    show("print, captured, above a plain print", captured_s - plain_s, LINES)


def exposition() -> None:
    names = [f"worker-{i}" for i in range(SAMPLES)]

    def ours() -> None:
        page = Exposition()
        rows = [(labels(worker=name, task="t"), i * 1e6) for i, name in enumerate(names)]
        page.add("gauge", "strata_worker_memory_used_bytes", "Memory in use.", rows)
        page.text()

    show("samples for Prometheus, our writer", best_s(ours), SAMPLES)
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import GaugeMetricFamily
    except ImportError:
        return

    class Collector:
        def collect(self):
            family = GaugeMetricFamily("memory_used_bytes", "Memory.", labels=["worker", "task"])
            for i, name in enumerate(names):
                family.add_metric([name, "t"], i * 1e6)
            yield family

    registry = CollectorRegistry()
    registry.register(Collector())
    show(
        "samples for Prometheus, prometheus_client",
        best_s(lambda: generate_latest(registry)),
        SAMPLES,
    )


def resources() -> None:
    sampler = ResourceSampler()
    show("samples of resources", best_s(lambda: [sampler.sample() for _ in range(1000)]), 1000)


if __name__ == "__main__":
    logs()
    capture()
    exposition()
    resources()
