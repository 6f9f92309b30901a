"""The brake on restart loops: which failures of a worker count, and when they are too many.

A worker that fails is started again up to `max_restarts` times. What resets the count is progress
that this worker took part in: steps beyond the furthest that the task had when it was placed. What
the other workers train meanwhile does not count, and neither do steps that a rollback made it train
again. Two counts end a loop:

- failures in a row without any new step, whatever their cause;
- failures in a row of the same cause with few new steps between them: fewer than `ENOUGH_STEPS`, in
  less than `ENOUGH_S` seconds. Causes are compared without the numbers in them.
"""

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Placement, Task

ENOUGH_STEPS = 10
ENOUGH_S = 600.0
MAX_CAUSES = 16
CAUSE_CHARACTERS = 200
SECOND_NS = 1_000_000_000

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")


class Failures(Struct, frozen=True):
    """The failures of a worker that count, the newest one included."""

    fruitless: int
    causes: dict[str, int]
    cause: str
    committed: int
    incarnation: int

    def loop(self, max_restarts: int) -> str:
        """Why they are a restart loop; empty where they are none."""
        often = self.causes[self.cause]
        if self.fruitless > max_restarts:
            times = "once" if self.fruitless == 1 else f"{self.fruitless} times"
            return f"failed {times} without progress"
        if often > max_restarts:
            return f"failed {often} times in the same way, each time within {ENOUGH_STEPS} steps"
        return ""

    def placed(self, before: "Placement", agent: str) -> "Placement":
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


def failures(state: "Cluster", task: "Task", worker_id: str, reason: str) -> Failures:
    """Counts the newest failure of a worker that is to be started again."""
    before = task.placements[worker_id]
    worker = state.workers.get(worker_id)
    gained, lived_s, incarnation = 0, 0.0, before.incarnation
    if worker is not None and worker.incarnation > before.incarnation:
        incarnation, reason = worker.incarnation, worker.reason or reason
        lived_s = (worker.changed_ns - worker.registered_ns) / SECOND_NS
        if worker.ran:
            gained = max(worker.last_step - max(worker.first_step, before.committed), 0)
    cause = _NUMBERS.sub("#", reason)[:CAUSE_CHARACTERS]
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
