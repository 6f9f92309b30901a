"""Cost of the core and of a log of a million facts: folding, restarting, and reading the past.

    python benchmarks/bench_core.py [folder on the disk to measure] [--facts N] [--many N]
    python benchmarks/bench_core.py --only-crowd

The facts are those of simulated clusters of 8, 32 and 64 workers with all faults, one after the
other, repeated until there are enough. Two logs are made of them, both through a kernel and its
store with the snapshots it takes: in `few_tasks` each repetition replaces the one before, so the
state has about 20 tasks; in `many_tasks` every repetition has its own tasks and workers, as in a
cluster that is used for months. `crowded` folds facts after more workers have ended than the state
keeps.

The facts are stored in turns of 200, which saves half a million syncs. Only the last facts of
`few_tasks`, as many as a kernel has before its next snapshot, are stored in turns as small as they
were decided: that is the log of a quiet cluster, and the slowest to read. Rates are per second of
CPU time, which other load hardly changes; for the other figures both times are given.

`crowd` is the cost of the rules for one task with 10,000 workers (`crowd.py`). Prints JSON.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec
from common import cpu_timed, median, show, spread
from crowd import bench_crowd
from processes import coordinator

from strata.coordinator.engine.clock import read_clock
from strata.coordinator.engine.kernel import Kernel, Turn, state_at
from strata.core.cluster import CODEC, fold
from strata.core.events import Envelope, Event
from strata.core.record import snapshot_versions
from strata.core.state import Cluster
from strata.core.tasks.task_lifecycle import MAX_THEIR_WORKERS
from strata.sim.simulation import Scenario, Simulation
from strata.store.sqlite import SqliteStore

SCENARIOS = (
    Scenario(seed=1, workers=8, hours=4),
    Scenario(seed=2, workers=32, hours=2),
    Scenario(seed=3, workers=64, hours=1),
)
FACTS = 1_000_000
MANY_FACTS = 250_000
PER_TURN = 200
TAIL = 3_999
ROUNDS = 5
MOMENTS = 60
KNOWN = reduce(or_, CODEC.kinds.values())
NAMED = msgspec.json.Decoder(list[Envelope[KNOWN]])


def simulated(scenarios: Sequence[Scenario] = SCENARIOS) -> tuple[list[Event], list[int]]:
    """The facts of scenarios, numbered consecutively, and the sizes of their turns."""
    events: list[Event] = []
    turns: list[int] = []
    for scenario in scenarios:
        simulation = Simulation(scenario)
        simulation.coordinator.on_turn.append(lambda _, decided: turns.append(len(decided)))
        simulation.run()
        events += shifted(simulation.coordinator.disk.read(), events)
    return events, [size for size in turns if size]


def shifted(more: Iterator[Event], before: list[Event], times: int = 1) -> list[Event]:
    """Facts moved behind others: later times, next positions."""
    first = len(before) * times
    span_ns = (before[-1].wall_ns - before[0].wall_ns) * times if before else 0
    return [
        Envelope(
            seq=event.seq + first,
            wall_ns=event.wall_ns + span_ns,
            mono_ns=event.mono_ns + span_ns,
            body=event.body,
            cause=tuple(f"@{int(cause[1:]) + first}" for cause in event.cause),
            op=event.op,
        )
        for event in more
    ]


def repeated(events: list[Event], count: int, renamed: bool) -> Iterator[list[Event]]:
    """The facts repeated; with `renamed`, with other tasks and workers each time."""
    text = msgspec.json.encode(events)
    for lap in range(-(-count // len(events))):
        again = events
        if renamed:
            again = NAMED.decode(text.replace(b"train-", b"train-%d-" % lap))
        yield shifted(iter(again), events, lap)[: count - lap * len(events)]


def write(store: SqliteStore, laps: Iterator[list[Event]], turns: list[int], tail: int) -> None:
    """Store facts as a kernel does, with its snapshots; turns are small from `tail` on."""
    kernel = Kernel(store, read_clock)
    sizes = iter(turns * (TAIL // sum(turns) + 1))
    for lap in laps:
        position = 0
        while position < len(lap):
            size = PER_TURN if lap[position].seq < tail else next(sizes)
            events = lap[position : position + size]
            fold(kernel.state, events)
            kernel.commit(Turn([], events))
            position += len(events)


def bench_fold(events: list[Event]) -> dict[str, object]:
    """Facts per second on one core, folding all of them several times."""
    payloads = [CODEC.encode(events[at : at + PER_TURN]) for at in range(0, len(events), PER_TURN)]
    laps = max(FACTS // ROUNDS // len(events), 1)

    def decode_and_fold() -> None:
        state = Cluster()
        for payload in payloads:
            fold(state, CODEC.decode(payload))

    works: dict[str, Callable[[], object]] = {
        "apply": lambda: fold(Cluster(), events),
        "decode_and_apply": decode_and_fold,
        "decode": lambda: [CODEC.decode(payload) for payload in payloads],
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            took = sum(cpu_timed(work) for _ in range(laps))
            rates[name].append(laps * len(events) / took)
    return {
        "facts": ROUNDS * laps * len(events),
        **{f"{name}_per_s": round(median(each)) for name, each in rates.items()},
        **{f"{name}_best_per_s": round(max(each)) for name, each in rates.items()},
        "apply_per_s_wanted": 1_000_000,
    }


def bench_crowded(events: list[Event]) -> dict[str, object]:
    """Facts per second of tasks of 64 workers that end one after the other: while the state has
    room for dead workers, and while it drops the oldest of them."""
    state = Cluster()
    costs: dict[bool, list[float]] = {False: [], True: []}
    most = 0
    for lap in repeated(events, FACTS, renamed=True):
        most = max(most, len(state.workers) - state.living_workers)
        costs[most >= MAX_THEIR_WORKERS].append(
            cpu_timed(lambda some=lap: fold(state, some)) / len(lap)
        )
    return {
        "apply_per_s_with_room": round(1 / fmean(costs[False])),
        "apply_per_s_crowded": round(1 / fmean(costs[True])),
        "dead_workers": most,
    }


class Times:
    """Wall and CPU seconds of several runs of the same function."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def add(self, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        self.cpu_s.append(cpu_timed(call))
        self.wall_s.append(time.perf_counter() - began)

    def both(self, scale: float, digits: int) -> dict[str, object]:
        return {
            "wall": spread(self.wall_s, scale, digits),
            "cpu": spread(self.cpu_s, scale, digits),
        }


def bench_restart(folder: Path) -> dict[str, object]:
    """Seconds from a closed store to a kernel that can decide, and to a started coordinator."""
    ready = Times()

    def restart() -> None:
        with SqliteStore(folder / "log.db", CODEC) as store:
            Kernel(store, read_clock)

    for _ in range(ROUNDS):
        gc.collect()
        ready.add(restart)
    up = []
    for _ in range(ROUNDS):
        with coordinator(folder) as server:
            up.append(server.started_s)
    return {
        "kernel_ready_s": ready.both(1.0, 3),
        "kernel_ready_s_wanted": 2,
        "coordinator_up_s": spread(up),
    }


def bench_whole(folder: Path) -> dict[str, object]:
    """Seconds to fold the whole log without a snapshot."""
    took = Times()
    with SqliteStore(folder / "log.db", CODEC) as store:
        for _ in range(ROUNDS):
            gc.collect()
            took.add(lambda: fold(Cluster(), store.read()))
    return took.both(1.0, 2)


def bench_past(folder: Path, first: int, stop: int) -> dict[str, object]:
    """The state at random moments between two positions."""
    random = Random(7)
    times, folded, sizes, decodes = Times(), [], [], []
    with SqliteStore(folder / "log.db", CODEC) as store:
        for _ in range(MOMENTS):
            position = random.randrange(first, stop)
            times.add(lambda at=position: state_at(store, at))
            snapshot = store.load_snapshot(position, snapshot_versions.SCHEMA)
            folded.append(position - (snapshot.position if snapshot else 0))
            if snapshot:
                sizes.append(len(snapshot.state))
                held = (snapshot.schema, snapshot.state)
                decodes.append(cpu_timed(lambda held=held: snapshot_versions.decode(*held)))
    return {
        "state_at_ms": times.both(1e3, 1),
        "state_at_ms_wanted": 100,
        "facts_folded": spread(folded, digits=0),
        "snapshot_mb": spread(sizes, 1e-6),
        "snapshot_decode_cpu_ms": spread(decodes, 1e3, 1),
    }


def bench_log(
    folder: Path, events: list[Event], turns: list[int], count: int, renamed: bool
) -> dict[str, object]:
    """All figures of one log."""
    folder.mkdir()
    tail = count if renamed else count - TAIL
    began = time.perf_counter()
    with SqliteStore(folder / "log.db", CODEC) as store:
        write(store, repeated(events, count, renamed), turns, tail)
    wrote_s = time.perf_counter() - began
    result = {
        "facts": count,
        "log_mb": round((folder / "log.db").stat().st_size / 1e6, 1),
        "write_s": round(wrote_s, 1),
        **bench_past(folder, 0, tail),
    }
    if not renamed:
        result["in_small_turns"] = bench_past(folder, tail, count)
        result["whole_log_without_snapshot_s"] = bench_whole(folder)
    return result | bench_restart(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="on the disk to measure")
    parser.add_argument("--facts", type=int, default=FACTS)
    parser.add_argument("--many", type=int, default=MANY_FACTS, help="facts of many_tasks")
    parser.add_argument("--only-crowd", action="store_true", help="measure nothing but the crowd")
    given = parser.parse_args()
    if given.only_crowd:
        return show("core", {"crowd": bench_crowd()})
    began = time.perf_counter()
    events, turns = simulated()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        result: dict[str, object] = {
            "fold": bench_fold(events),
            "crowd": bench_crowd(),
            "crowded": bench_crowded(simulated(SCENARIOS[-1:])[0]),
            "few_tasks": bench_log(folder / "few", events, turns, given.facts, renamed=False),
            "many_tasks": bench_log(folder / "many", events, turns, given.many, renamed=True),
        }
        result["took_s"] = round(time.perf_counter() - began, 1)
        show("core", result, folder)


if __name__ == "__main__":
    main()
