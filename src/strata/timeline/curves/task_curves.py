"""The curves of one task: columns of its recorded steps and metrics, and points made of them.

`refresh` reads new facts and events only. Points are made when they are asked for, kept, and
extended when new rows came; those asked for least recently are dropped above `MAX_POINT_BYTES`.

A row counts if no later generation resumed before it. A row that does not count is *undone*.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.errors import LimitExceeded, NotFound
from strata.timeline.curves.curve_facts import UNKNOWN, CurveFacts, History, TaskFacts, history
from strata.timeline.curves.curve_series import (
    Flags,
    Floats,
    Points,
    Values,
    before_step,
    joined,
    points_of,
)
from strata.timeline.curves.logged_rows import MAX_ROWS, PARTS, Column, Intake, Rows, Stream
from strata.timeline.read.run_timeline import Timeline

READ_AT_ONCE = 65_536
MAX_POINT_BYTES = 512 * 2**20
DAMAGE_SHOWN = 5

Source: TypeAlias = Literal["logged", "part", "step_s", "samples", "averaged", "members", "derived"]
Key: TypeAlias = tuple[Source, str, str, bool]
"""Source, name, worker (empty: all), whether of undone rows."""


class KeptPoints(Struct, frozen=True):
    """The points of a curve, made from the first `read` values."""

    points: Points
    read: int
    version: int


class TaskCurves:
    """The rows and points of one task. One thread at a time."""

    def __init__(self, timeline: Timeline, facts: CurveFacts, task: str) -> None:
        if task not in facts.tasks and task != timeline.task:
            known = ", ".join(list(facts.tasks)[-10:])
            raise NotFound(
                f"no task {task!r} is recorded here",
                hint=f"the tasks are {known}" if known else "no task was submitted yet",
            )
        self.task = task
        self.rows = Rows()
        self._left_out: set[str] = set()
        self._timeline = timeline
        self._facts = facts
        self._streams: dict[tuple[str, int], Stream] = {}
        self._counted = Column(np.bool_)
        self._undone = Column(np.bool_)
        self._history: History | None = None
        self._resumed: tuple[int, ...] = ()
        self._described: tuple[object, object] = ({}, {})
        self._version = 0
        self._made: OrderedDict[Key, KeptPoints] = OrderedDict()

    @property
    def facts(self) -> TaskFacts:
        """The facts of the task."""
        return self._facts.tasks.get(self.task) or TaskFacts(task=self.task)

    def _line(self) -> list[TaskFacts]:
        """The task and the tasks it was forked from, the first one first."""
        return self._facts.line(self.task) if self.task in self._facts.tasks else [self.facts]

    def refresh(self) -> None:
        """Read new events; the facts are new already."""
        line = self._line()
        self._read_streams(line)
        resumed = tuple(len(each.resumed) for each in line)
        described = (dict(self.rows.config), dict(self.rows.gpus))
        if described != self._described:
            self._described = described
            self._version += 1
        if self._history is None or resumed != self._resumed:
            self._history, self._resumed = history(line), resumed
            self._counted, self._undone = Column(np.bool_), Column(np.bool_)
            self._version += 1
        self._judge()

    def _read_streams(self, line: list[TaskFacts]) -> None:
        """Read the new events of all streams; of fewer workers if there are too many rows."""
        streams = [(at, each) for at, task in enumerate(line) for each in task.streams]
        if self._timeline.task == self.task:
            known = {each for _, each in streams}
            last = len(line) - 1
            own = self._timeline.reader.streams()
            streams += [(last, each) for each in own if each not in known]
        self._open(streams)
        for ancestor, (worker, incarnation) in streams:
            stream = self._streams.get((worker, incarnation))
            if stream is not None:
                self._read_stream(stream, line[ancestor], worker, incarnation)
            if len(self.rows) > MAX_ROWS:
                self._leave_out(sorted({name for _, (name, _) in streams}))
                return self._read_streams(line)
        return None

    def _open(self, streams: list[tuple[int, tuple[str, int]]]) -> None:
        """Prepare to read streams that are new."""
        reader, before = self._timeline.reader, len(self._streams)
        for ancestor, (worker, incarnation) in streams:
            known = (worker, incarnation) in self._streams or worker in self._left_out
            if not known and reader.last_seq(worker, incarnation) is not None:
                number = self.rows.worker_number(worker)
                self._streams[worker, incarnation] = Stream(ancestor=ancestor, worker=number)
        if len(self._streams) > before:
            self._timeline.tallies(fresh=True)  # aligns their clocks

    def _read_stream(self, stream: Stream, task: TaskFacts, worker: str, incarnation: int) -> None:
        records = self._timeline.events_of(worker, incarnation, stream.seq)
        while len(self.rows) <= MAX_ROWS and (chunk := list(islice(records, READ_AT_ONCE))):
            intake = Intake(self.rows, stream)
            intake.read(chunk, task.generation_at)
            intake.finish()

    def _leave_out(self, names: list[str]) -> None:
        """Start again with the first half of the workers that were read."""
        kept = [name for name in names if name not in self._left_out]
        if len(kept) < 2:
            raise LimitExceeded(
                f"worker {kept[0]!r} has more than {MAX_ROWS:,} recorded steps",
                hint="query its events with `strata sql`",
            )
        self._left_out |= set(kept[len(kept) // 2 :])
        self.rows, self._streams, self._history = Rows(), {}, None
        self._made.clear()

    def notes(self) -> list[str]:
        """What is missing from the curves."""
        notes = []
        if self._left_out:
            read, every = len(self.rows.workers), len(self._left_out) + len(self.rows.workers)
            notes.append(
                f"these are the curves of {read} of {every} workers: all of them together have "
                f"more than {MAX_ROWS:,} recorded steps"
            )
        facts, steps = self.facts, self.rows.step.values
        if facts.parent and facts.forked_step and not (steps < facts.forked_step).any():
            notes.append(
                f"the steps before {facts.forked_step} are those of {facts.parent}, which are not "
                "recorded here"
            )
        if self.rows.names_left_out:
            left_out, kept = len(self.rows.names_left_out), len(self.rows.logged)
            notes.append(f"{left_out} metrics beyond the first {kept} are left out")
        return [*notes, *self._timeline.damage[:DAMAGE_SHOWN]]

    def _judge(self) -> None:
        """Find out which of the new rows count, and which were undone."""
        history, rows, start = self._history, self.rows, len(self._counted)
        assert history is not None, "made by refresh"
        pairs = list(rows.eras) or [(0, 0)]
        orders = np.array([history.order_of(*pair) for pair in pairs], np.int64)
        cuts = history.cuts[[ancestor for ancestor, _ in pairs]]
        era = rows.era.values[start:]
        steps = rows.step.values[start:] - ~rows.inside.values[start:]
        own = (orders[era] != UNKNOWN) & (steps < cuts[era])  # else of an ancestor after its fork
        counted = own & (orders[era] >= history.owner_of(steps))
        self._counted.extend(counted)
        self._undone.extend(own & ~counted)

    def undone_steps(self) -> int:
        """How many steps were undone; a step that was undone twice counts twice."""
        rows = self.rows
        undone = self._undone.values & rows.inside.values
        pairs = rows.step.values[undone] * (len(rows.eras) + 1) + rows.era.values[undone]
        return int(np.unique(pairs).size)

    def steps_at(self, moments_ns: list[int]) -> list[int | None]:
        """For each moment the number of steps done, by the newest row before it."""
        rows = self.rows
        inside = np.flatnonzero(rows.inside.values)
        ordered = inside[np.argsort(rows.at_ns.values[inside], kind="stable")]
        places = np.searchsorted(rows.at_ns.values[ordered], moments_ns, "right") - 1
        steps = rows.step.values
        return [int(steps[ordered[at]]) + 1 if at >= 0 else None for at in places.tolist()]

    def span_ms(self) -> tuple[float, float] | None:
        """The time from the first to the last row; None without rows."""
        at_ns = self.rows.at_ns.values
        return (int(at_ns.min()) / 1e6, int(at_ns.max()) / 1e6) if at_ns.size else None

    def points(
        self, source: Source, name: str = "", worker: str = "", *, undone: bool = False
    ) -> Points:
        """The points of a metric, of a part of the steps' time, or of the steps' samples."""
        key = (source, name, worker, undone)
        read = len(self.rows.logged[name].values) if source == "logged" else len(self.rows)
        made = self._made.get(key)
        if made is None or (made.version, made.read) != (self._version, read):
            places, values = self._values(source, name)
            which = self._chosen(places, worker, undone)
            if made is None or made.version != self._version:
                points = self._pointed(source, places, values, which)
            else:
                first = int(self.rows.step.values[places[made.read :]].min())
                which &= self.rows.step.values[places] >= first
                later = self._pointed(source, places, values, which)
                points = joined(before_step(made.points, first), later)
            made = KeptPoints(points, read, self._version)
        self._keep(key, made)
        return made.points

    def derived(self, name: str, worker: str, make: Callable[[], Points | None]) -> Points | None:
        """Points that `make` derives from others; kept until there are new rows."""
        key: Key = ("derived", name, worker, False)
        made = self._made.get(key)
        if made is None or (made.version, made.read) != (self._version, len(self.rows)):
            points = make()
            if points is None:
                return None
            made = KeptPoints(points, len(self.rows), self._version)
        self._keep(key, made)
        return made.points

    def _keep(self, key: Key, made: KeptPoints) -> None:
        self._made[key] = made
        self._made.move_to_end(key)
        while len(self._made) > 1 and self.point_bytes > MAX_POINT_BYTES:
            self._made.popitem(last=False)

    @property
    def point_bytes(self) -> int:
        """The memory that the kept points take."""
        return sum(each.points.nbytes for each in self._made.values())

    def _values(self, source: Source, name: str) -> tuple[NDArray[np.integer], Floats]:
        """The rows of a source and their values."""
        rows = self.rows
        if source == "logged":
            logged = rows.logged[name]
            return logged.rows.values, logged.values.values
        every = np.arange(len(rows), dtype=np.int32)
        if source == "part":
            return every, rows.parts[name].values.astype(np.float64)
        if source == "step_s":
            parts = [rows.parts[each].values.astype(np.float64) for each in PARTS]
            return every, np.sum(parts, axis=0)
        if source == "members":  # workers of the row's generation; 0 if they are not recorded
            line = self._line()
            sizes = [line[at].sizes.get(generation, 0) for at, generation in rows.eras]
            return every, np.array(sizes or [0], np.float64)[rows.era.values]
        column = rows.samples if source == "samples" else rows.averaged
        return every, column.values.astype(np.float64)

    def _chosen(self, places: NDArray[np.integer], worker: str, undone: bool) -> Flags:
        which: Flags = (self._undone if undone else self._counted).values[places]
        if worker:
            which &= self.rows.worker.values[places] == self.rows.workers.get(worker, -1)
        return which

    def _pointed(
        self, source: Source, places: NDArray[np.integer], values: Floats, which: Flags
    ) -> Points:
        rows = self.rows
        if source != "logged":
            which = which & rows.inside.values
        chosen = places[which]
        found = Values(
            step=rows.step.values[chosen],
            at_ns=rows.at_ns.values[chosen],
            worker=rows.worker.values[chosen],
            inside=rows.inside.values[chosen],
            value=values[which],
        )
        return points_of(found, median=source in ("part", "step_s"))

    def workers_of(self, name: str) -> int:
        """How many workers logged a metric, or recorded steps."""
        rows = self.rows
        if name not in rows.logged:
            return int(np.unique(rows.worker.values[rows.inside.values]).size)
        return int(np.unique(rows.worker.values[rows.logged[name].rows.values]).size)
