"""Each worker's states and barrier waits over time, from the coordinator's facts."""

from bisect import bisect_right

from msgspec import Struct, field

from strata.core.barriers.barrier_rules import BarrierArrived, BarrierFailed, BarrierReleased
from strata.core.state import Cluster, WorkerState
from strata.core.task_state import ENDED
from strata.core.tasks.task_lifecycle import TaskPlaced, TaskStateChanged
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered, WorkerStateChanged
from strata.timeline.answers import SpanKind
from strata.timeline.read.records import Record

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
    """The state of a worker from a moment on; `kind` is None after it left.

    `starting`: the worker is placed on a host, and its process has not registered yet.
    """

    at_ns: int
    kind: SpanKind | None
    label: str
    task: str
    ref: str = ""
    ok: bool = True
    starting: bool = False

    @property
    def alive(self) -> bool:
        """Whether the worker is present: starting or running."""
        return self.kind not in (None, "lost")

    @property
    def waiting(self) -> bool:
        """Whether the worker has no process yet, or no longer."""
        return self.kind == "lost" or self.starting


class Busy(Struct, frozen=True, kw_only=True):
    """A span in which the training thread was busy with one thing; `what` as in `Activity`."""

    from_ns: int
    to_ns: int
    kind: SpanKind
    label: str
    ref: str
    ok: bool | None = None
    what: str = ""


class Life(Struct):
    """The states of one worker in order, and its barrier waits."""

    node: str
    task: str = ""
    turns: list[Turn] = field(default_factory=list)
    barriers: list[Busy] = field(default_factory=list)

    def turn(
        self,
        record: Record,
        kind: SpanKind | None,
        label: str,
        ok: bool = True,
        starting: bool = False,
    ) -> None:
        """Add the state that begins with a fact."""
        self.begin(
            Turn(
                at_ns=record.at_ns,
                kind=kind,
                label=label,
                task=self.task,
                ref=record.ref,
                ok=ok,
                starting=starting,
            )
        )

    def begin(self, turn: Turn) -> None:
        """Add a state; it replaces one that began at the same moment."""
        if self.turns and self.turns[-1].at_ns >= turn.at_ns:
            self.turns.pop()
        self.turns.append(turn)

    def leave_out(self, from_ns: int, to_ns: int) -> None:
        """Leaves out a span in which the worker was alive when its records ended."""
        before = [turn for turn in self.turns if turn.at_ns <= from_ns]
        if before and before[-1].alive:
            unknown = Turn(at_ns=from_ns + 1, kind=None, label="not recorded", task=self.task)
            later = [turn for turn in self.turns if turn.at_ns >= to_ns]
            self.turns = [*before, unknown, *later]

    def period(self, at_ns: int) -> tuple[int, int | None] | None:
        """The span around a moment in which the worker was alive without interruption."""
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
    """Collects the life of every worker (`of`) from facts, fed in order."""

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
        life = self.of.setdefault(node, Life(node=node))
        life.task = task or life.task
        return life

    def feed(self, record: Record) -> None:
        """Apply a fact."""
        body = record.event.body
        if isinstance(body, TaskPlaced):
            for worker in body.placements:
                life = self._life(worker, body.task)
                if not life.turns or life.turns[-1].kind is None:
                    life.turn(record, "idle", "starting", starting=True)
        elif isinstance(body, TaskStateChanged) and (body.after in ENDED or body.after == "queued"):
            for life in self.of.values():
                if life.task == body.task and life.turns[-1].waiting:
                    life.turn(record, None, f"the task is {body.after}")
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
            arrived = self._arrived.pop((body.task, body.barrier), {})
            last = max(arrived, key=lambda worker: arrived[worker].at_ns, default="") if ok else ""
            for worker, arrival in arrived.items():
                if worker in self.of:
                    self.of[worker].barriers.append(
                        Busy(
                            from_ns=arrival.at_ns,
                            to_ns=record.at_ns,
                            kind="barrier",
                            label=f"barrier {body.barrier}",
                            ref=arrival.ref,
                            ok=ok,
                            what=last,
                        )
                    )
