"""Forks: a new task with the history of another one up to a checkpoint, and a future of its own.

A fork has the committed steps, loops and datasets of its parent at the step of a committed
checkpoint, so it trains the same samples in the same order from there. It restores that checkpoint
from the parent's folder; everything that it saves is in its own. The checkpoint is pinned in the
parent until the fork no longer keeps it. Generations are numbered on from the parent's, so that the
audit of a fork can tell its records from those of its parent. Parameters may change as they may
when a task continues (`core/tasks/continuation`).
"""

import msgspec

from strata.core.barriers.agreements import drop_agreements_after
from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.checkpoints.checkpoint_retention import PinCheckpoint, pin
from strata.core.datasets.training_loops import drop_loops_after, trained_steps
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Checkpoint, Feed, Task
from strata.core.tasks.continuation import changes, require_same
from strata.core.tasks.elastic_workers import batch_workers
from strata.core.tasks.placement import begin, record_submission
from strata.core.tasks.workdirs import Workdir
from strata.errors import NotAllowedNow, NotFound

CHANGEABLE = ("name",)
"""Parameters that a fork may change and a continued task may not."""


class TaskForked(Fact, frozen=True, kw_only=True):
    """A task was submitted as a fork of another one, at a checkpoint of it.

    `changes` maps each parameter that differs from the parent's to both values.
    """

    sentence = "{task} is a fork of {parent} at step {step} (checkpoint {checkpoint})"

    task: str
    parent: str
    checkpoint: str
    step: int
    changes: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)


class ForkTask(Command, frozen=True):
    """Fork a task at its committed checkpoint of a step; without a step, at the newest one."""

    task: str
    spec: TaskSpec
    step: int | None = None
    workdir: Workdir | None = None


@applies(TaskForked)
def _forked(state: Cluster, fact: TaskForked, event: Event) -> None:
    task, parent = state.tasks[fact.task], state.tasks[fact.parent]
    task.parent, task.forked_at = fact.parent, fact.step
    task.generation, task.attempt = parent.generation, parent.attempt
    task.committed = fact.step
    task.batch_workers = batch_workers(parent)
    task.loops, task.agreements = dict(parent.loops), dict(parent.agreements)
    task.loop_exit = parent.loop_exit
    drop_loops_after(task, fact.step)
    drop_agreements_after(task, fact.step)
    task.feeds = {name: _feed_at(state, task, feed) for name, feed in parent.feeds.items()}
    saved = parent.checkpoints[fact.checkpoint]
    task.checkpoints[saved.id] = inherited(saved, fact.parent)
    task.saved = 1


def _feed_at(state: Cluster, task: Task, feed: Feed) -> Feed:
    """A dataset of the parent as the fork begins with it: no lane has an owner."""
    samples = state.datasets[feed.dataset].spec.total_samples
    trained = trained_steps(task.loops, feed.dataset, task.committed)
    epoch = trained * feed.global_batch // samples
    return msgspec.structs.replace(feed, epoch=epoch, holdings={}, paces={})


def inherited(saved: Checkpoint, parent: str) -> Checkpoint:
    """A checkpoint of the parent in the state of its fork."""
    owner = saved.owner or parent
    return msgspec.structs.replace(saved, owner=owner, pins=[], copies=[], final=False)


@decides(ForkTask)
def fork(d: Decision, c: ForkTask) -> Task:
    """Submit a fork of a task; it starts at once if there are slots."""
    parent = d.state.task(c.task)
    changed = changes(parent.spec, c.spec)
    require_same(parent, {name: both for name, both in changed.items() if name not in CHANGEABLE})
    saved = checkpoint_at(parent, c.step)
    leased = next((feed.dataset for feed in parent.feeds.values() if feed.unit == "lease"), "")
    if leased:
        raise NotAllowedNow(
            f"task {parent.id!r} leases shards of {leased!r}, so its data at step {saved.step} is "
            "not known",
            hint="start a new task from its weights: "
            f'run.restore(..., from_="{parent.id}/{saved.id}")',
        )
    task, submitted = record_submission(d, c.spec, c.cause, c.workdir)
    forked = d.record(
        TaskForked(
            task=task.id, parent=parent.id, checkpoint=saved.id, step=saved.step, changes=changed
        ),
        submitted,
    )
    pin(d, PinCheckpoint(task=parent.id, checkpoint=saved.id, holder=task.id, cause=(forked,)))
    begin(d, task, forked)
    return task


def checkpoint_at(task: Task, step: int | None) -> Checkpoint:
    """The newest committed checkpoint, or the one of a step."""
    saved = committed_newest_first(task)
    found = next((each for each in saved if step in (None, each.step)), None)
    if found is not None:
        return found
    if not saved:
        raise NotFound(f"task {task.id!r} has no checkpoint", hint="a fork needs one to start from")
    assert step is not None, "the newest one would have been found"
    nearest = sorted((each.step for each in saved), key=lambda each: abs(each - step))[:3]
    raise NotFound(
        f"task {task.id!r} has no checkpoint of step {step}",
        hint=f"the nearest are of step {', '.join(map(str, sorted(nearest)))}",
    )
