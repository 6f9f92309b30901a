"""Cost of recording every event, and speed of reading a run of 10 M events back.

The run: 64 workers with 50 events per second each, in batches of 100 as the SDK sends them; a
coordinator that commits steps, opens barriers and sometimes loses a worker, with the kernel's own
snapshots. It is written once through the real kernel and store, then read in a separate process, so
that the peak memory is the reader's.

Times are CPU seconds of the process that does the work, except figures with `wall` in their name;
for `at` both are given. Prints JSON, and exits with 1 when a goal is missed.
"""

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import cpu_timed, median, show, spread

from strata.coordinator.engine.kernel import Kernel
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.events import Envelope, Now
from strata.core.generations.recovery import CommitSteps, EnterGeneration
from strata.core.record.event_codec import CODEC
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.exchange_facts import MessageReceived, MessageSent
from strata.core.workers.worker_facts import (
    ClockSampled,
    StepFinished,
    TrainingFinished,
    TrainingStarted,
)
from strata.core.workers.worker_lifecycle import DeclareLost, RegisterWorker
from strata.sdk.record.recorder import Recorder
from strata.store.event_batches import pack
from strata.store.sqlite import SqliteStore

WORKERS, PER_SECOND, BATCH = 64, 50, 100
SECOND_NS = 10**9
EPOCH_NS = 1_750_000_000 * SECOND_NS
ROUNDS = 5
MOMENTS = 200
GOALS = {
    "emit_us": 1.0,
    "bytes_per_event": 60.0,
    "ingest_events_per_s": 200_000.0,
    "at_p99_ms": 100.0,
    "why_s": 1.0,
    "group_by_s": 1.0,
    "reader_mb": 1_000.0,
}


class Clock:
    """A clock that advances as the run is written."""

    now_ns = 0

    def __call__(self) -> Now:
        return Now(EPOCH_NS + self.now_ns, self.now_ns)


def bodies(worker: int, second: int) -> list[object]:
    """The events of a worker in a second of ten steps."""
    peer = f"w{(worker + 1) % WORKERS}"
    found: list[object] = []
    for tenth in range(10):
        step = second * 10 + tenth
        message, received = f"w{worker}:{step}", f"w{(worker - 1) % WORKERS}:{step}"
        found += [
            TrainingStarted(batch=f"{step}", step=step),
            TrainingFinished(batch=f"{step}", step=step, loss=0.25),
            MessageSent(message=message, type="result", size_bytes=4096, to=[peer]),
            MessageReceived(message=received, type="result", size_bytes=4096, sender=peer),
            step_finished(step),
        ]
    found[0] = ClockSampled(
        offset_ns=1000, round_trip_ns=2_000_000, server_mono_ns=second * SECOND_NS + 1
    )
    return found


def step_finished(step: int) -> StepFinished:
    """A step of 100 ms."""
    return StepFinished(
        step=step, data_s=0.01, compute_s=0.07, communication_s=0.01, wait_s=0.01, loss=0.25
    )


def batches_of(second: int) -> list[object]:
    """The batches of all workers for two seconds."""
    made = []
    for worker in range(WORKERS):
        facts = bodies(worker, second) + bodies(worker, second + 1)
        first, start_ns = second * PER_SECOND, second * SECOND_NS
        step_ns = 2 * SECOND_NS // BATCH
        events = [
            Envelope(seq=first + i, wall_ns=EPOCH_NS + mono_ns, mono_ns=mono_ns, body=fact)
            for i, fact in enumerate(facts)
            for mono_ns in [start_ns + i * step_ns]
        ]
        made.append(pack(CODEC, f"w{worker}", worker + 1, events))
    return made


def write_run(folder: Path, seconds: int) -> dict[str, float]:
    """Write the run; returns the CPU seconds for storing the workers' batches."""
    clock = Clock()
    ingest_s, stored_bytes = 0.0, 0
    with SqliteStore(folder / "log.db", CODEC) as store:
        kernel = Kernel(store, clock)
        kernel.start("bench", "bench")
        spec = TaskSpec(name="bench", external=True, worker_count=WORKERS)
        decide(kernel, SubmitTask(spec=spec))
        for worker in range(WORKERS):
            register(kernel, worker)
        for second in range(0, seconds, 2):
            clock.now_ns = second * SECOND_NS
            made = batches_of(second)
            stored_bytes += sum(len(batch.payload) for batch in made)
            gc.collect(0)
            ingest_s += cpu_timed(lambda made=made: kernel.ingest(made))
            turn(kernel, second)
    events = seconds * WORKERS * PER_SECOND
    return {
        "events": events,
        "bytes_per_event": round(stored_bytes / events, 2),
        "file_bytes_per_event": round((folder / "log.db").stat().st_size / events, 2),
        "ingest_events_per_s": round(events / ingest_s),
    }


def decide(kernel: Kernel, *commands: object) -> None:
    kernel.commit(kernel.decide(commands))


def register(kernel: Kernel, worker: int) -> None:
    decide(kernel, RegisterWorker(worker=f"w{worker}", task="bench-1", syncs=True))


def turn(kernel: Kernel, second: int) -> None:
    """Decide the coordinator's facts of one turn."""
    task = kernel.state.tasks["bench-1"]
    incarnation = {w.id: w.incarnation for w in kernel.state.workers.values()}
    if task.phase == "syncing":
        decide(
            kernel,
            *(
                EnterGeneration(
                    worker=name, incarnation=incarnation[name], generation=task.generation
                )
                for name in task.members
            ),
        )
    steps = max(second * 10, task.committed)
    decide(
        kernel,
        CommitSteps(task="bench-1", attempt=task.attempt, generation=task.generation, steps=steps),
    )
    if second % 10 == 0:
        decide(
            kernel,
            *(
                ArriveAtBarrier(
                    worker=name, incarnation=incarnation[name], barrier="b", request=second + 1
                )
                for name in task.members
            ),
        )
    if second and second % 600 == 0:
        lost = DeclareLost(
            worker="w3", incarnation=incarnation["w3"], signal="heartbeat", reason="no beat"
        )
        decide(kernel, lost)
        register(kernel, 3)


def emit_us() -> float:
    """CPU microseconds of one `emit`."""
    fact = step_finished(1)
    count = 100_000

    def run(recorder: Recorder) -> None:
        for _ in range(count):
            recorder.emit(fact)

    took = []
    for _ in range(ROUNDS):
        recorder = Recorder()
        took.append(cpu_timed(lambda recorder=recorder: run(recorder)))
    return median(took, 1e6 / count)


def read_run(folder: Path) -> dict[str, object]:
    """Read any moment, and answer why; reports the peak memory of this process."""
    from strata.timeline.archive.run_lookup import open_timeline
    from strata.timeline.queries import TimelineQueries

    with open_timeline(folder) as timeline:
        queries = TimelineQueries(timeline)
        opened_s = cpu_timed(queries.span)
        extent = timeline.extent()
        dice = random.Random(7)
        moments = [dice.uniform(extent.from_ns / 1e6, extent.to_ns / 1e6) for _ in range(MOMENTS)]
        walls: list[float] = []
        cpus = []
        for moment in moments:
            began = time.perf_counter()
            cpus.append(cpu_timed(lambda moment=moment: queries.at(moment)))
            walls.append(time.perf_counter() - began)
        asked = {
            "lost": {"worker": "w3"},
            "barrier": {"barrier": "b"},
            "slow": {"worker": "w5"},
            "delivery": {"message": "w5:1000", "sender": "w5"},
            "changed": {"task": "bench-1"},
            "unfinished": {"worker": "w3"},
            "throughput": {"time_ms": repr(moments[0]), "task": "bench-1"},
        }
        why = {
            name: round(
                statistics.median(
                    cpu_timed(lambda name=name, params=params: queries.why(name, params=params))
                    for _ in range(ROUNDS)
                ),
                3,
            )
            for name, params in asked.items()
        }
    return {
        "open_and_trust_s": round(opened_s, 2),
        "at_ms": spread(cpus, 1e3),
        "at_wall_ms": spread(walls, 1e3),
        "why_s": why,
        "reader_mb": peak_mb(),
    }


def query_run(folder: Path) -> dict[str, object]:
    """SQL: decode once, then group over all rows."""
    from strata.timeline.archive.run_lookup import open_timeline
    from strata.timeline.export import sql_queries

    text = "SELECT kind, node, count(*), avg(step) FROM events GROUP BY ALL"
    with open_timeline(folder) as timeline:
        first_s = cpu_timed(lambda: sql_queries.query(timeline, text))
        with sql_queries.connected(timeline, text) as db:
            walls = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                db.execute(text).fetchall()
                walls.append(time.perf_counter() - began)
    return {
        "decode_once_s": round(first_s, 1),
        "group_by_wall_s": median(walls),
        "sql_mb": peak_mb(),
    }


def keep_run(folder: Path) -> dict[str, object]:
    """Export the run as Parquet."""
    from strata.timeline.archive.run_lookup import open_timeline
    from strata.timeline.export.event_files import write_parquet

    with open_timeline(folder) as timeline:
        spent_s = cpu_timed(lambda: write_parquet(timeline, folder / "archive" / "kept"))
    return {"s": round(spent_s, 1), "mb": peak_mb()}


def read_archive(folder: Path) -> dict[str, object]:
    """Read an archived run completely: in order of time, and worker by worker."""
    from strata.timeline.archive.run_lookup import open_timeline

    def everything() -> None:
        with open_timeline(folder / "archive" / "kept") as timeline:
            for _ in timeline.records():
                pass
            for node, incarnation in timeline.reader.streams():
                for _ in timeline.events_of(node, incarnation):
                    pass

    return {"s": round(cpu_timed(everything), 1), "mb": peak_mb()}


def draw_trace(folder: Path) -> dict[str, object]:
    """Export the run as a trace for Perfetto."""
    from strata.timeline.archive.run_lookup import open_timeline
    from strata.timeline.export.perfetto import trace

    with open_timeline(folder) as timeline, (folder / "trace.json").open("wb") as file:
        extent = timeline.extent()
        spent_s = cpu_timed(lambda: file.writelines(trace(timeline, extent.from_ns, extent.to_ns)))
    return {"s": round(spent_s, 1), "mb": peak_mb()}


def peak_mb() -> int:
    """The peak memory of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def exports(folder: Path) -> dict[str, object]:
    """The cost of the exports, each in its own process."""
    return {part: apart(part, folder) for part in ("keep", "archive", "trace")}


def apart(part: str, folder: Path) -> dict[str, object]:
    """Run one part in its own process."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def missed(result: dict[str, object]) -> list[str]:
    """The goals that were missed, as text."""
    figures = {
        "emit_us": result["emit_us"],
        "bytes_per_event": result["written"]["bytes_per_event"],
        "at_p99_ms": result["read"]["at_ms"]["p99"],
        "why_s": max(result["read"]["why_s"].values()),
        "group_by_s": result["sql"]["group_by_wall_s"],
        "reader_mb": result["read"]["reader_mb"],
    }
    found = [f"{name}: {value}" for name, value in figures.items() if value > GOALS[name]]
    ingest = result["written"]["ingest_events_per_s"]
    if ingest < GOALS["ingest_events_per_s"]:
        found.append(f"ingest_events_per_s: {ingest}")
    return found


PARTS = {
    "read": read_run,
    "sql": query_run,
    "keep": keep_run,
    "archive": read_archive,
    "trace": draw_trace,
}


def compare_memory(events: int) -> None:
    """Print the cost of the exports of a run, and of one with a tenth of the events."""
    found: dict[str, object] = {}
    for count in (events // 10, events):
        with tempfile.TemporaryDirectory(prefix="strata-bench-") as name:
            write_run(Path(name), count // (WORKERS * PER_SECOND) // 2 * 2)
            found[f"{count:,} events"] = exports(Path(name))
    print(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--memory", action="store_true", help="compare the memory of exports only")
    parser.add_argument("--part", choices=[*PARTS])
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(PARTS[given.part](given.folder)))
        return
    if given.memory:
        compare_memory(given.events)
        return
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as name:
        folder = Path(name)
        began = time.perf_counter()
        seconds = given.events // (WORKERS * PER_SECOND) // 2 * 2
        result: dict[str, object] = {
            "emit_us": emit_us(),
            "written": write_run(folder, seconds),
            "read": apart("read", folder),
            "sql": apart("sql", folder),
            "goals": GOALS,
        }
        result["missed"] = missed(result)
        result["took_s"] = round(time.perf_counter() - began)
        show("timeline", result, folder)
        sys.exit(1 if result["missed"] else 0)


if __name__ == "__main__":
    main()
