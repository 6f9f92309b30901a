"""Preemption: the place of a worker that leaves while its task continues is taken by another.

A worker that gets SIGTERM (its host is taken away, or its agent ends) saves and leaves as
`stopped`. The task itself was not stopped, so with the policy `replace` the worker is started
again.
"""

from strata.core.tasks.task_lifecycle import TaskPlaced
from tests.core.test_replacement import back_to_work, running


def test_preempted_worker_is_started_again():
    world, task = running(2, {"a": 2})
    preempted = task.members[0]
    world.peers[preempted].leave("stopped")
    world.exit(task, preempted, code=0)
    assert [list(fact.placements) for fact in world.new(TaskPlaced)] == [[preempted]]
    back_to_work(world, task)
    assert (task.state, len(task.members)) == ("running", 2)
