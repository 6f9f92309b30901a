"""The state of the cluster as the live stream tells it, and step rates that follow from it."""

from collections import deque
from typing import Any, TypeAlias

from msgspec import Struct, field

from strata.coordinator.rest.host_responses import HostResponse
from strata.coordinator.rest.response_models import (
    Attention,
    BarrierResponse,
    CheckpointResponse,
    MetricsSnapshot,
    StatusResponse,
    TaskResponse,
    Totals,
    WorkerResponse,
)
from strata.timeline.answers import EventAnswer

RATE_WINDOW_MS = 15_000
LEAST_MS = 1_000
MAX_STEPS = 64

Row: TypeAlias = TaskResponse | WorkerResponse | CheckpointResponse | BarrierResponse | HostResponse


class Patch(Struct, frozen=True):
    """The parts of a `LivePatch` that are shown here."""

    at: int
    reset: bool = False
    coordinator: StatusResponse | None = None
    metrics: MetricsSnapshot | None = None
    totals: Totals | None = None
    attention: list[Attention] | None = None
    happened: list[EventAnswer] | None = None
    workers: list[WorkerResponse] = field(default_factory=list)
    tasks: list[TaskResponse] = field(default_factory=list)
    checkpoints: list[CheckpointResponse] = field(default_factory=list)
    barriers: list[BarrierResponse] = field(default_factory=list)
    hosts: list[HostResponse] = field(default_factory=list)
    gone: dict[str, list[str]] = field(default_factory=dict)


LISTS = ("workers", "tasks", "checkpoints", "barriers", "hosts")


class StepRates:
    """Steps per second by id, over the last seconds in which they were watched."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[int, int]]] = {}

    def note(self, key: str, step: int, at_ms: int) -> None:
        """Note a step; one that is lower than before begins anew, as after a recovery."""
        seen = self._seen.setdefault(key, deque(maxlen=MAX_STEPS))
        if seen and step < seen[-1][1]:
            seen.clear()
        if not seen or step > seen[-1][1]:
            seen.append((at_ms, step))

    def rate(self, key: str, now_ms: int) -> float | None:
        """The steps per second; None until a step was seen and a second has passed."""
        seen = self._seen.get(key)
        if not seen or len(seen) < 2:
            return None
        while len(seen) > 2 and seen[1][0] <= now_ms - RATE_WINDOW_MS:
            seen.popleft()
        (from_ms, first), (_, last) = seen[0], seen[-1]
        elapsed_ms = now_ms - from_ms
        return None if elapsed_ms < LEAST_MS else (last - first) / elapsed_ms * 1000

    def forget(self, key: str) -> None:
        """Forget an id that is gone."""
        self._seen.pop(key, None)

    def restart(self) -> None:
        """Forget all: nothing was watched while there was no connection."""
        self._seen.clear()


class Mirror:
    """Rows by the name of their list and by id. `at_ms` is the coordinator's clock."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {name: {} for name in LISTS}
        self.coordinator: StatusResponse | None = None
        self.totals: Totals | None = None
        self.attention: list[Attention] | None = None
        self.facts: list[EventAnswer] = []
        self.rates = StepRates()
        self.at_ms = 0

    def apply(self, patch: Patch) -> None:
        """Apply one patch of the stream."""
        if patch.reset:
            self.rows = {name: {} for name in LISTS}
        self.at_ms = patch.at
        self.coordinator = patch.coordinator or self.coordinator
        self.totals = patch.totals or self.totals
        self.attention = self.attention if patch.attention is None else patch.attention
        if patch.happened is not None:
            self.facts = sorted(patch.happened, key=lambda each: each.at_ms, reverse=True)
        for name in LISTS:
            self.rows[name] |= {row_id(row): row for row in getattr(patch, name)}
            for key in patch.gone.get(name, ()):
                self.rows[name].pop(key, None)
                self.rates.forget(key)
        self._note_steps()

    def _note_steps(self) -> None:
        for worker in self.rows["workers"].values():
            self.rates.note(worker.id, worker.current_step, self.at_ms)
        for task in self.rows["tasks"].values():
            self.rates.note(task.id, task.committed_steps, self.at_ms)

    def task(self, task_id: str) -> TaskResponse | None:
        """A task, if it is listed."""
        return self.rows["tasks"].get(task_id)

    def worker(self, worker_id: str) -> WorkerResponse | None:
        """A worker, if it is listed."""
        return self.rows["workers"].get(worker_id)


def row_id(row: Row) -> str:
    """The id of a row as the stream names it; checkpoint ids are unique within a task only."""
    return f"{row.task_id}/{row.id}" if isinstance(row, CheckpointResponse) else row.id
