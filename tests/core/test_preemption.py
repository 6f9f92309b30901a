"""Guards what a worker's leaving means while its task goes on: its place is taken by another.

A worker that hears SIGTERM (its host is taken away, or its agent ends) saves and leaves as
`stopped`. Nobody asked the task to stop, so under the policy `replace` the worker has to come back.
"""

from strata.core.tasks import TaskPlaced
from tests.core.test_replacement import back_to_work, running


def test_a_preempted_worker_is_started_again():
    world, task = running(2, {"a": 2})
    preempted = task.members[0]
    world.peers[preempted].leave("stopped")
    world.exit(task, preempted, code=0)
    assert [list(fact.placements) for fact in world.new(TaskPlaced)] == [[preempted]]
    back_to_work(world, task)
    assert (task.state, len(task.members)) == ("running", 2)
