"""The speed of each task, and whether it fell: derived from facts, never recorded.

The time of a step follows from the committed steps. The *usual* time is learned slowly, and even
more slowly from steps that take much longer than usual, so that a task whose network or disk became
slow is compared with its earlier speed. Time in which a task recovers does not count.
"""

from msgspec import Struct

from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Cluster

LEARNED_COMMITS = 10
RECENT_S = 20.0
RECENT_SHARE = 0.2
USUAL_SHARE = 0.01
SLOW_SHARE = 0.0005
MUCH_LONGER = 2.0
FELL = 5.0
"""A task is slow when its steps take this many times as long as usual."""

IDLE_S = 60.0
"""A task without a committed step for this long is slow, if its steps are usually far quicker."""

MAX_TASKS = 10_000


class Drop(Struct, frozen=True):
    """A task that trains much slower than usual: its steps per second now and usually."""

    task: str
    now: float
    usual: float


class StepRate(Struct):
    """The seconds per step of a task, recently and usually, and its last committed step."""

    at_ns: int
    commits: int = 0
    recent_s: float = 0.0
    usual_s: float = 0.0

    def note(self, steps: int, now_ns: int) -> None:
        """Note that `steps` steps were committed since the last call."""
        spent_s = (now_ns - self.at_ns) / SECOND_NS
        self.at_ns = now_ns
        if steps < 1 or spent_s <= 0:
            return
        step_s = spent_s / steps
        self.commits += 1
        if self.commits <= LEARNED_COMMITS:
            self.usual_s += (step_s - self.usual_s) / self.commits
            self.recent_s = self.usual_s
            return
        self.recent_s += (step_s - self.recent_s) * min(spent_s / RECENT_S, RECENT_SHARE)
        # Averages of logarithms: one step that takes 1,000 times as long must not become the usual.
        share = SLOW_SHARE if step_s > self.usual_s * MUCH_LONGER else USUAL_SHARE
        self.usual_s *= (step_s / self.usual_s) ** share

    def drop(self, task: str, now_ns: int) -> Drop | None:
        """The drop in speed, if the task is much slower than usual."""
        if self.commits <= LEARNED_COMMITS:
            return None
        idle_s = (now_ns - self.at_ns) / SECOND_NS
        now_s = max(self.recent_s, idle_s if idle_s >= IDLE_S else 0.0)
        if now_s < self.usual_s * FELL:
            return None
        return Drop(task, 1 / now_s, 1 / self.usual_s)


class StepRates:
    """The step rates of the tasks that train."""

    def __init__(self) -> None:
        self._rates: dict[str, StepRate] = {}

    def committed(self, task: str, steps: int, now_ns: int) -> None:
        """Note committed steps of a task."""
        rate = self._rates.get(task)
        if rate is not None:
            rate.note(steps, now_ns)
        elif len(self._rates) < MAX_TASKS:
            self._rates[task] = StepRate(at_ns=now_ns)

    def resumed(self, task: str, now_ns: int) -> None:
        """Note that a task trains again after a recovery, which does not count as step time."""
        if task in self._rates:
            self._rates[task].at_ns = now_ns

    def ended(self, task: str) -> None:
        """Drop a task that has ended."""
        self._rates.pop(task, None)

    def restarted(self) -> None:
        """Start measuring again after a restart of the coordinator."""
        self._rates.clear()

    def drops(self, state: Cluster, now_ns: int) -> list[Drop]:
        """The running tasks that are much slower than usual."""
        found = (
            rate.drop(name, now_ns)
            for name, rate in self._rates.items()
            if name in state.tasks and state.tasks[name].state == "running"
        )
        return [drop for drop in found if drop is not None]
