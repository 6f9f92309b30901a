"""The save of the state in which training ended, when a worker is lost while it is written.

A worker that has run its script to the end says so before it saves that state. From then on the
members that hold the model of the run need nobody else: if one of them is lost, the checkpoint
fails, the others form the next generation among themselves and save again. A replacement is not
waited for, and one that has no model yet goes back to the workers that wait: it would run the
script alone, while the others have left it.

When every worker that had ended its training is lost, all of this is void, and replacements go on
from the newest checkpoint. The shards of a sharded model are lost with their worker, so none of
this applies to it.
"""

from typing import TYPE_CHECKING

from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies, decides
from strata.core.fencing import WorkerCommand
from strata.core.generations import holds_model, regroup_holders
from strata.errors import InvalidArgument, NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task


class TrainingEnded(Fact, frozen=True):
    """A worker has run its script to the end after so many steps; the final save comes next."""

    task: str
    worker: str
    step: int


class EndTraining(WorkerCommand, frozen=True):
    step: int


@applies(TrainingEnded)
def _ended(state: "Cluster", fact: TrainingEnded, event: Event) -> None:
    state.tasks[fact.task].ending.append(fact.worker)


@decides(EndTraining)
def end_training(d: Decision, c: EndTraining) -> "Task":
    """Note that a worker trains no more steps; repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if c.step < 0:
        raise InvalidArgument(f"step is {c.step}", hint="count the applied steps, from 0")
    if task.ended or c.worker in task.ending or task.spec.model_state == "sharded":
        return task
    if worker.rank < 0 or not holds_model(d, task, c.worker):
        raise NotAllowedNow(
            f"worker {c.worker!r} holds no model of generation {task.ran_generation}",
            hint="enter the present generation, and take over its model",
        )
    cause = d.record(TrainingEnded(task.id, c.worker, c.step), c.cause)
    regroup_holders(d, task, f"worker {c.worker} has ended its training", cause)
    return task
