"""All alert rules together: facts and measurements in, changes of alerts out.

This is soft state beside the state of the cluster, like the liveness watch: it is never recorded,
only the alerts are. It starts from the open alerts of the state, which stay open until a rule has
evidence that their condition ended. It reads no clock and decides nothing: the changes become facts
by `core/alerts/alert_record`.

A rule is a class that takes facts (`follow`) or measurements, and is asked about once a second
(`judge`) for what only time shows. It says what it finds to `OpenConditions`.
"""

from collections.abc import Mapping

from strata.core.alerts.alert_record import Change, Ending
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.checkpoint_rules import CheckpointRules
from strata.core.alerts.disk_rules import DiskRules
from strata.core.alerts.failure_rules import FailureRules
from strata.core.alerts.goodput_rules import GoodputRules
from strata.core.alerts.loss_rules import NOT_FINITE, PLATEAU, SPIKE, LossRules, LossSample
from strata.core.alerts.oom_rules import OomRules
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.alerts.progress_rules import ProgressRules
from strata.core.alerts.straggler_rules import StragglerRules
from strata.core.events import Event, Fact, Now, position_id
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Cluster
from strata.core.task_state import ENDED, TaskState
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.heartbeats import Beat

FOLLOWED: tuple[type[Fact], ...] = tuple(
    dict.fromkeys(
        (
            *ProgressRules.FOLLOWED,
            *CheckpointRules.FOLLOWED,
            *FailureRules.FOLLOWED,
            *OomRules.FOLLOWED,
        ),
    )
)
"""The facts that the rules look at."""

MAX_ENDED = 1_000
ASLEEP_S = 10.0
"""A gap between two looks of this length means that the coordinator did not run."""


class AlertWatch:
    """The rules that are turned on, and the conditions that they found."""

    def __init__(self, thresholds: AlertThresholds, state: Cluster, now: Now) -> None:
        self.thresholds = thresholds
        self.conditions = OpenConditions(thresholds.settle_s)
        self.losses = LossRules(self.conditions, thresholds)
        self.progress = ProgressRules(self.conditions, thresholds)
        self.checkpoints = CheckpointRules(self.conditions, thresholds)
        self.failures = FailureRules(self.conditions, thresholds)
        self.disks = DiskRules(self.conditions, thresholds)
        self.oom_kills = OomRules(self.conditions, thresholds)
        self.goodput = GoodputRules(self.conditions, thresholds)
        self.stragglers = StragglerRules(self.conditions, thresholds)
        self._looked_ns = now.mono_ns
        self._stale: list[Change] = []
        self._ended = {
            task.id: (_ended_as(task.id, task.state), "")
            for task in state.tasks.values()
            if task.ended
        }
        self._adopt(state, now)

    def _adopt(self, state: Cluster, now: Now) -> None:
        """Start from a state; alerts of rules that were turned off are resolved."""
        for alert in state.alerts.values():
            if not alert.open:
                continue
            if self.thresholds.on(alert.rule):
                self.conditions.adopt(alert, now.mono_ns)
                self.losses.adopt(alert)
                self.failures.adopt(alert)
                self.disks.adopt(alert)
                self.oom_kills.adopt(alert)
                self.stragglers.adopt(alert)
            else:
                reason = f"the rule {alert.rule} is turned off"
                self._stale.append(Ending(rule=alert.rule, subject=alert.subject, reason=reason))
        self.progress.adopt(state, now.mono_ns)
        self.oom_kills.start(state)
        self.failures.start(state)

    def follow(self, event: Event) -> None:
        """Take a fact of a kind in `FOLLOWED`."""
        now_ns = event.mono_ns
        self.progress.follow(event)
        self.checkpoints.follow(event, now_ns)
        body = event.body
        if isinstance(body, TaskStateChanged) and body.after in ENDED:
            self._end_task(body.task, _ended_as(body.task, body.after), position_id(event.seq))
        elif isinstance(body, TaskStateChanged):
            self._ended.pop(body.task, None)
        self.failures.follow(event, now_ns)
        self.oom_kills.follow(event, now_ns)

    def sample(self, sample: LossSample, now_ns: int) -> None:
        """Take a logged loss; the last ones of a task may come after its end."""
        self.losses.sample(sample, now_ns)
        if sample.task in self._ended:
            self.losses.forget(sample.task)
            reason, ref = self._ended[sample.task]
            causes = (ref,) if ref else ()
            self.conditions.end_task(sample.task, reason, causes, (NOT_FINITE, SPIKE, PLATEAU))

    def compare(self, state: Cluster, beats: Mapping[str, Beat], now_ns: int) -> None:
        """Compare the step times in the last heartbeats of the members of each task."""
        self.stragglers.judge(state, beats, self.progress.refs(), now_ns)

    def changes(self, state: Cluster, now: Now) -> list[Change]:
        """What has to be recorded now; called about once a second."""
        gap_ns = now.mono_ns - self._looked_ns
        self._looked_ns = now.mono_ns
        if gap_ns >= ASLEEP_S * SECOND_NS:
            self.progress.credit(gap_ns)
            self.checkpoints.credit(gap_ns)
        self.progress.judge(state, now.mono_ns)
        self.checkpoints.judge(state, now.mono_ns)
        self.failures.judge(state, now)
        self.disks.judge(now.mono_ns)
        self.oom_kills.judge(now)
        stale, self._stale = self._stale, []
        return [*stale, *self.conditions.changes(now.mono_ns)]

    def _end_task(self, task: str, reason: str, ref: str) -> None:
        self._ended[task] = (reason, ref)
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self.losses.forget(task)
        self.checkpoints.forget(task)
        self.conditions.end_task(task, reason, (ref,))


def _ended_as(task: str, state: TaskState) -> str:
    return f"{task} has been stopped" if state == "stopped" else f"{task} has {state}"
