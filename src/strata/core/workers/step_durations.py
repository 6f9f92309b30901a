"""How long the steps of each task take, and how long one may take before its worker hangs.

A worker is measured against the mean of its own steps once it has trained `LEARNED` of them. Until
then, as a replacement or in a new task, it is measured against its task: the slowest mean of the
workers, whether they are still alive or not. Its first steps may compile or read data that is not
cached, so they may also take `FIRST_STEPS_FACTOR` times the longest first steps of the task so far.
A task of which nothing is known has `hang_unlearned_s`.

This is soft state, like the rest of liveness: after a restart of the coordinator it is learned
again.
"""

from msgspec import Struct, field

from strata.core.rule_settings import Timeouts
from strata.core.workers.heartbeats import SECOND_NS, LastHeard

LEARNED = 3
"""Steps after which the mean of a worker is used; the ones before are its first steps."""

RECENT = 20
"""The mean of a worker follows about this many of its newest steps."""

FIRST_STEPS_FACTOR = 3.0


class StepLimit(Struct, frozen=True):
    """How long a step of a worker may take, and the known mean that this follows from; 0 if none
    is known. `own` is whether it is the mean of the worker's own steps."""

    limit_ns: int
    mean_ns: float
    own: bool

    def text(self) -> str:
        """What the limit follows from."""
        mean_s = self.mean_ns / SECOND_NS
        if self.own:
            return f"mean {mean_s:.2f} s"
        return f"steps of its task take {mean_s:.2f} s" if mean_s else "no step time is known yet"


class TaskSteps(Struct):
    """The mean step time of each worker of a task, the slowest one, and the longest first steps."""

    means_ns: dict[str, float] = field(default_factory=dict)
    slowest: str = ""
    longest_first_ns: int = 0

    @property
    def slowest_ns(self) -> float:
        """The mean of the slowest worker; 0 if none is known."""
        return self.means_ns.get(self.slowest, 0.0)

    def note(self, worker: str, mean_ns: float) -> None:
        """Note the mean of a worker; all are compared only if the slowest one became faster."""
        slowest_ns = self.slowest_ns
        self.means_ns[worker] = mean_ns
        if mean_ns >= slowest_ns:
            self.slowest = worker
        elif worker == self.slowest:
            self.slowest = max(self.means_ns, key=self.means_ns.__getitem__)


class StepDurations:
    """The step times of the tasks that train."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._tasks: dict[str, TaskSteps] = {}

    @property
    def known(self) -> int:
        """The number of tasks of which step times are known."""
        return len(self._tasks)

    def note(self, worker: str, heard: LastHeard, steps: int, took_ns: int) -> None:
        """Note that a worker reported new steps `took_ns` after its report before."""
        task = self._tasks.setdefault(heard.task, TaskSteps())
        if heard.steps_seen < LEARNED:
            task.longest_first_ns = max(task.longest_first_ns, took_ns)
        heard.steps_seen += steps
        share = min(steps / min(heard.steps_seen, RECENT), 1.0)
        heard.step_mean_ns += (took_ns / steps - heard.step_mean_ns) * share
        if heard.steps_seen >= LEARNED:
            task.note(worker, heard.step_mean_ns)

    def forget(self, task: str) -> None:
        """Drop a task that has ended."""
        self._tasks.pop(task, None)

    def limit(self, heard: LastHeard) -> StepLimit | None:
        """How long the present step of a worker may take; None if it is not computing."""
        if not heard.hangable:
            return None
        own = heard.steps_seen >= LEARNED
        task = self._tasks.get(heard.task) or TaskSteps()
        mean_ns = heard.step_mean_ns if own else task.slowest_ns
        unlearned_ns = int(self._timeouts.hang_unlearned_s * SECOND_NS)
        if not mean_ns:
            return StepLimit(limit_ns=unlearned_ns, mean_ns=0.0, own=False)
        floor_ns = int(self._timeouts.hang_floor_s * SECOND_NS)
        limit_ns = max(floor_ns, int(mean_ns * self._timeouts.hang_factor))
        if not own:
            first_ns = int(task.longest_first_ns * FIRST_STEPS_FACTOR)
            limit_ns = max(limit_ns, min(first_ns, unlearned_ns))
        return StepLimit(limit_ns=limit_ns, mean_ns=mean_ns, own=own)
