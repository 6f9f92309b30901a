"""What the coordinator's facts say about the curves of each task.

The facts are read once, then only new ones. A step belongs to the newest generation that began at
or before it (see `timeline/audit/lineage`); steps that are not committed yet count too.
"""

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from strata.core.cluster import CoordinatorStarted
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RecoveryChosen
from strata.core.task_spec import TaskSpec
from strata.core.task_state import ENDED
from strata.core.tasks.continuation import TaskContinued
from strata.core.tasks.task_forks import TaskForked
from strata.core.tasks.task_lifecycle import TaskStateChanged, TaskSubmitted
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.timeline.curves.curve_markers import KINDS, Markers
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline

NEVER = 2**62
UNKNOWN = -2
"""The order of a generation that is not part of a task's history."""


class Resumed(Struct, frozen=True):
    """A generation that began at a step; `position` is that of its `RecoveryChosen`."""

    position: int
    at_ns: int
    generation: int
    step: int


class TaskFacts(Struct):
    """The facts of one task; `sizes` has the number of workers of each generation."""

    task: str
    spec: TaskSpec | None = None
    submitted_ns: int = 0
    state: str = ""
    parent: str = ""
    forked_step: int = 0
    forked_position: int = 0
    resumed: list[Resumed] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    streams: dict[tuple[str, int], None] = field(default_factory=dict)
    changes: list[tuple[int, int, dict[str, tuple[str, str]]]] = field(default_factory=list)
    markers: Markers = field(default_factory=Markers)

    def generation_at(self, at_ns: int) -> int:
        """The generation that trained at a moment; for logs without generations in the events."""
        at = bisect_right(self.resumed, at_ns, key=lambda each: each.at_ns)
        return self.resumed[max(at - 1, 0)].generation if self.resumed else 0


class History(Struct, frozen=True):
    """The generations of a task and its ancestors in order.

    The step `firsts[i]` and the following ones belong to the generation with order `owners[i]`.
    `orders` has, for each ancestor, its known generations and their orders, and `cuts` the step
    from which on its steps belong to itself alone, because the next one was forked from it there.
    """

    cuts: NDArray[np.int64]
    firsts: NDArray[np.int64]
    owners: NDArray[np.int64]
    orders: list[tuple[list[int], list[int]]]

    def order_of(self, ancestor: int, generation: int) -> int:
        """The order of a generation; `UNKNOWN` if it is not part of the task's history."""
        generations, orders = self.orders[ancestor]
        at = bisect_right(generations, generation) - 1
        if at < 0:
            return -1  # before the first recovery that is recorded
        if at < len(generations) - 1 or generations[at] == generation:
            return orders[at]
        # A newer one: its recovery is read with the next facts, if it is of the task itself.
        return orders[at] if ancestor == len(self.orders) - 1 else UNKNOWN

    def owner_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order of the generation that each step belongs to."""
        if not self.firsts.size:
            return np.full(steps.size, -1, np.int64)
        at = np.searchsorted(self.firsts, steps, "right") - 1
        return np.where(at >= 0, self.owners[at], -1)


class CurveFacts:
    """The facts of all tasks of a log, read up to `position`."""

    def __init__(self, timeline: Timeline) -> None:
        self.tasks: dict[str, TaskFacts] = {}
        self.position = timeline.reader.first
        self._timeline = timeline

    def refresh(self) -> None:
        """Read new facts."""
        stop = self._timeline.position
        if stop > self.position:
            for record in self._timeline.facts(self.position, stop):
                self._take_in(record)
            self.position = stop

    def line(self, task: str) -> list[TaskFacts]:
        """The task and the tasks it was forked from, the first one first."""
        found = [self.tasks[task]]
        while found[0].parent in self.tasks:
            found.insert(0, self.tasks[found[0].parent])
        return found

    def _take_in(self, record: Record) -> None:
        body = record.event.body
        if isinstance(body, CoordinatorStarted):
            for each in self.tasks.values():
                if each.state not in ENDED:
                    each.markers.put(record, "restart", None)
            return
        task = record.text("task")
        if isinstance(body, RecoveryChosen) and not self._of(task).resumed:
            pass  # the start of the task
        elif task and record.kind in KINDS:
            self._of(task).markers.add(record, step_of(record))
        if isinstance(body, TaskForked):
            self._of(body.parent).markers.add(record, body.step)
        if isinstance(body, TaskSubmitted):
            self._of(body.task).spec = body.spec
            self._of(body.task).submitted_ns = record.at_ns
        elif isinstance(body, WorkerRegistered):
            self._of(body.task).streams[body.worker, body.incarnation] = None
        elif isinstance(body, TaskStateChanged):
            self._of(body.task).state = body.after
        elif isinstance(body, RecoveryChosen):
            self._of(body.task).resumed.append(
                Resumed(
                    position=record.event.seq,
                    at_ns=record.at_ns,
                    generation=body.generation,
                    step=body.step,
                )
            )
        elif isinstance(body, GenerationChanged):
            self._of(body.task).sizes[body.generation] = body.world_size
        elif isinstance(body, TaskForked):
            fork = self._of(body.task)
            fork.parent, fork.forked_step = body.parent, body.step
            fork.forked_position = record.event.seq
            fork.changes.append((record.at_ns, body.step, body.changes))
        elif isinstance(body, TaskContinued):
            continued = self._of(body.task)
            continued.spec = body.spec
            continued.changes.append((record.at_ns, body.step, body.changes))

    def _of(self, task: str) -> TaskFacts:
        return self.tasks.setdefault(task, TaskFacts(task=task))


def step_of(record: Record) -> int | None:
    """The step that a fact names; None if it names none."""
    steps = (record.get(name) for name in ("to", "step"))
    return next((step for step in steps if isinstance(step, int) and step >= 0), None)


def history(line: Iterable[TaskFacts]) -> History:
    """The generations of a task and its ancestors; `line` has the first ancestor first."""
    tasks = list(line)
    spans: list[tuple[int, int]] = []
    orders: list[tuple[list[int], list[int]]] = []
    count = 0
    for at, task in enumerate(tasks):
        stop = tasks[at + 1].forked_position if at + 1 < len(tasks) else None
        known: dict[int, int] = {}
        begun = [(each.step, each.generation) for each in task.resumed if _before(each, stop)]
        if at:
            begun.insert(0, (task.forked_step, -1))  # the parent's later steps are not its own
        for step, generation in begun:
            spans = [span for span in spans if span[0] < step]
            spans.append((step, count))
            if generation >= 0:
                known[generation] = count
            count += 1
        generations = sorted(known)
        orders.append((generations, [known[each] for each in generations]))
    forks = [task.forked_step for task in tasks[1:]]
    cuts = [min(forks[at:], default=NEVER) for at in range(len(tasks))]
    return History(
        cuts=np.array(cuts, np.int64),
        firsts=np.array([first for first, _ in spans], np.int64),
        owners=np.array([owner for _, owner in spans], np.int64),
        orders=orders,
    )


def _before(resumed: Resumed, stop: int | None) -> bool:
    return stop is None or resumed.position < stop
