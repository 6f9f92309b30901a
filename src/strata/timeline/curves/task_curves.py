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

Source: TypeAlias = Literal["logged", "part", "step_s", "samples", "averaged", "derived"]
Key: TypeAlias = tuple[Source, str, str, bool]
"""Source, name, worker (empty: all), whether of undone rows."""


class Made(Struct, frozen=True):
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
        self.notes: dict[str, None] = {}
        self._timeline = timeline
        self._facts = facts
        self._streams: dict[tuple[str, int], Stream] = {}
        self._counted = Column(np.bool_)
        self._undone = Column(np.bool_)
        self._history: History | None = None
        self._resumed: tuple[int, ...] = ()
        self._described: tuple[object, object] = ({}, {})
        self._version = 0
        self._made: OrderedDict[Key, Made] = OrderedDict()

    @property
    def facts(self) -> TaskFacts:
        """The facts of the task."""
        return self._facts.tasks.get(self.task) or TaskFacts(task=self.task)

    def refresh(self) -> None:
        """Read new events; the facts are new already."""
        line = self._facts.line(self.task) if self.task in self._facts.tasks else [self.facts]
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
        for ancestor, task in enumerate(line):
            for worker, incarnation in list(task.streams):
                self._read_stream(ancestor, task, worker, incarnation)
        own = self._timeline.task == self.task
        for worker, incarnation in self._timeline.reader.streams() if own else ():
            self._read_stream(len(line) - 1, line[-1], worker, incarnation)

    def _read_stream(self, ancestor: int, task: TaskFacts, worker: str, incarnation: int) -> None:
        stream = self._streams.get((worker, incarnation))
        if stream is None:
            if self._timeline.reader.last_seq(worker, incarnation) is None:
                return
            self._timeline.tallies(fresh=True)  # aligns its clock
            stream = Stream(ancestor=ancestor, worker=self.rows.worker_number(worker))
            self._streams[worker, incarnation] = stream
        records = self._timeline.events_of(worker, incarnation, stream.seq)
        while chunk := list(islice(records, READ_AT_ONCE)):
            intake = Intake(self.rows, stream)
            intake.read(chunk, task.generation_at)
            intake.finish()
            if len(self.rows) > MAX_ROWS:
                raise LimitExceeded(
                    f"task {self.task!r} has more than {MAX_ROWS:,} recorded steps of workers",
                    hint="export the run and query its events with `strata sql`",
                )

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
            made = Made(points, read, self._version)
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
            made = Made(points, len(self.rows), self._version)
        self._keep(key, made)
        return made.points

    def _keep(self, key: Key, made: Made) -> None:
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
