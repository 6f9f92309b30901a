"""Rules on checkpoints: failing, late.

*Failing.* The last `checkpoint_failures` checkpoints of a task failed, with none committed since;
or one that was committed is damaged. A checkpoint that failed because a worker postponed its save
does not count, because another one replaces it. It ends with the next committed checkpoint.

*Late.* A task that makes steps has committed no checkpoint for `checkpoint_late_s`, and for
`LATE_FACTOR` times the longest of its last intervals. Nothing is late before `LEAST_INTERVALS`
intervals are known. It ends with the next committed checkpoint.
"""

from collections import deque

from msgspec import Struct, field

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted, CheckpointFailed
from strata.core.checkpoints.save_schedule import CheckpointPostponed
from strata.core.events import Event, position_id
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Cluster

FAILING = "checkpoint_failing"
LATE = "checkpoint_late"

LATE_FACTOR = 4
LEAST_INTERVALS = 3
INTERVALS = 5


def _intervals() -> deque[float]:
    return deque(maxlen=INTERVALS)


class Saves(Struct):
    """The checkpoints of one task: failures since the newest commit, and intervals before it."""

    failures: list[str] = field(default_factory=list)
    postponed: int = -1
    at_ns: int = 0
    step: int = -1
    ref: str = ""
    intervals: deque[float] = field(default_factory=_intervals)


class CheckpointRules:
    """Follows the checkpoints of all tasks."""

    FOLLOWED = (CheckpointCommitted, CheckpointFailed, CheckpointPostponed)

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._saves: dict[str, Saves] = {}

    def forget(self, task: str) -> None:
        """Drop a task that has ended."""
        self._saves.pop(task, None)

    def credit(self, gap_ns: int) -> None:
        """Leave out time in which the coordinator did not run."""
        for saves in self._saves.values():
            saves.at_ns += gap_ns if saves.at_ns else 0

    def follow(self, event: Event, now_ns: int) -> None:
        """Take a fact."""
        body, ref = event.body, position_id(event.seq)
        if isinstance(body, CheckpointPostponed):
            self._saves.setdefault(body.task, Saves()).postponed = body.step
        elif isinstance(body, CheckpointFailed):
            saves = self._saves.setdefault(body.task, Saves())
            if body.step != saves.postponed and self._limits.on(FAILING):
                self._failed(saves, body, ref, now_ns)
        elif isinstance(body, CheckpointCommitted):
            saves = self._saves.setdefault(body.task, Saves())
            if saves.at_ns:
                saves.intervals.append((now_ns - saves.at_ns) / SECOND_NS)
            saves.failures.clear()
            saves.at_ns, saves.step, saves.ref = now_ns, body.step, ref
            for rule in (FAILING, LATE):
                reason = f"checkpoint {body.checkpoint} was committed"
                self._conditions.end(rule, f"task:{body.task}", reason, (ref,))

    def judge(self, state: Cluster, now_ns: int) -> None:
        """Find the tasks without a new checkpoint."""
        if not self._limits.on(LATE):
            return
        for name, saves in self._saves.items():
            task = state.tasks.get(name)
            if (
                task is None
                or task.state != "running"
                or len(saves.intervals) < LEAST_INTERVALS
                or task.committed <= saves.step
                or self._conditions.holds(LATE, f"task:{name}")
            ):
                continue
            usual_s = max(saves.intervals)
            limit_s = max(LATE_FACTOR * usual_s, self._limits.checkpoint_late_s)
            age_s = (now_ns - saves.at_ns) / SECOND_NS
            if age_s >= limit_s:
                self._late(name, saves, age_s, limit_s, now_ns)

    def _failed(self, saves: Saves, body: CheckpointFailed, ref: str, now_ns: int) -> None:
        saves.failures = [*saves.failures, ref][-8:]
        if len(saves.failures) < self._limits.checkpoint_failures and not body.damaged:
            return
        what = "is damaged" if body.damaged else "failed"
        last = f"the last {len(saves.failures)} checkpoints of {body.task} failed; "
        self._conditions.hold(
            Finding(
                rule=FAILING,
                subject=f"task:{body.task}",
                severity="error",
                text=f"{'' if body.damaged else last}{body.checkpoint} {what}: {body.reason}",
                evidence={
                    "failures": len(saves.failures),
                    "checkpoint": body.checkpoint,
                    "newest_committed_step": saves.step,
                    "checkpoint_failures": self._limits.checkpoint_failures,
                },
                causes=tuple(saves.failures),
                task=body.task,
            ),
            now_ns,
        )

    def _late(self, task: str, saves: Saves, age_s: float, limit_s: float, now_ns: int) -> None:
        self._conditions.hold(
            Finding(
                rule=LATE,
                subject=f"task:{task}",
                severity="warning",
                text=f"the newest checkpoint of {task} (step {saves.step}) is {age_s:.0f} s old; "
                f"the longest of the last {len(saves.intervals)} intervals was "
                f"{max(saves.intervals):.0f} s",
                evidence={
                    "age_s": age_s,
                    "limit_s": limit_s,
                    "longest_interval_s": max(saves.intervals),
                    "step": saves.step,
                },
                causes=(saves.ref,),
                task=task,
            ),
            now_ns,
        )
