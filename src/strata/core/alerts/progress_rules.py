"""Rules on the progress of a task: no step, slow steps.

*No step.* A task that is running or recovering committed no step for `no_step_s`, or for
`USUAL_STEPS` times its usual time per step if that is longer. The first step after a start may take
`FIRST_STEP_S`, because it compiles and warms up. It ends with the next committed step. A task that
saves its last state does not make steps.

*Slow steps.* A task makes less than `slow_share` of its usual steps per second
(`core/metrics/step_rates`, which learns from the first steps and leaves pauses and recoveries out).
It ends at twice that share. Time without any step is the other rule's.

Time in which the coordinator itself did not run does not count.
"""

from msgspec import Struct

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.events import Event, position_id
from strata.core.generations.recovery import RecoveryChosen, StepsCommitted
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.metrics.step_rates import StepRates
from strata.core.state import Cluster
from strata.core.task_state import ENDED, Task
from strata.core.tasks.task_lifecycle import TaskStateChanged

NO_STEP = "no_step"
SLOW = "slow_steps"

FIRST_STEP_S = 900.0
USUAL_STEPS = 10
TRAINING = ("running", "recovering")


class LastStep(Struct):
    """The newest committed step of a task, and when it was committed; -1 before the first."""

    at_ns: int
    step: int = -1
    ref: str = ""


class ProgressRules:
    """Follows the committed steps of all tasks."""

    FOLLOWED = (StepsCommitted, RecoveryChosen, TaskStateChanged)

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._last: dict[str, LastStep] = {}
        self._rates = StepRates()

    def adopt(self, state: Cluster, now_ns: int) -> None:
        """Start from a state: the time without a step counts from now."""
        for task in state.tasks.values():
            if task.state in TRAINING:
                self._last[task.id] = LastStep(at_ns=now_ns)

    def credit(self, gap_ns: int) -> None:
        """Leave out time in which the coordinator did not run."""
        for last in self._last.values():
            last.at_ns += gap_ns

    def follow(self, event: Event) -> None:
        """Take a fact."""
        body, now_ns = event.body, event.mono_ns
        if isinstance(body, StepsCommitted):
            self._rates.committed(body.task, body.last - body.first + 1, now_ns)
            ref = position_id(event.seq)
            self._last[body.task] = LastStep(at_ns=now_ns, step=body.last, ref=ref)
            reason = f"step {body.last} was committed"
            self._conditions.end(NO_STEP, f"task:{body.task}", reason, (ref,))
        elif isinstance(body, RecoveryChosen):
            self._rates.resumed(body.task, now_ns)
        elif isinstance(body, TaskStateChanged):
            if body.after in ENDED:
                self._rates.ended(body.task)
            if body.after not in TRAINING:
                self._last.pop(body.task, None)
            elif body.task not in self._last:
                self._last[body.task] = LastStep(at_ns=now_ns)

    def refs(self) -> dict[str, str]:
        """The fact of the newest committed step of each task that trains."""
        return {task: last.ref for task, last in self._last.items()}

    def judge(self, state: Cluster, now_ns: int) -> None:
        """Find the tasks that make no steps, or slow ones."""
        for name, last in self._last.items():
            task = state.tasks.get(name)
            if task is None or not task.syncs or task.ending or task.finished:
                continue
            if self._limits.on(NO_STEP):
                self._judge_steps(task, last, now_ns)
            if self._limits.on(SLOW):
                self._judge_rate(task, last, now_ns)

    def _judge_steps(self, task: Task, last: LastStep, now_ns: int) -> None:
        subject = f"task:{task.id}"
        speed = self._rates.speed(task.id)
        usual_s = 0.0 if speed is None else 1 / speed.usual
        first_s = FIRST_STEP_S if last.step < 0 else 0.0
        limit_s = max(self._limits.no_step_s, USUAL_STEPS * usual_s, first_s)
        waited_s = (now_ns - last.at_ns) / SECOND_NS
        if waited_s < limit_s or self._conditions.holds(NO_STEP, subject):
            return
        after = f"since step {last.step}" if last.step >= 0 else "since it started"
        wait = task.storage_wait
        why = f"; it waits for storage: {wait.reason}" if wait is not None and wait.workers else ""
        evidence: dict[str, float | str] = {
            "without_step_s": waited_s,
            "limit_s": limit_s,
            "state": task.state,
        }
        if last.step >= 0:
            evidence["step"] = last.step
        if usual_s:
            evidence["usual_step_s"] = usual_s
        self._conditions.hold(
            Finding(
                rule=NO_STEP,
                subject=subject,
                severity="error",
                text=f"{task.id} has made no step for {waited_s:.0f} s, {after} "
                f"({task.state}{why})",
                evidence=evidence,
                causes=(last.ref,) if last.ref else (),
                task=task.id,
            ),
            now_ns,
        )

    def _judge_rate(self, task: Task, last: LastStep, now_ns: int) -> None:
        subject = f"task:{task.id}"
        rate = self._rates.speed(task.id)
        if rate is None or task.state != "running":
            return
        share = rate.now / rate.usual
        if share >= min(2 * self._limits.slow_share, 1.0):
            reason = f"it makes {rate.now:.2g} steps/s again"
            self._conditions.end(SLOW, subject, reason, (last.ref,) if last.ref else ())
        elif share < self._limits.slow_share and not self._conditions.holds(SLOW, subject):
            self._conditions.hold(
                Finding(
                    rule=SLOW,
                    subject=subject,
                    severity="warning",
                    text=f"{task.id} makes {rate.now:.2g} steps/s instead of the usual "
                    f"{rate.usual:.2g} steps/s",
                    evidence={
                        "steps_per_s": rate.now,
                        "usual_steps_per_s": rate.usual,
                        "slow_share": self._limits.slow_share,
                    },
                    causes=(last.ref,) if last.ref else (),
                    task=task.id,
                ),
                now_ns,
            )
