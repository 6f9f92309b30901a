"""Cost of a durable command in the engine: one at a time, and from many callers at once.

    python benchmarks/bench_engine.py [folder on the disk to measure]

Idle: a caller submits a command, which records one fact, and waits for its answer; in turns with
one 4 KiB write and fdatasync on the same disk. Busy: 1,000 callers submit one command after the
other, so that turns grow by themselves. Prints one JSON object.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from common import Sync, median, show, spread, timed

from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.kernel import Kernel
from strata.core.cluster import CODEC
from strata.core.rule_settings import Timeouts
from strata.core.state import Worker
from strata.core.workers.worker_lifecycle import RegisterWorker, ReportState
from strata.store.sqlite import SqliteStore

ROUNDS = 5
COMMANDS = 400
CALLERS = 1_000
COMMANDS_EACH = 10
STATES = ("training", "idle")
TIMEOUTS = Timeouts(heartbeat_timeout_s=3_600, reattach_grace_s=3_600)


async def register(engine: Engine, workers: int) -> list[Worker]:
    """Register this many workers in one task."""
    asked = [
        engine.submit(RegisterWorker(worker=f"worker-{number}", world_size=workers, syncs=False))
        for number in range(workers)
    ]
    return list(await asyncio.gather(*asked))


async def report(engine: Engine, worker: Worker, turn: int) -> None:
    """A command that records one fact: the worker's state changed."""
    state = STATES[turn % len(STATES)]
    incarnation = worker.incarnation
    await engine.submit(ReportState(worker=worker.id, incarnation=incarnation, state=state))


async def idle(engine: Engine, sync: Sync) -> dict[str, object]:
    """One command at a time, alternating with one sync."""
    (worker,) = await register(engine, 1)
    submits, syncs, ratios = [], [], []
    for _ in range(ROUNDS):
        these, those = [], []
        for turn in range(COMMANDS):
            those.append(timed(sync))
            began = time.perf_counter()
            await report(engine, worker, turn)
            these.append(time.perf_counter() - began)
        ratios.append(median(these, digits=9) / median(those, digits=9))
        submits += these
        syncs += those
    return {
        "submit_us": spread(submits, 1e6, 1),
        "sync_us": spread(syncs, 1e6, 1),
        "submit_per_sync": median(ratios, digits=2),
        "submit_per_sync_limit": 3,
    }


async def busy(engine: Engine) -> dict[str, object]:
    """Many callers, each with one command in flight."""
    workers = await register(engine, CALLERS)
    latencies: list[float] = []
    turns: list[int] = []
    engine.follow(lambda events: turns.append(len(events)))

    async def call(worker: Worker) -> None:
        for turn in range(COMMANDS_EACH):
            began = time.perf_counter()
            await report(engine, worker, turn)
            latencies.append(time.perf_counter() - began)

    rates, costs = [], []
    for _ in range(ROUNDS):
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(call(worker) for worker in workers))
        rates.append(CALLERS * COMMANDS_EACH / (time.perf_counter() - began))
        costs.append((time.process_time() - cpu) / CALLERS / COMMANDS_EACH)
    return {
        "callers": CALLERS,
        "commands_per_s": round(median(rates)),
        "cpu_us_per_command": median(costs, 1e6, 1),
        "latency_ms": spread(latencies, 1e3),
        "facts_per_turn": round(sum(turns) / len(turns)),
    }


async def bench(folder: Path) -> dict[str, object]:
    """Run each part with its own store."""
    result: dict[str, object] = {}
    for name in ("idle", "busy"):
        with SqliteStore(folder / f"{name}.db", CODEC) as store:
            kernel = Kernel(store, read_clock, TIMEOUTS)
            kernel.start("bench", "bench")
            engine = Engine(kernel)
            engine.start()
            result[name] = await (idle(engine, Sync(folder)) if name == "idle" else busy(engine))
            await engine.stop()
    return result


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name:
        folder = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(bench(folder))
        result["took_s"] = round(time.perf_counter() - began, 1)
        show("engine", result, folder)


if __name__ == "__main__":
    main()
