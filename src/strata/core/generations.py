"""Generations: who belongs to a task now, and with which rank.

A generation is one version of a task's membership; its number only grows. Ranks are dense,
0 … world_size-1, neighbours on a host, and as stable as that allows (`core/seating`).

The first generation forms when as many workers as required have registered. From then on every
loss and every leave makes a new one at once, so that nobody waits for the dead; those who leave in
the same turn (`core/departures`) make one, and so do those who join. If fewer are left than the
task requires it is `forming` again: the rest wait, and train on when others have joined.
What depends on membership follows in the same turn: lanes and shards, barriers, checkpoints.
Workers beyond those that a task asked for wait as spares, and take such a seat in the same turn.
The task of workers that name none has no such number, and takes in everyone.
Lanes of a lost worker stay in its name while the task is forming, for its replacement to take.

Once a member of a replicated model has finished, its result stands. The members that trained with
it train on until they finish, too; nobody takes the seat of one that is lost, and when none of them
is left the task is complete. A newcomer would only train again what is finished.
"""

from typing import TYPE_CHECKING

from strata.core.barriers import forget_arrivals, give_up, look_again
from strata.core.checkpoints import fail_unfinished
from strata.core.datasets import reassign
from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies
from strata.core.recovery import commit_steps
from strata.core.seating import seats
from strata.core.tasks import UNSAVED_EXIT_CODE, Phase, change_state

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task


class GenerationChanged(Fact, frozen=True):
    """The membership of a task changed. `seats` lists the ranks that have a new holder."""

    task: str
    generation: int
    world_size: int
    seats: list[tuple[int, str]]
    joined: list[str]
    left: list[str]
    phase: Phase
    reason: str


@applies(GenerationChanged)
def _changed(state: "Cluster", fact: GenerationChanged, event: Event) -> None:
    task = state.tasks[fact.task]
    for worker in fact.left:
        state.workers[worker].rank = -1
        if state.workers[worker].alive:  # it has no model, and the others save without it
            task.waiting.append(worker)
    task.ending = [worker for worker in task.ending if worker not in fact.left]
    members = task.members
    members.extend([""] * (fact.world_size - len(members)))
    for rank, worker in fact.seats:
        members[rank] = worker
        state.workers[worker].rank = rank
    del members[fact.world_size :]
    if fact.joined:
        joined = set(fact.joined)
        task.waiting = [worker for worker in task.waiting if worker not in joined]
    task.generation = fact.generation
    task.phase = fact.phase
    task.entered = {}
    task.recovery = None
    task.scheduled_request = task.fulfilled_request
    task.save_at = 0
    task.missed_saves = 0
    forget_arrivals(task, fact.left)


def join(d: Decision, task: "Task", reason: str, cause: str | tuple[str, ...]) -> None:
    """Takes waiting workers in, if there are enough to begin or there is room."""
    if task.phase == "forming" and len(task.members) + len(task.waiting) < task.required:
        return
    if task.waiting and _room(d, task, _through(d, task)) > 0:
        _regroup(d, task, [], reason, cause)


def leave(
    d: Decision, task: "Task", workers: list[str], reason: str, cause: str | tuple[str, ...]
) -> None:
    """Takes workers out that are lost or have left, all of them in one new generation."""
    left = [worker for worker in workers if d.state.workers[worker].rank >= 0]
    if left:
        _regroup(d, task, left, reason, cause)


def begin_again(d: Decision, task: "Task", reason: str, cause: str | tuple[str, ...]) -> None:
    """A new generation of the same members, so that they agree anew from where to go on."""
    _regroup(d, task, [], reason, cause)


def regroup_holders(d: Decision, task: "Task", reason: str, cause: str) -> None:
    """A generation of the members that hold the model, unless the present one is that."""
    without = [worker for worker in task.members if not holds_model(d, task, worker)]
    if without or task.phase == "forming":
        _regroup(d, task, without, reason, cause)


def result_stands(d: Decision, task: "Task") -> bool:
    """Whether members finished and no member is left that trained with them."""
    if not task.ran_generation or not any(d.state.workers[w].ran for w in task.finished):
        return False
    if task.spec.model_state == "sharded" and task.committed < task.finished_step:
        return False
    # The last first: members often finish in the order of their ranks, and one is enough.
    return not any(holds_model(d, task, worker) for worker in reversed(task.members))


def all_finished(task: "Task") -> bool:
    """Whether every member has finished."""
    # Counting first: comparing takes as long as the group is large.
    return len(task.finished) >= len(task.members) and set(task.members) <= set(task.finished)


def holds_model(d: Decision, task: "Task", worker_id: str) -> bool:
    """Whether a member may hold a model of the newest lineage."""
    worker, entry = d.state.workers[worker_id], task.entered.get(worker_id)
    empty = entry is not None and entry.step < 0 and task.phase == "syncing"
    return worker.alive and worker.ran == task.ran_generation and not empty


def finish(
    d: Decision, task: "Task", steps: int, reason: str, cause: str | tuple[str, ...]
) -> None:
    """Completes a task when every member that trained in it has finished."""
    stands, finished = result_stands(d, task), all_finished(task)
    if task.phase == "running" or stands or finished:
        commit_steps(d, task, steps, "a worker finished after them", cause)
    if not stands and not finished:
        if task.phase == "syncing":  # everyone else waits for it to enter, which it never will
            begin_again(d, task, "a member finished instead of entering", cause)
        else:
            look_again(d, task, "the others have finished", cause)
    else:
        complete(d, task, reason, cause)


def complete(d: Decision, task: "Task", reason: str, cause: str | tuple[str, ...]) -> None:
    """End a task whose result is there; its reason says if the final checkpoint failed."""
    if task.state in ("starting", "running", "recovering"):
        exit_code = UNSAVED_EXIT_CODE if task.save_failure else 0
        change_state(d, task, "completed", with_save_failure(task, reason), cause, exit_code)
    elif task.state == "stopping":
        change_state(d, task, "stopped", with_save_failure(task, reason), cause)


def with_save_failure(task: "Task", reason: str) -> str:
    """Why a task ended, and that what it trained last is not saved, where that is so."""
    failure = task.save_failure
    return f"{reason}, final checkpoint failed: {failure}" if failure else reason


def _most(d: Decision, task: "Task") -> int:
    """Workers beyond these wait as spares; the seat of one that has finished stays empty."""
    if task.shared:
        return d.state.rules.max_workers
    return task.spec.worker_count - len(task.finished)


def _through(d: Decision, task: "Task") -> list[str]:
    """The members that have finished."""
    return [worker for worker in task.finished if d.state.workers[worker].rank >= 0]


def _room(d: Decision, task: "Task", left: list[str]) -> int:
    """How many may be taken in when these have left.

    Once a member has finished or ended its training, no more than the others cannot do without, and
    nobody when none of them is left: a newcomer would be alone, without their model, and train
    everything again.
    """
    if result_stands(d, task):
        return 0
    stay = len(task.members) - len(left)
    ending = task.finished or any(worker not in left for worker in task.ending)
    return (task.required_without(left) if ending else _most(d, task)) - stay


def _regroup(
    d: Decision, task: "Task", left: list[str], reason: str, cause: str | tuple[str, ...]
) -> None:
    left = left + [worker for worker in _through(d, task) if worker not in left]
    stay = len(task.members) - len(left)
    room = max(0, _room(d, task, left))
    enough = stay + min(len(task.waiting), room) >= task.required_without(left)
    joined = task.waiting[:room] if enough else []

    def host_of(worker: str) -> str:
        """Who only waits for others need not sit beside anybody."""
        return d.state.workers[worker].hostname if enough else ""

    changed_seats, world_size = seats(task.members, left, joined, host_of)
    phase: Phase = "syncing" if enough and world_size else "forming"
    changed = d.record(
        GenerationChanged(
            task.id, task.generation + 1, world_size, changed_seats, joined, left, phase, reason
        ),
        cause,
    )
    _follow(d, task, left, reason, changed)


def _follow(d: Decision, task: "Task", left: list[str], reason: str, cause: str) -> None:
    fail_unfinished(d, task, f"its generation ended: {reason}", cause)
    if task.phase == "forming":
        give_up(d, task, left, reason, cause)
    else:
        reassign(d, task, reason, cause)
        look_again(d, task, reason, cause)
    if not task.syncs and task.state == "starting" and task.phase == "syncing":
        change_state(d, task, "running", "its workers are here", cause)
    elif task.syncs and task.state == "running":
        change_state(d, task, "recovering", reason, cause)
