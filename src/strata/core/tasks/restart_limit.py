"""Restart loops: which failures of a worker count, and how many of them end its task.

A worker that fails is started again up to `max_restarts` times. The count is reset by progress that
this worker took part in: steps beyond the furthest that the task had when the worker was placed.
Steps that other workers train meanwhile do not count, nor do steps that a rollback repeats. Two
counts end a loop:

- failures in a row without any new step, whatever their cause;
- failures in a row of the same cause with few new steps between them: fewer than `ENOUGH_STEPS`, in
  less than `ENOUGH_S` seconds. The cause is `WorkerLost.failure`: an exit code, a signal, an error
  that the worker reported, or the kind of timeout.
"""

import msgspec
from msgspec import Struct

from strata.core.state import Cluster
from strata.core.task_state import Placement, Task

ENOUGH_STEPS = 10
ENOUGH_S = 600.0
MAX_CAUSES = 16
NOT_JOINED = "not joined"
"""The cause if the process ended before it registered."""

SECOND_NS = 1_000_000_000


class Failures(Struct, frozen=True):
    """The failures of a worker that count, the newest one included."""

    fruitless: int
    causes: dict[str, int]
    cause: str
    committed: int
    incarnation: int

    def loop(self, max_restarts: int) -> str:
        """Why they are a restart loop; empty if they are not."""
        often = self.causes[self.cause]
        if self.fruitless > max_restarts:
            times = "once" if self.fruitless == 1 else f"{self.fruitless} times"
            return f"failed {times} without progress"
        if often > max_restarts:
            same = f"in the same way ({self.cause})"
            return f"failed {often} times {same}, each time within {ENOUGH_STEPS} steps"
        return ""

    def placed(self, before: Placement, agent: str) -> Placement:
        """The next start of the worker."""
        return msgspec.structs.replace(
            before,
            agent=agent,
            start=before.start + 1,
            fruitless=self.fruitless,
            committed=self.committed,
            incarnation=self.incarnation,
            causes=self.causes,
        )


def failures(state: Cluster, task: Task, worker_id: str) -> Failures:
    """The failures of a worker that is to be started again, the newest one included."""
    before = task.placements[worker_id]
    worker = state.workers.get(worker_id)
    gained, lived_s, incarnation, cause = 0, 0.0, before.incarnation, NOT_JOINED
    if worker is not None and worker.incarnation > before.incarnation:
        incarnation, cause = worker.incarnation, worker.failure or worker.state
        lived_s = (worker.changed_ns - worker.registered_ns) / SECOND_NS
        if worker.ran:
            gained = max(worker.last_step - max(worker.first_step, before.committed), 0)
    enough = gained >= ENOUGH_STEPS or (gained > 0 and lived_s >= ENOUGH_S)
    counted = {} if enough or before.start == 1 else dict(before.causes)
    counted[cause] = counted.pop(cause, 0) + 1
    furthest = max(before.committed, task.committed if worker is None else worker.last_step)
    return Failures(
        fruitless=1 if gained or before.start == 1 else before.fruitless + 1,
        causes=dict(list(counted.items())[-MAX_CAUSES:]),
        cause=cause,
        committed=furthest,
        incarnation=incarnation,
    )
