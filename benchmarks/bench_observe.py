"""CPU time of observation: storing a log line, capturing a printed line, sampling resources.

Best of three runs.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable

from common import show

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.logs.log_store import LogStore
from strata.sdk.record.output_capture import capture_output
from strata.sdk.record.resource_sampler import ResourceSampler

LINES = 50_000


def best_s(work: Callable[[], object]) -> float:
    """The least CPU time of three runs."""
    times = []
    for _ in range(3):
        began_s = time.process_time()
        work()
        times.append(time.process_time() - began_s)
    return min(times)


Costs = dict[str, float]


def cost_us(seconds: float, count: int) -> float:
    """Microseconds per item."""
    return round(seconds / count * 1e6, 3)


def logs() -> Costs:
    lines = [
        LogLine(
            level="info",
            message=f"step {i} loss 0.1234 812.3 samples/s",
            source="worker",
            task_id="t",
            worker_id=f"w{i % 64}",
            stream="stdout",
        )
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

        search = LogQuery(search="not to be found")
        costs = {
            "log_line_in_batches_of_500_us": cost_us(best_s(in_batches), LINES),
            "log_line_one_by_one_us": cost_us(best_s(one_by_one), LINES),
            "log_line_searched_us": cost_us(
                best_s(lambda: store.recent(search)), store.stats().lines
            ),
        }
        store.close()
    return costs


def capture() -> Costs:
    def speak() -> None:
        for i in range(LINES):
            print("step", i, "loss 0.1234 812.3 samples/s")

    with contextlib.redirect_stdout(io.StringIO()):
        plain_s = best_s(speak)
        with capture_output(lambda *line: None):
            captured_s = best_s(speak)
    return {"captured_line_above_plain_print_us": cost_us(captured_s - plain_s, LINES)}


def resources() -> Costs:
    sampler = ResourceSampler()
    took_s = best_s(lambda: [sampler.sample() for _ in range(1000)])
    return {"resource_sample_us": cost_us(took_s, 1000)}


if __name__ == "__main__":
    show("observe", {**logs(), **capture(), **resources()})
