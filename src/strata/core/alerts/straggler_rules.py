"""The rule on stragglers: a worker whose part of a step takes much longer than that of the others.

In synchronous training all workers wait for the slowest. Each heartbeat says how long the worker's
own part of a step takes, without communication and waiting, and how much of that it waited for
data: both are means over its last steps. A worker is a straggler if its part takes
`straggler_ratio` times the median of the other members, for `straggler_s` and for `STEPS` steps. It
ends when the part is less than halfway between the others' and that limit, or when the worker is a
member no longer.

Only members that report steps of the present generation are compared. A worker whose process hangs
is not found here: its step does not end.
"""

from bisect import bisect_left
from collections.abc import Mapping

from msgspec import Struct

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Alert, Cluster
from strata.core.task_state import Task
from strata.core.workers.heartbeats import Beat

STRAGGLER = "straggler"
STEPS = 20


class _Slow(Struct, frozen=True):
    """Since when, and since which step, a worker has been slow."""

    generation: int
    step: int
    at_ns: int


class StragglerRules:
    """Compares the step times in the last heartbeats of each task's members."""

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._slow: dict[str, _Slow] = {}
        self._found: dict[str, str] = {}

    def adopt(self, alert: Alert) -> None:
        """Continue with an open alert after a restart."""
        if alert.rule == STRAGGLER:
            self._found[alert.worker] = alert.task

    def judge(
        self, state: Cluster, beats: Mapping[str, Beat], refs: Mapping[str, str], now_ns: int
    ) -> None:
        """Compare the members of every running task; `refs` are the newest committed steps."""
        if not self._limits.on(STRAGGLER):
            return
        present: set[str] = set()
        for task in state.tasks.values():
            if task.state == "running" and not task.finished and len(task.members) > 1:
                present.update(task.members)
                self._judge(task, beats, refs.get(task.id, ""), now_ns)
        self._slow = {name: since for name, since in self._slow.items() if name in present}
        for worker, name in [*self._found.items()]:
            left = state.tasks.get(name)
            if left is None or worker not in left.members:
                self._end(worker, f"{worker} is no longer a member of {name}", "")

    def _end(self, worker: str, reason: str, ref: str) -> None:
        if worker in self._found:
            del self._found[worker]
            causes = (ref,) if ref else ()
            self._conditions.end(STRAGGLER, f"worker:{worker}", reason, causes)

    def _judge(self, task: Task, beats: Mapping[str, Beat], ref: str, now_ns: int) -> None:
        known = {
            worker: beat
            for worker in task.members
            if (beat := beats.get(worker)) is not None
            and beat.generation == task.generation
            and beat.busy_s > 0
        }
        if len(known) < 2:
            return
        busy = sorted(beat.busy_s for beat in known.values())
        data = sorted(beat.data_s for beat in known.values())
        for worker, beat in known.items():
            usual = _median_without(busy, beat.busy_s), _median_without(data, beat.data_s)
            self._compare(task, worker, beat, usual, ref, now_ns)

    def _compare(
        self,
        task: Task,
        worker: str,
        beat: Beat,
        usual: tuple[float, float],
        ref: str,
        now_ns: int,
    ) -> None:
        ratio = beat.busy_s / usual[0]
        if ratio < self._limits.straggler_ratio:
            self._slow.pop(worker, None)
            if ratio < (1 + self._limits.straggler_ratio) / 2:
                reason = f"its part of a step takes {beat.busy_s:.3g} s, as long as that of others"
                self._end(worker, reason, ref)
            return
        since = self._slow.get(worker)
        if since is None or since.generation != beat.generation:
            since = self._slow[worker] = _Slow(beat.generation, beat.step, now_ns)
        steady = now_ns - since.at_ns >= self._limits.straggler_s * SECOND_NS
        if steady and beat.step - since.step >= STEPS and worker not in self._found:
            self._found[worker] = task.id
            self._conditions.hold(self._finding(task, worker, beat, usual, ref), now_ns)

    def _finding(
        self, task: Task, worker: str, beat: Beat, usual: tuple[float, float], ref: str
    ) -> Finding:
        busy_s, data_s = usual
        behind_s, waited_s = beat.busy_s - busy_s, beat.data_s - data_s
        part = "waiting for data" if waited_s > behind_s / 2 else "computing"
        return Finding(
            rule=STRAGGLER,
            subject=f"worker:{worker}",
            severity="warning",
            text=f"{worker} of {task.id} takes {beat.busy_s:.3g} s for its part of a step, the "
            f"other workers {busy_s:.3g} s; it spends the difference {part}",
            evidence={
                "busy_s": beat.busy_s,
                "others_busy_s": busy_s,
                "data_s": beat.data_s,
                "others_data_s": data_s,
                "step": beat.step,
                "straggler_ratio": self._limits.straggler_ratio,
                "part": part,
            },
            causes=(ref,) if ref else (),
            task=task.id,
            worker=worker,
        )


def _median_without(ordered: list[float], value: float) -> float:
    """The median of values in order without one of them."""
    at = bisect_left(ordered, value)
    count = len(ordered) - 1

    def item(number: int) -> float:
        return ordered[number + (number >= at)]

    return (item((count - 1) // 2) + item(count // 2)) / 2
