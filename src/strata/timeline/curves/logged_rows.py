"""The recorded steps and logged metrics of a task, as columns that grow with the log.

One row for each `StepFinished` and `MetricsLogged`; the values of a metric are a column of their
own, with the rows they belong to. Rows are in the order in which they were read.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from strata.core.workers.worker_facts import (
    ConfigLogged,
    ConfigValue,
    MetricsLogged,
    ResourceSnapshot,
    RunStarted,
    StepFinished,
    TrainingFinished,
)
from strata.timeline.read.records import Record

MAX_NAMES = 500
MAX_ROWS = 4_000_000
PARTS = ("data_s", "compute_s", "communication_s", "wait_s")
Scalar = TypeVar("Scalar", bound=np.generic)


class Column(Generic[Scalar]):
    """Numbers that are appended in pieces, in one array with room for more."""

    def __init__(self, dtype: type[Scalar]) -> None:
        self._all: NDArray[Scalar] = np.empty(1024, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> NDArray[Scalar]:
        """The numbers so far."""
        return self._all[: self._size]

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self._all.nbytes

    def extend(self, values: Any) -> None:
        """Append numbers."""
        stop = self._size + len(values)
        if stop > self._all.size:
            grown = np.empty(max(stop, self._all.size * 3 // 2), self._all.dtype)
            grown[: self._size] = self._all[: self._size]
            self._all = grown
        self._all[self._size : stop] = values
        self._size = stop


class Logged:
    """The values of one metric and the rows they belong to."""

    def __init__(self) -> None:
        self.rows = Column(np.int32)
        self.values = Column(np.float64)


class Stream(Struct, kw_only=True):
    """What is known of one incarnation of a worker; its next event has the number `seq`.

    `trained` has the samples of a step that is not finished yet: its own, and those of all workers.
    """

    ancestor: int
    worker: int
    seq: int = 0
    trained: dict[int, tuple[int, int]] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()


class Rows:
    """The rows of a task and its ancestors.

    `era` numbers the pairs of ancestor and generation in `eras`. `inside`: logged in the step, not
    after so many steps. `samples` are those of the worker, `averaged` those of all workers, if it
    recorded them; else 0.
    """

    def __init__(self) -> None:
        self.step = Column(np.int64)
        self.at_ns = Column(np.int64)
        self.worker = Column(np.int32)
        self.era = Column(np.int32)
        self.inside = Column(np.bool_)
        self.parts = {name: Column(np.float32) for name in PARTS}
        self.samples = Column(np.int64)
        self.averaged = Column(np.int64)
        self.logged: dict[str, Logged] = {}
        self.names_left_out: set[str] = set()
        self.eras: dict[tuple[int, int], int] = {}
        self.workers: dict[str, int] = {}
        self.gpus: dict[int, tuple[str, ...]] = {}
        self.config: dict[str, ConfigValue] = {}
        self.parameters: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.step)

    def worker_number(self, name: str) -> int:
        """The number of a worker in the column `worker`."""
        return self.workers.setdefault(name, len(self.workers))

    def era_number(self, ancestor: int, generation: int) -> int:
        """The number of an ancestor's generation in the column `era`."""
        return self.eras.setdefault((ancestor, generation), len(self.eras))

    def values_of(self, name: str) -> Logged | None:
        """The column of a metric; None if there are too many metrics already."""
        found = self.logged.get(name)
        if found is None:
            if len(self.logged) == MAX_NAMES:
                if len(self.names_left_out) < MAX_NAMES:
                    self.names_left_out.add(name)
                return None
            found = self.logged[name] = Logged()
        return found


class Intake:
    """Adds the events of one stream to the rows; `finish` appends what was collected."""

    def __init__(self, rows: Rows, stream: Stream) -> None:
        self._rows = rows
        self._stream = stream
        self._heads: list[tuple[int, int, int, bool]] = []
        self._parts: list[tuple[float, float, float, float]] = []
        self._samples: list[tuple[int, int]] = []
        self._values: dict[str, tuple[list[int], list[float]]] = {}

    def read(self, records: Iterable[Record], generation_at: Any) -> None:
        """Collect the rows of some records; `generation_at` gives the generation at a time."""
        stream = self._stream
        for record in records:
            stream.seq = record.event.seq + 1
            body = record.event.body
            if isinstance(body, StepFinished):
                generation = body.generation or generation_at(record.at_ns)
                era = self._rows.era_number(stream.ancestor, generation)
                self._heads.append((body.step, record.at_ns, era, True))
                self._parts.append((body.data_s, body.compute_s, body.communication_s, body.wait_s))
                self._samples.append(stream.trained.pop(body.step, (0, 0)))
                stream.trained.clear()
                if body.loss is not None:
                    self._put("loss", body.loss)
                for name, value in (body.metrics or {}).items():
                    self._put(name, value)
            elif isinstance(body, TrainingFinished):
                own, averaged = stream.trained.get(body.step, (0, 0))
                stream.trained = {body.step: (own + body.samples, max(averaged, body.averaged))}
            elif isinstance(body, MetricsLogged):
                generation = body.generation or generation_at(record.at_ns)
                era = self._rows.era_number(stream.ancestor, generation)
                self._heads.append((body.step, record.at_ns, era, False))
                self._parts.append((0.0, 0.0, 0.0, 0.0))
                self._samples.append((0, 0))
                for name, value in body.metrics.items():
                    self._put(name, value)
            else:
                self._describe(body)

    def _put(self, name: str, value: float) -> None:
        rows, values = self._values.setdefault(name, ([], []))
        rows.append(len(self._heads) - 1)
        values.append(value)

    def _describe(self, body: object) -> None:
        rows, stream = self._rows, self._stream
        if isinstance(body, ConfigLogged):
            rows.config |= body.values
        elif isinstance(body, RunStarted):
            rows.parameters = rows.parameters or body.parameters
        elif isinstance(body, ResourceSnapshot) and body.gpus:
            rows.gpus[stream.worker] = tuple(each.name for each in body.gpus)

    def finish(self) -> None:
        """Append the collected rows to the columns."""
        if not self._heads:
            return
        rows, base = self._rows, len(self._rows)
        step, at_ns, era, inside = zip(*self._heads, strict=True)
        rows.step.extend(step)
        rows.at_ns.extend(at_ns)
        rows.era.extend(era)
        rows.inside.extend(inside)
        rows.worker.extend(np.full(len(step), self._stream.worker, np.int32))
        for name, column in zip(PARTS, np.array(self._parts, np.float32).T, strict=True):
            rows.parts[name].extend(column)
        samples = np.array(self._samples, np.int64)
        rows.samples.extend(samples[:, 0])
        rows.averaged.extend(samples[:, 1])
        for name, (places, values) in self._values.items():
            column_of = rows.values_of(name)
            if column_of is not None:
                column_of.rows.extend(np.array(places, np.int32) + base)
                column_of.values.extend(values)
        self._heads, self._parts, self._samples, self._values = [], [], [], {}
