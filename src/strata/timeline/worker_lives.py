"""Each worker by the coordinator's facts: what it was from when on, and where it had to wait."""

from bisect import bisect_right
from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.core.barriers import BarrierArrived, BarrierFailed, BarrierReleased
from strata.core.state import Cluster
from strata.core.tasks import ENDED, TaskPlaced, TaskStateChanged
from strata.core.workers import WorkerLost, WorkerRegistered, WorkerState, WorkerStateChanged
from strata.timeline.records import Record

SpanKind: TypeAlias = Literal[
    "train", "data", "barrier", "checkpoint", "recover", "wait", "idle", "lost"
]

STATES: dict[WorkerState, SpanKind] = {
    "initializing": "idle",
    "idle": "idle",
    "loading_data": "data",
    "training": "train",
    "checkpointing": "checkpoint",
    "recovering": "recover",
    "error": "lost",
    "lost": "lost",
}
STARTING = "starting"
FACTS = frozenset(
    kind.__name__
    for kind in (
        TaskPlaced,
        TaskStateChanged,
        WorkerRegistered,
        WorkerLost,
        WorkerStateChanged,
        BarrierArrived,
        BarrierReleased,
        BarrierFailed,
    )
)


class Turn(Struct, frozen=True, kw_only=True):
    """What a worker is from a moment on, by the coordinator's facts; without a kind it has left."""

    at_ns: int
    kind: SpanKind | None
    label: str
    task: str
    ref: str = ""
    ok: bool = True

    @property
    def alive(self) -> bool:
        """Whether the worker may do something."""
        return self.kind not in (None, "lost")

    @property
    def waiting(self) -> bool:
        """Whether a process of the worker is yet to come."""
        return self.kind == "lost" or self.label == STARTING


class Busy(Struct, frozen=True, kw_only=True):
    """What the training thread was busy with."""

    from_ns: int
    to_ns: int
    kind: SpanKind
    label: str
    ref: str
    ok: bool | None = None


class Life(Struct):
    """One worker by the coordinator's facts: what it was from when on, and its barriers."""

    node: str
    task: str = ""
    turns: list[Turn] = field(default_factory=list)
    barriers: list[Busy] = field(default_factory=list)

    def turn(self, record: Record, kind: SpanKind | None, label: str, ok: bool = True) -> None:
        """The worker is something else from a fact on."""
        self.begin(
            Turn(at_ns=record.at_ns, kind=kind, label=label, task=self.task, ref=record.ref, ok=ok)
        )

    def begin(self, turn: Turn) -> None:
        """The worker is something else from now on; of two at one moment the later counts."""
        if self.turns and self.turns[-1].at_ns >= turn.at_ns:
            self.turns.pop()
        self.turns.append(turn)

    def period(self, at_ns: int) -> tuple[int, int | None] | None:
        """The time around a moment for which the worker was alive without interruption."""
        at = bisect_right(self.turns, at_ns, key=lambda turn: turn.at_ns) - 1
        if at < 0 or not self.turns[at].alive:
            return None
        first, last = at, at
        while first and self.turns[first - 1].alive:
            first -= 1
        while last < len(self.turns) and self.turns[last].alive:
            last += 1
        ended_ns = self.turns[last].at_ns if last < len(self.turns) else None
        return self.turns[first].at_ns, ended_ns


class Lives:
    """Reads facts in their order; `of` has every worker."""

    def __init__(self, state: Cluster | None = None, at_ns: int = 0) -> None:
        self.of: dict[str, Life] = {}
        self._arrived: dict[tuple[str, str], dict[str, Record]] = {}
        for worker in state.workers.values() if state is not None else ():
            if worker.state in STATES:
                self._life(worker.id, worker.task).begin(
                    Turn(
                        at_ns=at_ns,
                        kind=STATES[worker.state],
                        label=worker.state,
                        task=worker.task,
                        ok=worker.alive,
                    )
                )

    def _life(self, node: str, task: str) -> Life:
        life = self.of.setdefault(node, Life(node))
        life.task = task or life.task
        return life

    def feed(self, record: Record) -> None:
        """A fact that may change what a worker is."""
        body = record.event.body
        if isinstance(body, TaskPlaced):
            for worker in body.placements:
                life = self._life(worker, body.task)
                if not life.turns or life.turns[-1].kind is None:
                    life.turn(record, "idle", STARTING)
        elif isinstance(body, TaskStateChanged) and body.after in ENDED:
            for life in self.of.values():
                if life.task == body.task and life.turns[-1].waiting:
                    life.turn(record, None, "the task has ended")
        elif isinstance(body, WorkerRegistered):
            self._life(body.worker, body.task).turn(record, "idle", "joined")
        elif isinstance(body, WorkerLost):
            self._life(body.worker, body.task).turn(record, "lost", body.reason, ok=False)
        elif isinstance(body, WorkerStateChanged):
            life = self._life(body.worker, body.task)
            life.turn(record, STATES.get(body.after), body.after)
        elif isinstance(body, BarrierArrived):
            self._arrived.setdefault((body.task, body.barrier), {})[body.worker] = record
        elif isinstance(body, BarrierReleased | BarrierFailed):
            ok = isinstance(body, BarrierReleased)
            for worker, arrival in self._arrived.pop((body.task, body.barrier), {}).items():
                if worker in self.of:
                    self.of[worker].barriers.append(
                        Busy(
                            from_ns=arrival.at_ns,
                            to_ns=record.at_ns,
                            kind="barrier",
                            label=f"barrier {body.barrier}",
                            ref=arrival.ref,
                            ok=ok,
                        )
                    )
