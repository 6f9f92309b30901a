"""The state of a task whose workers are gone and which starts again under the same id.

What belongs to the training stays: committed steps, attempt, generation, datasets, loops, agreed
values and checkpoints. So the next workers form a new generation, and since none of them holds a
model, it resumes from the newest checkpoint. What belongs to the workers that are gone is removed:
their ranks, their number, their outcomes, their places on hosts, the barriers at which they waited.
`ran_generation` stays too: only a worker with the same `ran` counts as a holder of the model, and
those of new workers are 0. Start numbers continue after `last_start`, so that a process of an
earlier start can neither join nor be mistaken for a new one.
"""

from strata.core.state import Cluster
from strata.core.task_state import Task


def reset_for_start(state: Cluster, task: Task) -> None:
    """Prepare a task to be placed again; none of its workers may be alive."""
    for worker in state.workers.values():
        if worker.task == task.id:
            # A worker that had finished is started again like the others.
            worker.rank, worker.outcome = -1, ""
    task.exit_code, task.ended_ns, task.save_failure = 0, 0, ""
    task.placements, task.vacant, task.exits, task.released = {}, [], {}, {}
    task.phase, task.ran_members = "forming", 0
    task.members, task.waiting, task.entered = [], [], {}
    task.finished, task.finished_step, task.ending = [], -1, []
    task.recovery, task.peers_refused, task.storage_wait = None, False, None
    task.barriers = {
        name: barrier for name, barrier in task.barriers.items() if barrier.state != "waiting"
    }
