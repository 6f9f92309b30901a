"""Cost of the SDK in a worker: an event, a log line, and its share of a training loop's time.

The loops have NumPy steps of about ten milliseconds, and of one, which is shorter than a real
training step, with a real coordinator in another process. Blocks with and without Strata alternate
in one process; each pair gives a ratio of wall-clock times, and the median is reported. On a
machine with other load that ratio is mostly noise, so Strata's share is also computed from CPU
times, which other load hardly changes: the time of each step in `run.step` and in the capture of
its output, and the time of all other threads of the process. Joining is not included. Costs of a
call are CPU time as well.

Prints JSON. Exits with 1 when `emit` is not below 1 µs, or Strata takes 0.5 % of the loop of ten
milliseconds or more.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from common import show

import strata
from strata.core.workers.worker_facts import CODEC, StepFinished
from strata.sdk.record.line_buffer import LineBuffer
from strata.sdk.record.output_capture import capture_output
from strata.sdk.record.recorder import Recorder
from strata.store.event_batches import pack, unpack

EMITS = 100_000
ROUNDS = 7
PAIRS = 5
STEPS_MS = (10, 1)
BLOCK_S = 4.0
SETTLE_S = 1.0
PRINT_EVERY = 10
EMIT_BOUND_US = 1.0
SHARE_BOUND_PERCENT = 0.5


def cost_us(work, count: int) -> float:
    """Microseconds of CPU per repetition: the median of several rounds."""
    took_s = []
    for _ in range(ROUNDS):
        begun_s = time.thread_time()
        work()
        took_s.append(time.thread_time() - begun_s)
    return statistics.median(took_s) / count * 1e6


def emit_cost() -> dict[str, float]:
    """The cost of `emit` with an existing fact, and with one that is built for the call."""
    prepared = StepFinished(
        step=1, data_s=0.1, compute_s=0.2, communication_s=0.3, wait_s=0.4, loss=0.5
    )

    def emits(recorder: Recorder) -> None:
        for _ in range(EMITS):
            recorder.emit(prepared)

    def empty() -> None:
        for _ in range(EMITS):
            pass

    def makes(recorder: Recorder) -> None:
        for number in range(EMITS):
            recorder.emit(
                StepFinished(
                    step=number,
                    data_s=0.1,
                    compute_s=0.2,
                    communication_s=0.3,
                    wait_s=0.4,
                    loss=0.5,
                )
            )

    loop_us = cost_us(empty, EMITS)
    full = Recorder(limit=0)
    return {
        "emit_us": round(cost_us(lambda: emits(Recorder(10**9)), EMITS) - loop_us, 3),
        "make_and_emit_us": round(cost_us(lambda: makes(Recorder(10**9)), EMITS) - loop_us, 3),
        "drop_us": round(cost_us(lambda: emits(full), EMITS) - loop_us, 3),
    }


def stored_cost() -> dict[str, float]:
    """Bytes of a step's event as stored, and the cost of packing it in the heartbeat thread."""
    random = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(10**9)
        recorder.begin(Path(folder), "bench", 1)
        for number in range(4_000):
            data_s, compute_s, communication_s, wait_s, loss = random.random(5).tolist()
            recorder.emit(
                StepFinished(
                    step=number,
                    data_s=data_s,
                    compute_s=compute_s,
                    communication_s=communication_s,
                    wait_s=wait_s,
                    loss=loss,
                    epoch=number // 99,
                )
            )
        begun_s = time.thread_time()
        recorder.collect()
        took_s = time.thread_time() - begun_s
        batches = list(iter(recorder.to_send, None))
        events = [event for batch in batches for event in unpack(CODEC, batch)]
        size = len(pack(CODEC, "bench", 1, events).payload)
        recorder.close()
    return {
        "stored_bytes_per_step_event": round(size / len(events), 1),
        "pack_and_spool_us_per_event": round(took_s / len(events) * 1e6, 3),
    }


def line_cost() -> dict[str, float]:
    """The cost that capturing adds to a `print` into a file."""
    lines = 20_000

    def prints() -> None:
        for number in range(lines):
            print("epoch 3 step", number, "loss 0.1234")

    before = sys.stdout
    with tempfile.TemporaryFile("w") as sys.stdout:
        plain_us = cost_us(prints, lines)
        with capture_output(LineBuffer(max_lines=10**9, max_chars=10**12)):
            captured_us = cost_us(prints, lines)
    sys.stdout = before
    return {"print_us": round(plain_us, 3), "capture_adds_us": round(captured_us - plain_us, 3)}


def block(run: strata.Run | None, matrix: np.ndarray, work: int, steps: int) -> float:
    """Seconds of a block of the loop."""
    begun_s = time.perf_counter()
    for number in range(steps):
        for _ in range(work):
            loss = float((matrix @ matrix)[0, 0])
        if number % PRINT_EVERY == 0:
            print("step", number, "loss", loss)
        if run is not None:
            run.mark_step(loss=loss)
    return time.perf_counter() - begun_s


def others_cpu_s() -> float:
    """CPU time of all threads except this one."""
    return time.process_time() - time.thread_time()


def loop_share(address: str, capture_us: float, step_ms: int) -> dict[str, float]:
    """Ratios of blocks with Strata to blocks without, and Strata's share by CPU time."""
    matrix = np.random.default_rng(1).random((200, 200))
    ratios, background, step_us, without_s = [], [], [], []
    before = sys.stdout
    with tempfile.TemporaryFile("w") as sys.stdout, tempfile.TemporaryDirectory() as spool:
        work = max(
            round(step_ms / 1e3 / (min(block(None, matrix, 1, 100) for _ in range(9)) / 100)), 1
        )
        steps = round(BLOCK_S / (block(None, matrix, work, 200) / 200))
        for _ in range(PAIRS):
            without_s.append(block(None, matrix, work, steps))
            with strata.join(address, spool_dir=spool) as run:
                time.sleep(SETTLE_S)
                cpu_s = others_cpu_s()
                with_s = block(run, matrix, work, steps)
                background.append((others_cpu_s() - cpu_s) / with_s * 100)
                begun_s = time.thread_time()
                for _ in range(1_000):
                    run.mark_step(loss=1.0)
                step_us.append((time.thread_time() - begun_s) * 1e3)
            ratios.append((with_s / without_s[-1] - 1) * 100)
    sys.stdout = before
    block_us = statistics.median(without_s) * 1e6
    calls_us = steps * (statistics.median(step_us) + capture_us / PRINT_EVERY)
    threads = statistics.median(background)
    return {
        "step_ms": round(block_us / steps / 1e3, 3),
        "pairs": PAIRS,
        "run_step_us": round(statistics.median(step_us), 2),
        "calls_percent": round(calls_us / block_us * 100, 3),
        "threads_percent": round(threads, 3),
        "share_percent": round(calls_us / block_us * 100 + threads, 3),
        "wall_overhead_percent_median": round(statistics.median(ratios), 3),
    }


def with_coordinator(capture_us: float) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from strata.cli import main; main()", "up"]
        ports = ["--grpc-port", "0", "--http-port", "0", "--data-dir", folder]
        process = subprocess.Popen([*command, *ports], stderr=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                found = re.search(r"workers\s+(\S+:\d+)", line)
                if found:
                    return {f"{ms} ms": loop_share(found[1], capture_us, ms) for ms in STEPS_MS}
        finally:
            process.terminate()
            process.communicate()
    raise AssertionError("the coordinator did not start")


def main() -> int:
    emitted, line = emit_cost(), line_cost()
    loops = with_coordinator(line["capture_adds_us"])
    show("sdk", {**emitted, **stored_cost(), **line, "loops": loops})
    too_much = loops[f"{STEPS_MS[0]} ms"]["share_percent"] >= SHARE_BOUND_PERCENT
    return int(emitted["emit_us"] >= EMIT_BOUND_US or too_much)


if __name__ == "__main__":
    sys.exit(main())
