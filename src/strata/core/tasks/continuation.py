"""Tasks that continue after they have ended: the same task, from its newest checkpoint.

A task that was stopped, failed or completed keeps everything that training needs: committed steps,
loops, datasets and checkpoints. `ContinueTask` queues it again under the same id. Its workers are
started anew, the next generation restores the newest checkpoint, and training continues at the next
step; steps after that checkpoint are rolled back as in every recovery. The facts of all lives of a
task have one id, so an audit spans them.

Parameters may change on the way (`TaskSpec`): `TaskContinued` holds the new ones and names every
change. What would make the data differ is checked where a worker asks for it: the global batch when
a dataset is attached, the dataset itself when it is registered.
"""

import msgspec
from msgspec import field

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Cluster
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task
from strata.core.tasks.elastic_workers import batch_workers
from strata.core.tasks.framework_trainer import fixed_by_trainer, new_training
from strata.core.tasks.placement import StopTask, begin, check_spec, stop
from strata.core.tasks.task_lifecycle import change_state
from strata.core.tasks.workdirs import Workdir, check_spec_workdir, record_workdir
from strata.core.workers.departures import lose
from strata.core.workers.worker_lifecycle import DeclareLost
from strata.errors import UNDECODABLE, Conflict, InvalidArgument, NotAllowedNow

FIXED = ("name", "type", "model_state", "external", "syncs")
"""Parameters of a task that stay as they were submitted."""

LENGTHS = ("epochs", "max_steps")
"""Parameters that replace a number in the script unless they are 0."""

UNNAMED = ("env_key",)
"""Parameters that are not shown as changes: the key is new whenever values are given."""


class TaskContinued(Fact, frozen=True, kw_only=True):
    """An ended task was queued again, with these parameters.

    `changes` maps each parameter that changed to its values before and after.
    """

    sentence = "{task} continues from step {step}[: {reason}]"

    task: str
    spec: TaskSpec
    step: int
    reason: str
    changes: dict[str, tuple[str, str]] = field(default_factory=dict)


class ContinueTask(Command, frozen=True):
    """Continue an ended task; without a `spec` its parameters and its folder stay as they are."""

    task: str
    spec: TaskSpec | None = None
    workdir: Workdir | None = None


class EndKilledTask(Command, frozen=True):
    """End a task whose coordinator and worker processes were all killed."""

    task: str


@applies(TaskContinued)
def _continued(state: Cluster, fact: TaskContinued, event: Event) -> None:
    task = state.tasks[fact.task]
    task.batch_workers = batch_workers(task)
    task.spec = fact.spec
    task.continuations += 1


@decides(ContinueTask)
def continue_task(d: Decision, c: ContinueTask) -> Task:
    """Queue an ended task again; it starts at once if there are slots."""
    task = d.state.task(c.task)
    spec = c.spec or task.spec
    spec = msgspec.structs.replace(spec, keep_count=spec.keep_count or d.state.rules.keep_count)
    changed = changes(task.spec, spec)
    _require_continuable(d, task, changed)
    check_spec(d, spec)
    if c.spec is not None:
        check_spec_workdir(spec, c.workdir)
    step = resume_step(task)
    continued = d.record(
        TaskContinued(task=task.id, spec=spec, step=step, reason=_reason(changed), changes=changed),
        c.cause,
    )
    record_workdir(d, task, c.workdir, continued)
    begin(d, task, change_state(d, task, "queued", f"continued: {_reason(changed)}", continued))
    return task


def resume_step(task: Task) -> int:
    """The step at which the task would resume: that of its newest checkpoint, else 0."""
    saved = [c.step for c in task.checkpoints.values() if c.state == "committed"]
    return max(saved, default=0)


def changes(before: TaskSpec, after: TaskSpec) -> dict[str, tuple[str, str]]:
    """The parameters that differ, each with both values as text; entries of `config` by name."""
    found = {
        name: (_shown_of(name, before), _shown_of(name, after))
        for name in before.__struct_fields__
        if name not in (*UNNAMED, "config") and getattr(before, name) != getattr(after, name)
    }
    old, new = _config(before), _config(after)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            found[f"config.{key}"] = (_shown(old.get(key)), _shown(new.get(key)))
    return found


def _config(spec: TaskSpec) -> dict[str, object]:
    try:
        return msgspec.json.decode(spec.config, type=dict[str, object])
    except UNDECODABLE:
        raise InvalidArgument(
            f"config {spec.config[:40]!r} is not a JSON object", hint='for example {"lr": 0.1}'
        ) from None


def _shown_of(name: str, spec: TaskSpec) -> str:
    """A parameter as text."""
    value = getattr(spec, name)
    return "as in the script" if name in LENGTHS and not value else _shown(value)


def _shown(value: object) -> str:
    return "" if value is None else msgspec.json.encode(value).decode().strip('"')


def _reason(changed: dict[str, tuple[str, str]]) -> str:
    if not changed:
        return "with the same parameters"
    return ", ".join(f"{name} {old or '–'} → {new or '–'}" for name, (old, new) in changed.items())


def _require_continuable(d: Decision, task: Task, changed: dict[str, tuple[str, str]]) -> None:
    if not task.ended:
        raise NotAllowedNow(
            f"task {task.id!r} is {task.state}, so it cannot be continued",
            hint=f"it goes on by itself; to change it, first run: strata stop {task.id}",
        )
    living = [w.id for w in d.state.workers.values() if w.task == task.id and w.alive]
    if living:
        raise Conflict(
            f"worker {living[0]} of task {task.id!r} is still ending",
            hint="try again in a few seconds",
        )
    require_same(task, changed)


def require_same(task: Task, changed: dict[str, tuple[str, str]]) -> None:
    """Refuse to change a parameter of a task that its history depends on."""
    fixed = [name for name in FIXED if name in changed]
    if fixed:
        old, new = changed[fixed[0]]
        raise InvalidArgument(
            f"{fixed[0]} of task {task.id!r} is {old} and cannot become {new}",
            hint="submit a new task, and start it from this one's weights: "
            f'run.restore(..., from_="{task.id}")',
        )
    other_workers = {"worker_count", "elastic"} & changed.keys()
    if other_workers and resume_step(task) and (why := fixed_by_trainer(task)):
        raise InvalidArgument(
            f"task {task.id!r} keeps its number of workers: {why}",
            hint=new_training(task),
        )


@decides(EndKilledTask)
def end_killed(d: Decision, c: EndKilledTask) -> Task:
    """Stop a task whose processes were all killed: its workers are lost."""
    reason = "the run was killed"
    task = stop(d, StopTask(task=c.task, reason=reason, cause=c.cause))
    living = [w for w in d.state.workers.values() if w.task == task.id and w.alive]
    lose(
        d,
        [
            DeclareLost(
                worker=worker.id,
                incarnation=worker.incarnation,
                signal="absent",
                reason=reason,
                cause=c.cause,
            )
            for worker in living
        ],
    )
    return task
