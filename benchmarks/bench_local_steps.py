"""Bytes between workers until the same loss: `run.average` in every step, and local steps.

Three workers, real processes under a real coordinator, learn the digits of examples/digits.py until
the loss on 1,000 other digits reaches the target; all have the same weights, so all stop at the
same step. Both sides use the same batches per local step and check the loss every sixteen steps.
The bytes between workers are counted: for the average the exchange's frames, for local steps the
sizes in the facts of blobs and messages (without HTTP headers, about 200 bytes per request). Every
side runs once with each of five seeds; figures are medians.

Prints JSON. Exits with 1 when local steps take more than a tenth of the average's bytes per step.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import numpy as np
from common import show
from digits import draw_digits, forward, gradients, new_model, update
from processes import coordinator

import strata
from strata.core.events import Fact
from strata.core.workers.exchange_facts import MessageSent
from strata.core.workers.worker_operations import BlobUploadStarted
from strata.sdk.peers import exchange

WORKERS = 3
SEEDS = range(5)
STEPS = 16
BATCH = 32
TARGET_LOSS = 0.7
MOST_STEPS = 100 * STEPS
OUTER = {"rate": 0.7, "momentum": 0.5}
SIDES: dict[str, dict[str, float]] = {
    "average": {"rate": 0.05},
    "local steps, 8 bits": {"rate": 0.05, "keep": 1.0},
    "local steps, 8 bits, a tenth of the values": {"rate": 0.05, "keep": 0.1},
}
BOUND = 0.1


class Tally:
    """Adds up the bytes that this process sends to other workers."""

    def __init__(self, run: strata.Run) -> None:
        self.sent_bytes = 0
        self._send, self._emit = exchange.Exchange._send, run.recorder.emit
        exchange.Exchange._send = lambda *given: self._framed(*given)
        run.recorder.emit = self._recorded

    def _framed(self, link, to, data, weight) -> None:
        self.sent_bytes += exchange.HEAD.size + data.nbytes
        self._send(link, to, data, weight)

    def _recorded(self, fact: Fact, *more: object, **named: object) -> None:
        if isinstance(fact, BlobUploadStarted | MessageSent):
            self.sent_bytes += fact.size_bytes
        self._emit(fact, *more, **named)


def average(run, state, data, rate) -> Iterator[int]:
    """Train with an average in each step; yields the number of steps when the loss is checked."""
    run.restore(state)
    for batch in run.batches(data, global_batch=WORKERS * BATCH):
        gradient, loss = run.average(gradients(state["model"], batch), len(batch["label"]))
        update(state, gradient, rate)
        run.mark_step(loss=loss)
        if run.steps % STEPS == 0:
            yield run.steps


def local_steps(run, state, data, rate, keep) -> Iterator[int]:
    """Train in rounds of local steps; yields the number of steps after each round."""
    local = strata.LocalSteps(run, state["model"], STEPS, keep=keep, **OUTER)
    run.restore({"weights": state["model"], "outer": local})
    for batch in run.batches(data, global_batch=WORKERS * BATCH * STEPS):
        with local.round(batch) as parts:
            for part in parts:
                gradient, loss = gradients(state["model"], part)
                update(state, gradient, rate)
        run.mark_step(loss=loss)
        yield run.steps * STEPS


def work(address: str, side: str, seed: int, name: str) -> None:
    """Run one worker, which prints its steps, loss and bytes at the end."""
    images, labels = draw_digits(12_000, np.random.default_rng(seed))
    data = strata.open_arrays({"image": images, "label": labels}, name=f"digits-{seed}")
    unseen = dict(
        zip(("image", "label"), draw_digits(1_000, np.random.default_rng(99)), strict=True)
    )
    with strata.join(address, name, world_size=WORKERS) as run:
        tally = Tally(run)
        state = new_model(np.random.default_rng(seed))
        train = average if side == "average" else local_steps
        for steps in train(run, state, data, **SIDES[side]):
            chosen = forward(state["model"], unseen["image"])[-1][np.arange(1_000), unseen["label"]]
            loss = float(-np.log(chosen + 1e-9).mean())
            if loss <= TARGET_LOSS or steps >= MOST_STEPS:
                break
        run.barrier("all are through")
        totals = {"steps": steps, "loss": loss, "sent_bytes": tally.sent_bytes}
    print("result " + json.dumps(totals), flush=True)


def measured(address: str, side: str, seed: int) -> dict[str, float]:
    """The sum of the measurements of all workers of a run."""
    number = list(SIDES).index(side)
    command = [sys.executable, __file__, address, side, str(seed)]
    crew = [
        subprocess.Popen([*command, f"{number}x{seed}-{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(WORKERS)
    ]
    said = [worker.communicate(timeout=300)[0] for worker in crew]
    found = [json.loads(text.partition("result ")[2]) for text in said]
    assert len({(each["steps"], each["loss"]) for each in found}) == 1, "weights differ"
    sent_bytes = sum(each["sent_bytes"] for each in found)
    steps, loss = found[0]["steps"], found[0]["loss"]
    return {"steps": steps, "loss": loss, "bytes": sent_bytes, "bytes_per_step": sent_bytes / steps}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, coordinator(Path(folder)) as server:
        runs = {
            side: [measured(f"127.0.0.1:{server.port}", side, seed) for seed in SEEDS]
            for side in SIDES
        }
    found = {
        side: {
            name: round(statistics.median(run[name] for run in each), 3) for name in each[0]
        } | {"reached": sum(run["loss"] <= TARGET_LOSS for run in each)}
        for side, each in runs.items()
    }  # fmt: skip
    base = found["average"]
    for side in found.values():
        side["share_of_bytes_per_step"] = round(side["bytes_per_step"] / base["bytes_per_step"], 4)
        side["share_of_bytes"] = round(side["bytes"] / base["bytes"], 4)
    show(
        "local_steps",
        {"target_loss": TARGET_LOSS, "workers": WORKERS, "local_steps": STEPS, "sides": found},
    )
    shares = [side["share_of_bytes_per_step"] for name, side in found.items() if name != "average"]
    sys.exit(0 if max(shares) <= BOUND else 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
