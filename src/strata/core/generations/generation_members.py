"""Generations: the members of a task, and their ranks.

A generation is one version of a task's membership; its number only grows. Ranks are dense, 0 to
world_size - 1; workers of one host have neighbouring ranks, and a worker keeps its rank where
possible.

The first generation forms when as many workers as required have registered. After that every loss
and every leave makes a new generation at once, so that no worker waits for a dead one. Workers that
leave in the same turn (`core/workers/departures`) make one new generation, and so do workers that
join. If fewer are left than the task requires, it is `forming` again: the rest wait, and train on
when others have joined. Lanes and shards, barriers and checkpoints follow in the same turn.

Workers beyond the number that a task asked for wait as spares, and take the rank of a lost worker
in the same turn. The default task has no such number: every worker becomes a member. Lanes of a
lost worker stay assigned to it while the task is forming, for its replacement.

Once a member of a replicated model has finished, its result is final. The members that trained with
it train on until they finish too; lost ones are not replaced, and when none of them is left the
task is complete. A new worker would only train again what is finished.

Workers of one host get neighbouring ranks, and as few ranks as possible change. Collectives inside
a host are many times as fast as between hosts, and tensor parallelism and hybrid sharding expect
neighbouring ranks on one host. So each host has a block of ranks, in the present
order of hosts. Workers whose rank is in their host's block keep it; the others get the free ranks
of the block. The block of a lost host goes to a new host of the same size, else to the last host of
that size, so that nearly all others keep their ranks. New hosts come last, by name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from strata.core.barriers.barrier_rules import drop_arrivals, fail_waiting, release_completed
from strata.core.checkpoints.checkpoint_lifecycle import fail_unfinished
from strata.core.datasets.dataset_rules import reassign
from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.generations.recovery import commit_steps
from strata.core.state import Cluster
from strata.core.task_state import Phase, Task
from strata.core.tasks.task_lifecycle import UNSAVED_EXIT_CODE, change_state

Seat = tuple[int, str]
Place = tuple[float, tuple[int, str]]


class _Hosts:
    """Workers by host: those with a rank, in rank order, and those that join."""

    def __init__(self) -> None:
        self.workers = defaultdict[str, list[str]](list)
        self.ranks = defaultdict[str, list[int]](list)
        self.joined = defaultdict[str, list[str]](list)

    def size(self, host: str) -> int:
        """How many workers the host has."""
        return len(self.workers.get(host, ())) + len(self.joined.get(host, ()))

    def movers(self, host: str, block: range) -> Iterable[Seat]:
        """The rank changes that bring the host's workers into its block."""
        ranks, joined = self.ranks.get(host, []), self.joined.get(host, [])
        if not joined and ranks[0] == block.start and ranks[-1] == block.stop - 1:
            return ()  # as many ranks as the block has, in ascending order: all are inside
        pairs = list(zip(ranks, self.workers.get(host, []), strict=True))
        settled = {rank for rank in ranks if rank in block}
        free = [rank for rank in block if rank not in settled]
        outside = [worker for rank, worker in pairs if rank not in settled]
        return zip(free, outside + joined, strict=True)


def seats(
    members: Sequence[str],
    left: Iterable[str],
    joined: Iterable[str],
    host_of: Callable[[str], str],
) -> tuple[list[Seat], int]:
    """The ranks that get a new holder, and the new number of ranks."""
    staying, leaving, gone = _Hosts(), defaultdict[str, list[int]](list), set(left)
    for rank, worker in enumerate(members):
        host = host_of(worker)
        if worker in gone:
            leaving[host].append(rank)
        else:
            staying.workers[host].append(worker)
            staying.ranks[host].append(rank)
    for worker in sorted(joined, key=_by_number):
        staying.joined[host_of(worker)].append(worker)
    changed: list[Seat] = []
    begin = 0
    for host in _order(staying, leaving):
        block = range(begin, begin + staying.size(host))
        begin = block.stop
        changed += staying.movers(host, block)
    return changed, begin


def _order(staying: _Hosts, leaving: dict[str, list[int]]) -> list[str]:
    """The hosts in the order of their blocks."""
    places: dict[str, Place] = {
        host: (sum(ranks) / len(ranks), _by_number(host)) for host, ranks in staying.ranks.items()
    }
    last_first = sorted(places, key=lambda host: places[host], reverse=True)
    new = sorted(staying.joined.keys() - places.keys(), key=_by_number)
    empty = sorted(
        (sum(ranks) / len(ranks), len(ranks))
        for host, ranks in leaving.items()
        if host not in places and host not in staying.joined
    )
    for middle, size in empty:
        for hosts in (new, last_first):
            host = next((host for host in hosts if staying.size(host) == size), None)
            if host is not None and (host not in places or places[host][0] > middle):
                hosts.remove(host)
                places[host] = (middle, _by_number(host))
                break
    for host in new:
        places[host] = (float("inf"), _by_number(host))
    return sorted(places, key=lambda host: places[host])


def _by_number(name: str) -> tuple[int, str]:
    """A sort key that puts worker-10 after worker-9."""
    return len(name), name


class GenerationChanged(Fact, frozen=True, kw_only=True):
    """The membership of a task changed. `seats` lists the ranks that have a new holder.

    It was `planned` if all former members are alive: workers joined or were released.
    """

    sentence = "generation {generation} of {task} has {world_size:worker}[: {reason}]"

    task: str
    generation: int
    world_size: int
    seats: list[tuple[int, str]]
    joined: list[str]
    left: list[str]
    phase: Phase
    reason: str
    planned: bool = False


@applies(GenerationChanged)
def _changed(state: Cluster, fact: GenerationChanged, event: Event) -> None:
    task = state.tasks[fact.task]
    for worker in fact.left:
        state.workers[worker].rank = -1
        # A member without a model while the others save, or above the number of a resized task.
        if state.workers[worker].alive and worker not in task.released:
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
    task.planned_changes = task.planned_changes + 1 if fact.planned else 0
    task.phase = fact.phase
    task.entered = {}
    task.recovery = None
    task.scheduled_request = task.fulfilled_request
    task.save_at = 0
    task.missed_saves = 0
    drop_arrivals(task, fact.left)


def join(d: Decision, task: Task, reason: str, cause: str | tuple[str, ...]) -> None:
    """Add waiting workers, if there are enough to start or there is room."""
    if task.phase == "forming" and len(task.members) + len(task.waiting) < task.required:
        return
    if task.waiting and _room(d, task, _through(d, task)) > 0:
        _regroup(d, task, [], reason, cause)


def leave(
    d: Decision, task: Task, workers: list[str], reason: str, cause: str | tuple[str, ...]
) -> None:
    """Remove workers that are lost or have left, all of them in one new generation."""
    left = [worker for worker in workers if d.state.workers[worker].rank >= 0]
    if left:
        _regroup(d, task, left, reason, cause)


def restart_generation(d: Decision, task: Task, reason: str, cause: str | tuple[str, ...]) -> None:
    """Start a new generation of the same members, so that they agree again where to resume."""
    _regroup(d, task, [], reason, cause)


def regroup_holders(d: Decision, task: Task, reason: str, cause: str) -> None:
    """Start a generation of the members that hold the model, unless it is the present one."""
    without = [worker for worker in task.members if not holds_model(d, task, worker)]
    if without or task.phase == "forming":
        _regroup(d, task, without, reason, cause)


def result_is_final(d: Decision, task: Task) -> bool:
    """Whether members finished and no member is left that trained with them."""
    if not task.ran_generation or not any(d.state.workers[w].ran for w in task.finished):
        return False
    if task.spec.model_state == "sharded" and task.committed < task.finished_step:
        return False
    # The last first: members often finish in the order of their ranks, and one is enough.
    return not any(holds_model(d, task, worker) for worker in reversed(task.members))


def all_finished(task: Task) -> bool:
    """Whether every member has finished."""
    # Counting first, because comparing takes time in proportion to the group.
    return len(task.finished) >= len(task.members) and set(task.members) <= set(task.finished)


def holds_model(d: Decision, task: Task, worker_id: str) -> bool:
    """Whether a member may hold a model of the newest lineage."""
    worker, entry = d.state.workers[worker_id], task.entered.get(worker_id)
    empty = entry is not None and entry.step < 0 and task.phase == "syncing"
    return worker.alive and worker.ran == task.ran_generation and not empty


def finish(d: Decision, task: Task, steps: int, reason: str, cause: str | tuple[str, ...]) -> None:
    """Complete a task when every member that trained in it has finished."""
    stands, finished = result_is_final(d, task), all_finished(task)
    if task.phase == "running" or stands or finished:
        commit_steps(d, task, steps, "a worker finished after them", cause)
    if not stands and not finished:
        if task.phase == "syncing":  # the others wait for it to enter, which it never will
            restart_generation(d, task, "a member finished instead of entering", cause)
        else:
            release_completed(d, task, "the others have finished", cause)
    else:
        complete(d, task, reason, cause)


def complete(d: Decision, task: Task, reason: str, cause: str | tuple[str, ...]) -> None:
    """Complete a task, also one that is being preempted; its reason says if the final checkpoint
    failed."""
    if task.state in ("starting", "running", "recovering") or task.preempted_by:
        exit_code = UNSAVED_EXIT_CODE if task.save_failure else 0
        change_state(d, task, "completed", with_save_failure(task, reason), cause, exit_code)
    elif task.state == "stopping":
        change_state(d, task, "stopped", with_save_failure(task, reason), cause)


def with_save_failure(task: Task, reason: str) -> str:
    """Why a task ended, and that its last state is not saved, if so."""
    failure = task.save_failure
    return f"{reason}, final checkpoint failed: {failure}" if failure else reason


def _most(d: Decision, task: Task) -> int:
    """The most members of a generation; others wait as spares. A finished member keeps its rank."""
    if task.shared:
        return d.state.rules.max_workers
    return task.spec.worker_count - len(task.finished)


def _through(d: Decision, task: Task) -> list[str]:
    """The members that have finished."""
    return [worker for worker in task.finished if d.state.workers[worker].rank >= 0]


def _room(d: Decision, task: Task, left: list[str]) -> int:
    """How many workers may be added when `left` are gone.

    Once a member has finished or ended its training, only as many as the others need, and none if
    no member is left: a new worker would have no model and train everything again.
    """
    if result_is_final(d, task):
        return 0
    stay = len(task.members) - len(left)
    ending = task.finished or any(worker not in left for worker in task.ending)
    return (task.required_without(left) if ending else _most(d, task)) - stay


def _regroup(
    d: Decision, task: Task, left: list[str], reason: str, cause: str | tuple[str, ...]
) -> None:
    left = left + [worker for worker in _through(d, task) if worker not in left]
    stay = len(task.members) - len(left)
    room = max(0, _room(d, task, left))
    enough = stay + min(len(task.waiting), room) >= task.required_without(left)
    joined = task.waiting[:room] if enough else []

    def host_of(worker: str) -> str:
        """The worker's host; workers that enter no generations need no neighbouring ranks."""
        return d.state.workers[worker].hostname if enough else ""

    changed_seats, world_size = seats(task.members, left, joined, host_of)
    phase: Phase = "syncing" if enough and world_size else "forming"
    changed = d.record(
        GenerationChanged(
            task=task.id,
            generation=task.generation + 1,
            world_size=world_size,
            seats=changed_seats,
            joined=joined,
            left=left,
            phase=phase,
            reason=reason,
            planned=bool(left or joined) and all(d.state.workers[w].alive for w in left),
        ),
        cause,
    )
    _follow(d, task, left, reason, changed)


def _follow(d: Decision, task: Task, left: list[str], reason: str, cause: str) -> None:
    fail_unfinished(d, task, f"its generation ended: {reason}", cause)
    if task.phase == "forming":
        fail_waiting(d, task, left, reason, cause)
    else:
        reassign(d, task, reason, cause)
        release_completed(d, task, reason, cause)
    if not task.syncs and task.state == "starting" and task.phase == "syncing":
        change_state(d, task, "running", "its workers are here", cause)
    elif task.syncs and task.state == "running":
        change_state(d, task, "recovering", reason, cause)
