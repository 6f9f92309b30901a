"""The speed of each task, now and usually: derived from facts, never recorded.

The time of a step follows from the committed steps. The *usual* time is learned slowly, and even
more slowly from steps that take much longer than usual, so that a task whose network or disk became
slow is compared with its earlier speed. The time *now* is the median over the last commits, so a
single pause, such as an evaluation, is no slow step. Time in which a task recovers does not count.
"""

from collections import deque
from statistics import median

from msgspec import Struct, field

from strata.core.metrics.sliding_windows import SECOND_NS

LEARNED_COMMITS = 10
RECENT_COMMITS = 9
USUAL_SHARE = 0.01
SLOW_SHARE = 0.0005
MUCH_LONGER = 2.0
MAX_TASKS = 10_000


class Speed(Struct, frozen=True):
    """The steps per second of a task, now and usually."""

    now: float
    usual: float


def _recent() -> deque[float]:
    return deque(maxlen=RECENT_COMMITS)


class StepRate(Struct):
    """The seconds per step of a task, recently and usually, and its last committed step."""

    at_ns: int
    commits: int = 0
    usual_s: float = 0.0
    recent_s: deque[float] = field(default_factory=_recent)

    def note(self, steps: int, now_ns: int) -> None:
        """Note that `steps` steps were committed since the last call."""
        spent_s = (now_ns - self.at_ns) / SECOND_NS
        self.at_ns = now_ns
        if steps < 1 or spent_s <= 0:
            return
        step_s = spent_s / steps
        self.commits += 1
        self.recent_s.append(step_s)
        if self.commits <= LEARNED_COMMITS:
            self.usual_s += (step_s - self.usual_s) / self.commits
            return
        # Averages of logarithms: one step that takes 1,000 times as long must not become the usual.
        share = SLOW_SHARE if step_s > self.usual_s * MUCH_LONGER else USUAL_SHARE
        self.usual_s *= (step_s / self.usual_s) ** share

    def speed(self) -> Speed | None:
        """The speed, once the usual one is learned."""
        if self.commits <= LEARNED_COMMITS:
            return None
        return Speed(now=1 / median(self.recent_s), usual=1 / self.usual_s)


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

    def speed(self, task: str) -> Speed | None:
        """The speed of a task, if it is known."""
        rate = self._rates.get(task)
        return None if rate is None else rate.speed()
