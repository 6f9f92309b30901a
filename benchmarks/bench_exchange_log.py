"""Cost of recording the exchange of a step: microseconds in the training thread, and bytes.

The steps are those of `ExchangeLog` itself, without a network: begun, exchanged, ended. Bytes are
those of a batch as it is stored, with the varying times and numbers that real steps have. Prints
JSON. Exits with 1 when a step takes 10 µs of CPU or 120 bytes.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from common import show

from strata.core.workers.worker_facts import CODEC
from strata.sdk.peers.exchange_log import ExchangeLog
from strata.sdk.record.recorder import Recorder
from strata.store.event_batches import pack, unpack

STEPS = 20_000
STORED_STEPS = 2_000
ROUNDS = 7
BOUND_US = 10.0
BOUND_BYTES = 120.0


class Steps:
    """Steps that record one exchange each."""

    def __init__(self, recorder: Recorder) -> None:
        self.number = 0
        self.log = ExchangeLog(recorder, lambda: self.number)
        self.exchange = SimpleNamespace(generation=3, sent_bytes=0, received_bytes=0)

    def take(self, count: int, pause_s: float = 0.0) -> None:
        for _ in range(count):
            self.log.begin_step()
            self.log.began(self.exchange, True)
            self.exchange.sent_bytes += 1_048_609
            self.exchange.received_bytes += 1_048_609
            if pause_s:
                time.sleep(random.uniform(0, pause_s))
            self.log.ended()
            self.log.end_step()
            self.number += 1


def cost_us() -> float:
    """CPU per step: the median of several rounds."""
    took_s = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(10**9)
            recorder.begin(Path(folder), "bench", number + 1)
            steps = Steps(recorder)
            begun_s = time.thread_time()
            steps.take(STEPS)
            took_s.append(time.thread_time() - begun_s)
            recorder.close()
    return statistics.median(took_s) / STEPS * 1e6


def stored_bytes() -> float:
    """Bytes per step as the log stores them."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(10**9)
        recorder.begin(Path(folder), "bench", 1)
        Steps(recorder).take(STORED_STEPS, pause_s=0.002)
        recorder.collect()
        batches = list(iter(recorder.to_send, None))
        events = [event for batch in batches for event in unpack(CODEC, batch)]
        size = len(pack(CODEC, "bench", 1, events).payload)
        recorder.close()
    assert len(events) == 2 * STORED_STEPS
    return size / STORED_STEPS


def main() -> int:
    step_us, step_bytes = cost_us(), stored_bytes()
    found = {"step_us": round(step_us, 2), "stored_bytes_per_step": round(step_bytes, 1)}
    show("exchange log", found)
    return int(step_us >= BOUND_US or step_bytes >= BOUND_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
