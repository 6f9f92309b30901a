"""Resize a task: change its number of workers while it runs, without a restart.

The new number is that of the task from now on. New workers are placed and join as replacements do;
workers above the number are released (`core/tasks/elastic_workers`), or wait as spares if the user
started them. Either way the members form a new generation that goes on at the step they have: no
committed step is lost, and the samples and the global batch of each step stay the same.

With `min_workers` the task becomes elastic: it has at least that many workers, and more as slots
are free.

A task cannot be resized if a new generation would lose steps or train nothing: no worker holds the
whole model, workers do not enter generations or have ended their training, or there are more
workers than lanes. Nor can it if a framework's trainer trains it, which divides the data by the
number of workers.
"""

import msgspec
from msgspec import Struct

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.generations.generation_members import leave
from strata.core.limits import require_text
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task
from strata.core.tasks.elastic_workers import (
    batch_workers,
    by_priority,
    check_range,
    keeps_workers,
    lane_counts,
    record_release,
    regroup_if_enough,
)
from strata.core.tasks.framework_trainer import new_training
from strata.core.tasks.host_slots import usable_slots
from strata.core.tasks.placement import place_waiting
from strata.core.tasks.task_queue import Queue
from strata.errors import InvalidArgument, NotAllowedNow


class TaskResized(Fact, frozen=True, kw_only=True):
    """A user changed the number of workers of a task."""

    sentence = "{task} was resized from {before:worker} to {after:worker}[: {reason}]"

    task: str
    before: int
    after: int
    reason: str
    min_workers: int = 0
    elastic: bool = False


class ResizeTask(Command, frozen=True):
    """`min_workers` makes the task elastic; 0 fixes the number of workers."""

    task: str
    worker_count: int
    min_workers: int = 0
    reason: str = "asked for"


class Resized(Struct, frozen=True):
    """The answer: workers that are wanted, that are here or have a slot, and that are missing.

    `waiting_for` says what the task waits for; it is empty if it does not wait.
    """

    task: str
    changed: bool
    before: int
    after: int
    placed: int
    waiting: int
    waiting_for: str


@applies(TaskResized)
def _resized(state: Cluster, fact: TaskResized, event: Event) -> None:
    task = state.tasks[fact.task]
    task.batch_workers = batch_workers(task)
    task.spec = msgspec.structs.replace(
        task.spec,
        worker_count=fact.after,
        min_workers=fact.min_workers,
        elastic=fact.elastic,
    )


@decides(ResizeTask)
def resize(d: Decision, c: ResizeTask) -> Resized:
    """Change the number of workers of a task; the same number again changes nothing."""
    task = d.state.task(c.task)
    require_text(reason=c.reason)
    before = task.spec
    spec = _spec_after(before, c)
    _require_resizable(task, spec)
    _require_numbers(d, task, spec)
    if spec != before:
        fact = TaskResized(
            task=task.id,
            before=before.worker_count,
            after=spec.worker_count,
            reason=c.reason,
            min_workers=spec.min_workers,
            elastic=spec.elastic,
        )
        _follow(d, task, d.record(fact, c.cause))
    present = len(task.members) + len(task.waiting) if spec.external else len(task.placements)
    wanted = spec.min_workers if spec.elastic else spec.slots
    return Resized(
        task=task.id,
        changed=spec != before,
        before=before.worker_count,
        after=spec.worker_count,
        placed=min(present, spec.slots),
        waiting=max(wanted - present, 0),
        waiting_for=Queue(d.state).waiting_for(task),
    )


def _spec_after(spec: TaskSpec, c: ResizeTask) -> TaskSpec:
    fixed = 0 if spec.elastic else min(spec.min_workers, c.worker_count)
    return msgspec.structs.replace(
        spec,
        worker_count=c.worker_count,
        min_workers=c.min_workers or fixed,
        elastic=c.min_workers > 0,
    )


def _require_resizable(task: Task, spec: TaskSpec) -> None:
    """Refuse if the task has ended, or if a new generation would lose steps."""
    again = f"strata continue {task.id} --workers {spec.worker_count}"
    if task.ended:
        raise NotAllowedNow(f"task {task.id!r} is {task.state}", hint=f"start it again: {again}")
    if task.state == "stopping":
        raise NotAllowedNow(f"task {task.id!r} is stopping", hint=f"when it has ended: {again}")
    if task.shared:
        raise NotAllowedNow(
            f"task {task.id!r} trains with all workers that join",
            hint="start or stop workers yourself",
        )
    if not task.syncs:
        raise NotAllowedNow(
            f"task {task.id!r} keeps its number of workers: they train with TrainingOrchestrator",
            hint=f"strata stop {task.id}, then submit it again with another number of workers",
        )
    if reason := keeps_workers(task):
        hint = f"strata stop {task.id} saves its state; then: {again}"
        raise NotAllowedNow(
            f"task {task.id!r} keeps its number of workers: {reason}",
            hint=new_training(task) if task.trainer else hint,
        )


def _require_numbers(d: Decision, task: Task, spec: TaskSpec) -> None:
    """Refuse a number that is out of range, or above the slots or lanes that there are."""
    most = d.state.rules.max_workers
    if not 1 <= spec.worker_count <= most:
        raise InvalidArgument(
            f"worker_count is {spec.worker_count}", hint=f"it must be between 1 and {most}"
        )
    if not 0 <= spec.min_workers <= spec.worker_count:
        raise InvalidArgument(
            f"min_workers is {spec.min_workers}", hint="it must be between 1 and worker_count"
        )
    check_range(spec)
    offered = sum(usable_slots(d.state, agent) for agent in d.state.agents.values())
    grows = not spec.external and spec.starting_slots > task.spec.starting_slots
    if grows and spec.starting_slots > offered:
        raise InvalidArgument(
            f"task {task.id!r} would need {spec.starting_slots} slots, and the agents offer "
            f"{offered}",
            hint="start more agents, or ask for fewer workers",
        )
    lanes = min(lane_counts(task), default=spec.worker_count)
    if lanes < spec.starting_slots - spec.spares:
        raise InvalidArgument(
            f"the batches of task {task.id!r} are divided into {lanes} lanes, too few for "
            f"{spec.worker_count} workers",
            hint=f"ask for at most {lanes} workers",
        )


def _follow(d: Decision, task: Task, resized: str) -> None:
    """Release the workers above the new number, or place those that are missing."""
    spec = task.spec
    reason = f"{task.id} was resized to {spec.worker_count}"
    kept, over = task.members[: spec.worker_count], task.members[spec.worker_count :]
    # The policy `continue` does not replace lost workers: new ones are placed instead.
    not_kept = {*task.members, *(task.vacant if spec.policy == "continue" else ())}
    others = [worker for worker in by_priority(task) if worker not in not_kept]
    staying = {*kept, *others[: max(spec.slots - len(kept), 0)]}
    excess = [worker for worker in by_priority(task) if worker not in staying]
    cause = record_release(d, task, excess, reason, resized) if excess else resized
    if over:
        leave(d, task, over, reason, cause)
    elif task.state != "queued":
        regroup_if_enough(d, task, reason, cause)
    place_waiting(d, cause)
