"""Throughput of the event stores: durable appends, their latency against one sync of the same disk,
reading back, taking in worker batches, and a log that stands for a month (`month`). Prints one JSON
object; takes some minutes.

    python benchmarks/bench_store.py [folder on the disk to measure]
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import Sync, show, spread, timed
from month import DAY_S, month

from strata.core.events import Codec, Envelope, Event, Fact
from strata.store.event_batches import pack
from strata.store.event_store import Batch
from strata.store.memory_store import MemoryStore
from strata.store.sqlite import SqliteStore

ROUNDS = 5
LONG_FACTS = 1_000_000


class LeaseGranted(Fact, frozen=True):
    worker: str
    shard: int
    generation: int


class StepFinished(Fact, frozen=True):
    worker: str
    step: int
    loss: float
    compute_s: float


class StateChanged(Fact, frozen=True):
    worker: str
    state: str
    reason: str


CODEC = Codec([LeaseGranted, StepFinished, StateChanged])


def event(seq: int) -> Event:
    worker = f"worker-{seq % 64}"
    loss, compute_s = 2.5 / (seq + 1), 0.125 + seq % 7 / 1_000
    body: Fact = StepFinished(worker=worker, step=seq, loss=loss, compute_s=compute_s)
    if seq % 8 == 0:
        body = LeaseGranted(worker=worker, shard=seq % 4_096, generation=seq // 10_000)
    elif seq % 8 == 1:
        reason = "its first step of this generation arrived"
        body = StateChanged(worker=worker, state="training", reason=reason)
    wall_ns = 1_700_000_000_000_000_000 + seq * 1_000_000
    return Envelope(seq=seq, wall_ns=wall_ns, mono_ns=seq, body=body, cause=(f"@{seq}",))


def append_rate(store, facts: int, per_append: int) -> float:
    """Facts per second, without the time to make them."""
    first = store.position
    rows = [
        [event(seq) for seq in range(start, start + per_append)]
        for start in range(first, first + facts, per_append)
    ]

    def run() -> None:
        for row in rows:
            store.append(row, incarnation=1, expected=row[0].seq)

    return facts / timed(run)


def bench_appends(folder: Path) -> dict[str, object]:
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for per_append, facts in ((100, 20_000), (1_000, 50_000)):
            with SqliteStore(folder / f"append-{number}-{per_append}.db", CODEC) as store:
                rate = append_rate(store, facts, per_append)
                found.setdefault(f"sqlite_{per_append}_a_row", []).append(rate)
            with MemoryStore(CODEC) as memory:
                rate = append_rate(memory, facts, per_append)
                found.setdefault(f"memory_{per_append}_a_row", []).append(rate)
    return {name: round(statistics.median(rates)) for name, rates in found.items()}


def bench_latency(folder: Path) -> dict[str, object]:
    """One fact per append, alternating with one 4 KiB write and fdatasync on the same disk."""
    sync = Sync(folder)
    ratios, appends, syncs = [], [], []
    with SqliteStore(folder / "latency.db", CODEC) as store:
        for _ in range(ROUNDS):
            round_appends, round_syncs = [], []
            for _ in range(400):
                fact = event(store.position)
                round_syncs.append(timed(sync))
                round_appends.append(
                    timed(lambda fact=fact: store.append([fact], incarnation=1, expected=fact.seq))
                )
            ratios.append(statistics.median(round_appends) / statistics.median(round_syncs))
            appends += round_appends
            syncs += round_syncs
    return {
        "append_one_fact_us": spread(appends, 1e6, 1),
        "sync_us": spread(syncs, 1e6, 1),
        "append_per_sync": round(statistics.median(ratios), 2),
        "append_per_sync_limit": 3,
    }


def bench_reading(folder: Path) -> dict[str, object]:
    path = folder / "long.db"
    found: dict[str, list[float]] = {"facts_per_s": [], "open_s": [], "position_at_us": []}
    with SqliteStore(path, CODEC) as store:
        for start in range(0, LONG_FACTS, 500):
            rows = [event(seq) for seq in range(start, start + 500)]
            store.append(rows, incarnation=1, expected=start)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        with SqliteStore(path, CODEC) as store:
            found["open_s"].append(time.perf_counter() - start)
            for each in range(100):
                moment = event(each * LONG_FACTS // 100).wall_ns
                found["position_at_us"].append(timed(lambda at=moment: store.position_at(at)) * 1e6)
            took = timed(lambda: sum(1 for _ in store.read()))
            found["facts_per_s"].append(LONG_FACTS / took)
    medians = {name: round(statistics.median(each), 4) for name, each in found.items()}
    return medians | {"facts": LONG_FACTS, "file_bytes_per_fact": path.stat().st_size / LONG_FACTS}


def worker_batches(turn: int, workers: int = 64, size: int = 100) -> list[Batch]:
    seqs = range(turn * size, (turn + 1) * size)
    return [
        pack(CODEC, f"worker-{worker}", 1, [event(seq) for seq in seqs])
        for worker in range(workers)
    ]


def bench_ingest(folder: Path) -> dict[str, object]:
    """64 workers send 100 events each, compressed; one append stores all of them."""
    turns = [worker_batches(turn) for turn in range(20)]
    rates, resends = [], []
    for number in range(ROUNDS):
        with SqliteStore(folder / f"ingest-{number}.db", CODEC) as store:

            def take(store=store) -> None:
                for batches in turns:
                    store.append([], incarnation=1, expected=0, batches=batches)

            rates.append(20 * 6_400 / timed(take))
            resends.append(20 * 6_400 / timed(take))
    return {
        "events_per_s": round(statistics.median(rates)),
        "batches_per_s": round(statistics.median(rates) / 100),
        "resent_events_per_s": round(statistics.median(resends)),
    }


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name:
        folder = Path(name)
        result = {
            "append_facts_per_s": bench_appends(folder),
            "append_facts_per_s_wanted": 50_000,
            "latency": bench_latency(folder),
            "reading": bench_reading(folder),
            "worker_batches": bench_ingest(folder),
            "month": [month(folder, 8, DAY_S), month(folder, 1_000, 2 * 3_600)],
            "month_facts_mb_a_day_wanted": 3,
        }
        result["took_s"] = round(time.perf_counter() - began, 1)
        show("store", result, folder)


if __name__ == "__main__":
    main()
