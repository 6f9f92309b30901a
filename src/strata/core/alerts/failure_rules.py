"""Rules on failures: a worker lost again, a failed task, an excluded host, dropped events, a
damaged log.

*Worker lost again.* A worker with the same name, so in the same place of its task, was lost
`worker_losses` times within `worker_losses_within_s`; losses while the task is stopping do not
count. It ends when that time has passed without another loss.

*Task failed.* It ends when the task runs again, and expires after `FAILED_S`.

*Host excluded.* A host was excluded because of a fault or after failures, not by a person. It ends
when the host is included again.

*Events dropped.* A worker reported that it dropped events. It expires after `DROPPED_S` without
more.

*Log damaged.* The log was salvaged less than `DAMAGED_S` ago: facts or events of workers are lost.
It expires; the attention list and `strata why trust` go on showing what is lost.

Ages are measured with the wall clock, which goes on while no coordinator runs.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.events import Event, Now, position_id
from strata.core.hosts.gpu_exclusion import GpuExcluded, GpuIncluded
from strata.core.hosts.host_exclusion import HostExcluded, HostIncluded
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Alert, Cluster, Salvage
from strata.core.task_state import ENDED
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.worker_lifecycle import WorkerLost

LOST_AGAIN = "worker_lost_again"
FAILED = "task_failed"
EXCLUDED = "host_excluded"
DROPPED = "events_dropped"
DAMAGED = "log_damaged"

FAILED_S = 3_600
DROPPED_S = 600
DAMAGED_S = 86_400
Key = TypeVar("Key")

MAX_WORKERS = 20_000
MAX_LOSSES = 8
RANGES_SHOWN = 3


class FailureRules:
    """Follows losses of workers, ends of tasks, and the state of the log."""

    FOLLOWED = (
        *(WorkerLost, TaskStateChanged),
        *(HostExcluded, HostIncluded, GpuExcluded, GpuIncluded),
    )

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._losses: dict[tuple[str, str], deque[tuple[int, str]]] = {}
        self._failed: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._stopping: set[str] = set()

    def start(self, state: Cluster) -> None:
        """Start from a state."""
        self._stopping = {task.id for task in state.tasks.values() if task.state == "stopping"}

    def adopt(self, alert: Alert) -> None:
        """Continue with an open alert after a restart."""
        if alert.rule == LOST_AGAIN:
            losses = deque([(alert.last_ns, ref) for ref in alert.causes], maxlen=MAX_LOSSES)
            self._losses[alert.task, alert.worker] = losses
        elif alert.rule == FAILED:
            self._failed[alert.task] = alert.raised_ns
        elif alert.rule == DROPPED:
            self._dropped[alert.task] = alert.last_ns

    def follow(self, event: Event, now_ns: int) -> None:
        """Take a fact; `now_ns` is the monotonic time."""
        body = event.body
        if isinstance(body, TaskStateChanged):
            self._stopping.discard(body.task)
            if body.after == "stopping":
                self._stopping.add(body.task)
        if isinstance(body, WorkerLost) and self._limits.on(LOST_AGAIN):
            if body.task not in self._stopping:
                self._lost(body, event, now_ns)
        elif isinstance(body, TaskStateChanged) and self._limits.on(FAILED):
            self._task_changed(body, event, now_ns)
        elif isinstance(body, HostExcluded | GpuExcluded):
            if body.by != "person" and self._limits.on(EXCLUDED):
                self._excluded(body, event, now_ns)
        elif isinstance(body, HostIncluded | GpuIncluded):
            reason = f"it was included again{': ' if body.reason else ''}{body.reason}"
            cause = (position_id(event.seq),)
            self._conditions.end(EXCLUDED, _excluded_subject(body), reason, cause)

    def dropped(self, task: str, worker: str, count: int, ref: str, now: Now) -> None:
        """Note that a worker dropped events."""
        if self._limits.on(DROPPED):
            self._dropped[task] = now.wall_ns
            self._conditions.hold(
                Finding(
                    rule=DROPPED,
                    subject=f"task:{task}",
                    severity="warning",
                    text=f"{worker} dropped {count} events: its record of {task} has a hole",
                    evidence={"events": count},
                    causes=(ref,),
                    task=task,
                    worker=worker,
                ),
                now.mono_ns,
            )

    def judge(self, state: Cluster, now: Now) -> None:
        """End conditions whose time has passed, and look for salvages of the log."""
        self._judge_losses(now.wall_ns)
        for rule, since, limit_s, reason in (
            (FAILED, self._failed, FAILED_S, "no longer shown after 1 h; the task is still failed"),
            (DROPPED, self._dropped, DROPPED_S, "no more events were dropped for 10 min"),
        ):
            for task in _older(since, now.wall_ns - limit_s * SECOND_NS):
                del since[task]
                self._conditions.end(rule, f"task:{task}", reason, expired=True)
        if self._limits.on(DAMAGED):
            self._judge_log(state, now)

    def _lost(self, body: WorkerLost, event: Event, now_ns: int) -> None:
        key = (body.task, body.worker)
        losses = self._losses.setdefault(key, deque(maxlen=MAX_LOSSES))
        losses.append((event.wall_ns, position_id(event.seq)))
        within_ns = int(self._limits.worker_losses_within_s * SECOND_NS)
        while losses and losses[0][0] < event.wall_ns - within_ns:
            losses.popleft()
        while len(self._losses) > MAX_WORKERS:
            del self._losses[next(iter(self._losses))]
        if len(losses) < min(self._limits.worker_losses, MAX_LOSSES):
            return
        minutes = (event.wall_ns - losses[0][0]) / SECOND_NS / 60
        self._conditions.hold(
            Finding(
                rule=LOST_AGAIN,
                subject=f"worker:{body.worker}",
                severity="warning",
                text=f"{body.worker} of {body.task} was lost {len(losses)} times in "
                f"{minutes:.1f} min, last: {body.reason}",
                evidence={
                    "losses": len(losses),
                    "signal": body.signal,
                    "worker_losses": self._limits.worker_losses,
                    "worker_losses_within_s": self._limits.worker_losses_within_s,
                },
                causes=tuple(ref for _, ref in losses),
                task=body.task,
                worker=body.worker,
            ),
            now_ns,
        )

    def _judge_losses(self, wall_ns: int) -> None:
        within_s = self._limits.worker_losses_within_s
        newest = {key: losses[-1][0] for key, losses in self._losses.items() if losses}
        for key in _older(newest, wall_ns - int(within_s * SECOND_NS)):
            del self._losses[key]
            reason = f"it was not lost again for {within_s:g} s"
            self._conditions.end(LOST_AGAIN, f"worker:{key[1]}", reason)

    def _task_changed(self, body: TaskStateChanged, event: Event, now_ns: int) -> None:
        subject = f"task:{body.task}"
        if body.after == "failed":
            self._failed[body.task] = event.wall_ns
            self._conditions.hold(
                Finding(
                    rule=FAILED,
                    subject=subject,
                    severity="error",
                    text=f"{body.task} failed: {body.reason}",
                    evidence={"exit_code": body.exit_code},
                    causes=(position_id(event.seq),),
                    task=body.task,
                ),
                now_ns,
            )
        elif body.after not in ENDED and self._failed.pop(body.task, None) is not None:
            cause = (position_id(event.seq),)
            self._conditions.end(FAILED, subject, f"the task is {body.after} again", cause)

    def _excluded(self, body: HostExcluded | GpuExcluded, event: Event, now_ns: int) -> None:
        if isinstance(body, GpuExcluded):
            text = f"GPU {body.gpu} of host {body.host} was excluded, so no worker gets it"
        else:
            text = f"host {body.host} was excluded, so no worker is placed there"
        self._conditions.hold(
            Finding(
                rule=EXCLUDED,
                subject=_excluded_subject(body),
                severity="warning",
                text=f"{text}: {body.reason}",
                evidence={"excluded_by": body.by},
                causes=(position_id(event.seq), *event.cause),
            ),
            now_ns,
        )

    def _judge_log(self, state: Cluster, now: Now) -> None:
        for salvage in state.salvages:
            subject = f"fact:@{salvage.position}"
            recent = now.wall_ns - salvage.wall_ns < DAMAGED_S * SECOND_NS
            if not (salvage.lost or salvage.lost_batches):
                continue
            if not recent:
                reason = "no longer shown after 24 h; the lost parts stay lost"
                self._conditions.end(DAMAGED, subject, reason, expired=True)
            elif not self._conditions.holds(DAMAGED, subject):
                self._conditions.hold(_damage(salvage, subject), now.mono_ns)


def _excluded_subject(body: HostExcluded | HostIncluded | GpuExcluded | GpuIncluded) -> str:
    gpu = f" GPU {body.gpu}" if isinstance(body, GpuExcluded | GpuIncluded) else ""
    return f"host:{body.host}{gpu}"


def _damage(salvage: Salvage, subject: str) -> Finding:
    named = [f"@{first} to @{stop - 1}" for first, stop in islice(salvage.lost, RANGES_SHOWN)]
    more = len(salvage.lost) - len(named)
    facts = ", ".join(named) + (f" and {more} more ranges" if more else "")
    what = f"facts {facts}" if named else f"{salvage.lost_batches} batches of workers' events"
    return Finding(
        rule=DAMAGED,
        subject=subject,
        severity="error",
        text=f"the log was damaged: {what} lost",
        evidence={"ranges": len(salvage.lost), "batches": salvage.lost_batches},
        causes=(position_id(salvage.position),),
    )


def _older(since: Mapping[Key, int], limit_ns: int) -> list[Key]:
    return [key for key, moment_ns in since.items() if moment_ns <= limit_ns]
