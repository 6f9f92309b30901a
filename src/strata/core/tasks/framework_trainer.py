"""Tasks that a framework's trainer trains, which fixes their number of workers.

The trainer of Hugging Face or Lightning divides the data itself: the global batch, the steps of an
epoch and the order of the samples follow from the number of workers. With another number the result
would be another one. A worker declares its trainer before it trains; from then on the task is not
resized, and neither continued nor forked with another number of workers.
"""

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.errors import InvalidArgument


class TrainerDeclared(Fact, frozen=True, kw_only=True):
    """A worker trains with a framework's trainer, which keeps the number of workers."""

    sentence = "{worker} trains {task} with {trainer}, which keeps the number of workers"

    task: str
    worker: str
    trainer: str


@applies(TrainerDeclared)
def _declared(state: Cluster, fact: TrainerDeclared, event: Event) -> None:
    state.tasks[fact.task].trainer = fact.trainer


def declare_trainer(
    d: Decision, task: Task, worker: str, trainer: str, cause: tuple[str, ...]
) -> None:
    """Record the trainer of a task; raises if the task has a range of workers."""
    if trainer == task.trainer:
        return
    if task.spec.elastic:
        raise InvalidArgument(
            f"task {task.id!r} has {task.spec.min_workers} to {task.spec.worker_count} workers, "
            f"but {trainer} keeps the number of workers",
            hint=f"give a fixed number, for example --workers {task.spec.worker_count}",
        )
    d.record(TrainerDeclared(task=task.id, worker=worker, trainer=trainer), cause)


def fixed_by_trainer(task: Task) -> str:
    """Why the number of workers is fixed; empty if no trainer has fixed it."""
    if not task.trainer:
        return ""
    return f"{task.trainer} divides the data by it, so the result would be another one"


def new_training(task: Task) -> str:
    """What to do instead of changing the number of workers."""
    return (
        "for another number, submit a new task and start it from this one's weights: "
        f'from_="{task.id}"'
    )
