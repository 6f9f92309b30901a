"""What the workers of a task decide together: a common value, the end of a loop.

A *value* is rank 0's, and every member gets the same one: early stopping by a validation loss, a
new learning rate. It is recorded before anyone acts on it, so a member that asks later, or again
after rank 0 was lost, gets the value that the others have acted on. While the membership is being
settled, rank 0 may be a worker that is only starting; then the first value counts, whoever says it.
A value belongs to a step; a rollback to an earlier step makes it void.

A *loop* that a worker leaves before its end must be left by all workers at the same step. The first
one to leave is recorded. A worker that would train the next step in that loop is told, and raises.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies, decides
from strata.core.fencing import WorkerCommand
from strata.core.limits import require_name
from strata.core.loops import leave_loop
from strata.errors import Conflict, InvalidArgument, NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

MAX_VALUE_CHARACTERS = 64_000
MAX_KEPT = 256


class Agreement(Struct, frozen=True):
    """A value that the workers agreed on when the run had had so many steps, as JSON."""

    step: int
    value: str


class LoopExit(Struct, frozen=True):
    """The last loop that a worker left before its end, and after how many steps of the run."""

    loop: str
    step: int
    worker: str


class ValueAgreed(Fact, frozen=True):
    """Rank 0 said a value, which every member of the task gets."""

    task: str
    key: str
    step: int
    value: str
    worker: str


class LoopLeft(Fact, frozen=True):
    """A worker left a loop before its end; the others must leave it at the same step."""

    task: str
    loop: str
    step: int
    worker: str


class AgreeOnValue(WorkerCommand, frozen=True):
    key: str
    step: int
    value: str = ""


class LeaveLoop(WorkerCommand, frozen=True):
    loop: str
    step: int


@applies(ValueAgreed)
def _agreed(state: "Cluster", fact: ValueAgreed, event: Event) -> None:
    task = state.tasks[fact.task]
    task.agreements[fact.key] = Agreement(step=fact.step, value=fact.value)
    task.agreed += 1
    while len(task.agreements) > MAX_KEPT:
        del task.agreements[next(iter(task.agreements))]


@applies(LoopLeft)
def _left(state: "Cluster", fact: LoopLeft, event: Event) -> None:
    task = state.tasks[fact.task]
    task.loop_exit = LoopExit(loop=fact.loop, step=fact.step, worker=fact.worker)
    leave_loop(task.loops, fact.loop, fact.step)


def drop_agreements_after(task: "Task", step: int) -> None:
    """Forget what was decided in steps that a rollback undoes."""
    task.agreements = {key: each for key, each in task.agreements.items() if each.step <= step}
    if task.loop_exit is not None and task.loop_exit.step > step:
        task.loop_exit = None


@decides(AgreeOnValue)
def agree(d: Decision, c: AgreeOnValue) -> str:
    """The value of a key: the known one, or rank 0's. Others ask again when there is news."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    known = task.agreements.get(c.key)
    if known is not None:
        return known.value
    require_name("key", c.key)
    if worker.rank != 0 and task.phase == "running":
        raise NotAllowedNow(
            f"rank 0 of task {task.id!r} has not said the value of {c.key!r}",
            hint="ask again when another value was agreed on, or the membership changed",
        )
    if not 0 < len(c.value) <= MAX_VALUE_CHARACTERS:
        raise InvalidArgument(
            f"the value of {c.key!r} has {len(c.value)} characters",
            hint=f"agree on something small; {MAX_VALUE_CHARACTERS} characters of JSON at most",
        )
    d.record(
        ValueAgreed(task=task.id, key=c.key, step=c.step, value=c.value, worker=c.worker), c.cause
    )
    return c.value


@decides(LeaveLoop)
def leave_loop_early(d: Decision, c: LeaveLoop) -> None:
    """Note that a worker left a loop early; refused if another one left it at another step."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    known = task.loop_exit
    if known is None or known.loop != c.loop:
        require_name("loop", c.loop)
        d.record(LoopLeft(task=task.id, loop=c.loop, step=c.step, worker=c.worker), c.cause)
    elif known.step != c.step:
        raise Conflict(
            f"worker {known.worker!r} left loop {c.loop} after step {known.step}, and worker "
            f"{c.worker!r} after step {c.step}",
            hint="all workers must leave a loop at the same step; decide with run.agree(value)",
        )
