"""Markers of a task's curves: the coordinator's facts that explain a change in a curve."""

from msgspec import Struct, field

from strata.core.alerts.alert_record import AlertRaised
from strata.core.alerts.loss_rules import NOT_FINITE, PLATEAU, SPIKE
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted
from strata.core.generations.recovery import RecoveryChosen, RolledBack
from strata.core.tasks.continuation import TaskContinued
from strata.core.tasks.resizing import TaskResized
from strata.core.tasks.task_forks import TaskForked
from strata.core.workers.worker_lifecycle import WorkerLost
from strata.timeline.curves.curve_answers import Marker, MarkerKind
from strata.timeline.read.records import Record, ms
from strata.timeline.read.sentences import sentence

MOST = 2_000

KINDS: dict[str, MarkerKind] = {
    WorkerLost.__name__: "lost",
    RecoveryChosen.__name__: "recovery",
    RolledBack.__name__: "rollback",
    CheckpointCommitted.__name__: "checkpoint",
    TaskForked.__name__: "fork",
    TaskContinued.__name__: "continued",
    TaskResized.__name__: "resize",
    AlertRaised.__name__: "alert",
}

LOSS_RULES = (NOT_FINITE, SPIKE, PLATEAU)
"""Rules whose alerts are about a step, which is earlier than the one at which they were raised."""


class Markers(Struct):
    """The markers of one task; if there are too many, checkpoints are thinned out."""

    listed: list[Marker] = field(default_factory=list)
    left_out: int = 0

    def add(self, record: Record, step: int | None) -> None:
        """Add a marker for a fact, if its kind has one."""
        kind = KINDS.get(record.kind)
        if kind is not None:
            body = record.event.body
            if isinstance(body, TaskContinued) and body.changes:
                kind = "config"
            if isinstance(body, AlertRaised) and body.rule in LOSS_RULES:
                found = body.evidence.get("step")
                step = int(found) if isinstance(found, int | float) else step
            self.put(record, kind, step)

    def put(self, record: Record, kind: MarkerKind, step: int | None) -> None:
        """Add a marker of a kind for a fact."""
        self.listed.append(
            Marker(
                at_ms=ms(record.at_ns), step=step, kind=kind, text=sentence(record), ref=record.ref
            )
        )
        if len(self.listed) > MOST:
            self._thin()

    def _thin(self) -> None:
        """Leave out every other checkpoint, or the oldest markers if there are few checkpoints."""
        saved = [at for at, each in enumerate(self.listed) if each.kind == "checkpoint"]
        dropped = set(saved[::2]) if len(saved) > MOST // 4 else set(range(MOST // 4))
        self.listed = [each for at, each in enumerate(self.listed) if at not in dropped]
        self.left_out += len(dropped)
