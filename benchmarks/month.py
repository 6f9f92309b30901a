"""A log that stands for a month: the facts of a task that commits a step every second and meets at
a barrier every ten, decided by the real rules and written through the real store.

A day or some hours are written; a month is extrapolated from them, and the names of such figures
say so. Writing does not wait for the disk (`synchronous=OFF`), which does not change sizes.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
from common import cpu_timed, timed

from strata.coordinator.engine.kernel import Kernel
from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.cluster import CODEC, fold
from strata.core.events import Command, Now
from strata.core.generations.recovery import CommitSteps, EnterGeneration
from strata.core.record import snapshot_versions
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.workers.heartbeats import Beat, Signal, WorkerBeat
from strata.core.workers.worker_lifecycle import RegisterWorker
from strata.store.event_store import Snapshot
from strata.store.sqlite import SqliteStore

SECOND_NS = 1_000_000_000
DAY_S = 86_400
DAYS = 30
BARRIER_S = 10
BEAT_S = 5
JITTER_NS = 20_000_000
COMPACT_S = 600
ROUNDS = 3


class Clock:
    """Some microseconds pass between two readings; the two clocks are not read at the same time."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000 * SECOND_NS
        self._random = Random(1)

    def __call__(self) -> Now:
        self.now_ns += self._random.randrange(2_000, 12_000)
        offset_ns = 1_690_000_000 * SECOND_NS + self._random.randrange(-100, 100)
        return Now(self.now_ns, self.now_ns - offset_ns)


class Run:
    """A task whose workers train."""

    def __init__(self, store: SqliteStore, workers: int) -> None:
        self.clock = Clock()
        self.kernel = Kernel(store, self.clock)
        self.kernel.start("bench", "1")
        spec = TaskSpec(name="train", worker_count=workers, external=True)
        self.do([SubmitTask(spec=spec)])
        (self.task,) = self.kernel.state.tasks.values()
        names = [f"worker-{number:04}" for number in range(workers)]
        self.do(
            [
                RegisterWorker(worker=name, task=self.task.id, nonce=f"{at:032x}", syncs=True)
                for at, name in enumerate(names)
            ]
        )
        self.known = [(each.id, each.incarnation) for each in self.kernel.state.workers.values()]
        generation = self.task.generation
        self.do(
            [
                EnterGeneration(worker=name, incarnation=number, generation=generation)
                for name, number in self.known
            ]
        )
        assert self.task.phase == "running"

    def do(self, asked: Sequence[Command | Signal]) -> None:
        """Decide and store one turn."""
        turn = self.kernel.decide(asked)
        for outcome in turn.outcomes:
            if outcome.refusal is not None:
                raise outcome.refusal
        self.kernel.commit(turn)

    def train(self, seconds: int) -> None:
        """Commit a step per second, with the barriers that are due."""
        random, task = Random(2), self.task
        begun_ns = self.clock.now_ns
        for step in range(1, seconds + 1):
            due_ns = begun_ns + step * SECOND_NS + random.randrange(JITTER_NS)
            self.clock.now_ns = max(self.clock.now_ns, due_ns)
            at = {"attempt": task.attempt, "generation": task.generation}
            self.do([CommitSteps(task=task.id, steps=step, **at)])
            if step % BEAT_S == 0:
                self.do([self._beat(name, number, step) for name, number in self.known])
            if step % BARRIER_S == 0:
                random.shuffle(self.known)
                self.do(
                    [
                        ArriveAtBarrier(
                            worker=name, incarnation=number, barrier="sync", request=step, step=step
                        )
                        for name, number in self.known
                    ]
                )
            if step % COMPACT_S == 0:
                while self.kernel.store.compact(self.kernel.durable):
                    pass

    def _beat(self, worker: str, incarnation: int, step: int) -> WorkerBeat:
        at = {"attempt": self.task.attempt, "generation": self.task.generation}
        beat = Beat(step=step, training=True, **at)
        return WorkerBeat(worker=worker, incarnation=incarnation, beat=beat, state="training")


def month(folder: Path, workers: int, seconds: int) -> dict[str, object]:
    """The size of a task's log, and the time in which a coordinator starts from it."""
    path = folder / f"month-{workers}.db"
    with SqliteStore(path, CODEC) as store:
        store._db.execute("PRAGMA synchronous=OFF")
        run = Run(store, workers)
        began = time.perf_counter()
        run.train(seconds)
        wrote_s = time.perf_counter() - began
        facts = store.position
        taken = _taken(store)
    per_day = DAY_S / seconds
    found = {
        "workers": workers,
        "hours_written": round(seconds / 3_600, 2),
        "facts_written": facts,
        "facts_per_s_with_compaction": round(facts / wrote_s),
        "bytes_per_fact": round(taken["facts"] / facts, 2),
        "facts_mb_a_day": round(taken["facts"] * per_day / 1e6, 2),
        "facts_mb_a_day_is_extrapolated": seconds < DAY_S,
        "snapshots_mb": round(taken["snapshots"] / 1e6, 2),
        "file_mb": round(path.stat().st_size / 1e6, 2),
        "month_facts_extrapolated": round(facts * per_day * DAYS),
        "month_facts_mb_extrapolated": round(taken["facts"] * per_day * DAYS / 1e6, 1),
    }
    return found | _restarts(path, facts, per_day)


def _taken(store: SqliteStore) -> dict[str, int]:
    """Bytes of pages by content, without free pages."""
    sql = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name"
    sizes = dict(store._db.execute(sql).fetchall())
    return {"facts": sizes["facts"] + sizes["facts_time"], "snapshots": sizes["snapshots"]}


def _restarts(path: Path, facts: int, per_day: float) -> dict[str, object]:
    """Open the log and load the state: as it is, after an upgrade, and without snapshots."""
    same = [timed(lambda: _load(path)) for _ in range(ROUNDS)]
    with SqliteStore(path, CODEC) as store:
        newest = store.load_snapshot(None, snapshot_versions.SCHEMA)
        assert newest is not None
        store.save_snapshot(_of_earlier_release(newest))
        folding_s = cpu_timed(lambda: fold(Cluster(), store.read()))
    upgraded = [timed(lambda: _load(path)) for _ in range(ROUNDS)]
    return {
        "restart_s": round(max(same), 3),
        "restart_after_upgrade_s": round(max(upgraded), 3),
        "restart_s_wanted": 5,
        "fold_all_cpu_s": round(folding_s, 2),
        "fold_month_cpu_s_extrapolated": round(folding_s * per_day * DAYS),
    }


def _load(path: Path) -> None:
    with SqliteStore(path, CODEC) as store:
        assert Kernel(store, Clock()).durable == store.position


def _of_earlier_release(snapshot: Snapshot) -> Snapshot:
    """A snapshot as a release without storage waits wrote it."""
    shape, tree = msgspec.msgpack.decode(snapshot.state)
    shape["Task"].remove("storage_wait")
    for task in tree["tasks"].values():
        del task["storage_wait"]
    return msgspec.structs.replace(snapshot, state=msgspec.msgpack.encode((shape, tree)))
