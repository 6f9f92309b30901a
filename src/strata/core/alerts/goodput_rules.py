"""The rule on goodput: little of the newest time of a task's workers was spent on its steps.

What was measured is the goodput ledger (docs/GOODPUT.md) over the last `goodput_window_s`, so the
share is the one that the page and `strata goodput` show: a task whose steps are as fast as usual,
but that trains them twice, has a low goodput. It is found below `goodput_below`, and ends at
`MARGIN` times that share. A task that has run for less than the window is not judged.
"""

from msgspec import Struct

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions

LOW = "goodput_low"
MARGIN = 1.1


class RecentGoodput(Struct, frozen=True, kw_only=True):
    """The ledger of a task over its last seconds, and the largest cause of lost time in them.

    `wall_s` is the time of all workers, of which `counted_s` is in a class and `productive_s` was
    productive; `cause` is empty if nothing was lost, `ref` is the event behind it.
    """

    task: str
    wall_s: float
    counted_s: float
    productive_s: float
    lost_as: str = ""
    cause: str = ""
    cause_s: float = 0.0
    ref: str = ""

    @property
    def share(self) -> float:
        """The productive share of the counted time."""
        return self.productive_s / self.counted_s


class GoodputRules:
    """Judges the measured goodput of each task."""

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds

    def measured(self, found: RecentGoodput, now_ns: int) -> None:
        """Take a measurement over a whole window; one that is mostly pending says nothing."""
        if not self._limits.on(LOW) or found.counted_s <= found.wall_s / 2:
            return
        subject, below = f"task:{found.task}", self._limits.goodput_below
        if found.share >= min(MARGIN * below, 1.0):
            reason = f"its goodput is {found.share:.0%}"
            self._conditions.end(LOW, subject, reason)
        elif found.share >= below:
            return
        elif self._conditions.holds(LOW, subject):
            self._conditions.confirm(LOW, subject, now_ns)
        else:
            self._conditions.hold(self._finding(found), now_ns)

    def _finding(self, found: RecentGoodput) -> Finding:
        minutes, below = self._limits.goodput_window_s / 60, self._limits.goodput_below
        cause = f"; most was lost to {found.cause} ({found.cause_s:.0f} s)" if found.cause else ""
        return Finding(
            rule=LOW,
            subject=f"task:{found.task}",
            severity="warning",
            text=f"the goodput of {found.task} was {found.share:.0%} in the last {minutes:.3g} min,"
            f" below {below:.0%}{cause}",
            evidence={
                "goodput": found.share,
                "goodput_below": below,
                "goodput_window_s": self._limits.goodput_window_s,
                "worker_s": found.counted_s,
                "productive_s": found.productive_s,
                "most_lost_as": found.lost_as,
                "cause": found.cause,
                "cause_s": found.cause_s,
            },
            causes=(found.ref,) if found.ref else (),
            task=found.task,
        )
