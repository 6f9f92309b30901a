"""Decisions that the workers of a task share: a common value, the end of a loop.

A *value* comes from rank 0, and every member gets the same one: early stopping by a validation
loss, a new learning rate. It is recorded before any member acts on it, so a member that asks later,
or again after rank 0 was lost, gets the same value. While the membership is changing, rank 0 may be
a worker that is only starting; then the first value counts, whichever member sends it. A value
belongs to a step; a rollback to an earlier step removes it.

A *loop* that a worker leaves before its end must be left by all workers at the same step. The first
leave is recorded. A worker that would train the next step in that loop gets an error.
"""

from strata.core.datasets.training_loops import leave_loop
from strata.core.decision import Decision, applies, decides
from strata.core.events import Event, Fact
from strata.core.limits import require_name
from strata.core.state import Cluster
from strata.core.task_state import Agreement, LoopExit, Task
from strata.core.workers.fencing import WorkerCommand
from strata.errors import Conflict, InvalidArgument, NotAllowedNow

MAX_VALUE_CHARACTERS = 64_000
MAX_KEPT = 256


class ValueAgreed(Fact, frozen=True, kw_only=True):
    """Rank 0 set a value, which every member of the task gets."""

    sentence = "the workers agreed on {key}[: {value}]"

    task: str
    key: str
    step: int
    value: str
    worker: str


class LoopLeft(Fact, frozen=True, kw_only=True):
    """A worker left a loop before its end; the others must leave it at the same step."""

    sentence = "{worker} left a loop (place {loop} in the script) before its end, after step {step}"

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
def _agreed(state: Cluster, fact: ValueAgreed, event: Event) -> None:
    task = state.tasks[fact.task]
    task.agreements[fact.key] = Agreement(step=fact.step, value=fact.value)
    task.agreed += 1
    while len(task.agreements) > MAX_KEPT:
        del task.agreements[next(iter(task.agreements))]


@applies(LoopLeft)
def _left(state: Cluster, fact: LoopLeft, event: Event) -> None:
    task = state.tasks[fact.task]
    task.loop_exit = LoopExit(loop=fact.loop, step=fact.step, worker=fact.worker)
    leave_loop(task.loops, fact.loop, fact.step)


def drop_agreements_after(task: Task, step: int) -> None:
    """Remove the values of steps that a rollback undoes."""
    task.agreements = {key: each for key, each in task.agreements.items() if each.step <= step}
    if task.loop_exit is not None and task.loop_exit.step > step:
        task.loop_exit = None


@decides(AgreeOnValue)
def agree(d: Decision, c: AgreeOnValue) -> str:
    """Return the value of a key: the recorded one, or rank 0's. Other members have to ask again."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    known = task.agreements.get(c.key)
    if known is not None:
        return known.value
    require_name("key", c.key)
    if worker.rank != 0 and task.phase == "running":
        raise NotAllowedNow(
            f"rank 0 of task {task.id!r} has not sent the value of {c.key!r}",
            hint="ask again after another value was agreed on or the membership changed",
        )
    if not 0 < len(c.value) <= MAX_VALUE_CHARACTERS:
        raise InvalidArgument(
            f"the value of {c.key!r} has {len(c.value)} characters",
            hint=f"use at most {MAX_VALUE_CHARACTERS} characters of JSON",
        )
    d.record(
        ValueAgreed(task=task.id, key=c.key, step=c.step, value=c.value, worker=c.worker), c.cause
    )
    return c.value


@decides(LeaveLoop)
def leave_loop_early(d: Decision, c: LeaveLoop) -> None:
    """Record that a worker left a loop early; refused if another left it at another step."""
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
