"""The queue: which task is placed next, and what a waiting task waits for.

Queued tasks are placed in the order of their priority, the highest first, and of equal priority in
the order of submission. The first task in line that does not fit blocks all others, so that a large
task is never starved. A preempted task keeps its place by its submission.

A task that was submitted `after` others is not in line before all of them have completed, and
blocks nobody. If one of them fails or is stopped, the task stays queued and says so: its input is
missing, but the user may continue the other task. A task that has trained once does not wait for
them again.
"""

from collections.abc import Iterator
from functools import cached_property

from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks.elastic_workers import waiting_workers
from strata.core.tasks.host_slots import free_slots, usable_slots

CANNOT_COMPLETE = ("failed", "stopped", "unknown")
HOW = {"failed": "failed", "stopped": "was stopped", "unknown": "is no longer known"}


def first_in_line(state: Cluster) -> Task | None:
    """The queued task that is placed next; None if no task is ready to be placed."""
    ready = (task for task in _queued(state) if not unfinished_before(state, task))
    return min(ready, key=_rank, default=None)


def unfinished_before(state: Cluster, task: Task) -> list[str]:
    """The tasks that have to complete before a task starts and have not."""
    if task.started_ns:
        return []
    return [name for name in task.spec.after if _state_of(state, name) != "completed"]


def stuck_behind(state: Cluster, task: Task) -> list[str]:
    """The tasks that a task waits for although they have failed or were stopped."""
    unfinished = unfinished_before(state, task)
    return [name for name in unfinished if _state_of(state, name) in CANNOT_COMPLETE]


def _queued(state: Cluster) -> Iterator[Task]:
    """The queued tasks in the order of submission."""
    return (task for task in state.tasks.values() if task.state == "queued")


def _rank(task: Task) -> int:
    return -task.spec.priority


def _state_of(state: Cluster, name: str) -> str:
    known = state.tasks.get(name)
    return known.state if known is not None else "unknown"


class Queue:
    """The queue of one state, for views: the order is computed once for all tasks."""

    def __init__(self, state: Cluster) -> None:
        self._state = state

    @cached_property
    def order(self) -> list[str]:
        """The queued tasks, the next one first; tasks that wait for other tasks are last."""
        queued = sorted(
            _queued(self._state),
            key=lambda task: (bool(unfinished_before(self._state, task)), _rank(task)),
        )
        return [task.id for task in queued]

    @cached_property
    def positions(self) -> dict[str, int]:
        """The place of each queued task, from 1."""
        return {task: place for place, task in enumerate(self.order, 1)}

    def waiting_for(self, task: Task) -> str:
        """What a task waits for: slots, other tasks, or workers that the user starts; empty if it
        does not wait."""
        if task.spec.external:
            return _missing_workers(task)
        if task.state == "queued":
            place = f"{ordinal(self.positions[task.id])} in the queue"
            if unfinished_before(self._state, task):
                return f"{place}; {self._other_tasks(task)}"
            needs = f"needs {_slots(task.spec.starting_slots)}, {self._offer}"
            return f"{place}{self._behind(task)}; {needs}"
        if task.vacant and task.phase == "forming" and task.state != "stopping":
            return f"its lost workers need {_slots(len(task.vacant))}, {self._offer}"
        return waiting_workers(task)

    def _behind(self, task: Task) -> str:
        """The task before this one, or those that make room for it."""
        place = self.positions[task.id]
        if place > 1:
            return f", behind {self.order[place - 2]}"
        saving = [each.id for each in self._state.tasks.values() if each.preempted_by == task.id]
        return f", preempts {', '.join(saving)}" if saving else ""

    def _other_tasks(self, task: Task) -> str:
        """The first task that this one waits for; a task that failed or was stopped comes first."""
        before, stuck = unfinished_before(self._state, task), stuck_behind(self._state, task)
        name = (stuck or before)[0]
        known = _state_of(self._state, name)
        how = HOW.get(known, f"is {known}")
        more = f", and {len(before) - 1} more" if len(before) > 1 else ""
        hint = "; continue that task or stop this one" if stuck else ""
        return f"waits for {name}, which {how}{more}{hint}"

    @cached_property
    def _offer(self) -> str:
        up = [agent for agent in self._state.agents.values() if agent.up]
        offered = sum(usable_slots(self._state, agent) for agent in up)
        if not up:
            return "no agent is up"
        free = sum(free_slots(self._state).values())
        offer = f"{free} of {offered} {'is' if free == 1 else 'are'} free"
        return f"{offer}{self._excluded([agent.id for agent in up])}"

    def _excluded(self, hosts: list[str]) -> str:
        """Which hosts and GPUs are excluded, and why the first one is."""
        known = [self._state.hosts[host] for host in hosts if host in self._state.hosts]
        whole = [(host.id, host.excluded) for host in known if host.excluded]
        gpus = [
            (f"{each.gpu.index} of host {host.id}", each.reason)
            for host in known
            for each in host.excluded_gpus.values()
            if not host.excluded
        ]
        return _named(whole, "host") + _named(gpus, "GPU")


def _named(excluded: list[tuple[str, str]], kind: str) -> str:
    """How many hosts or GPUs are excluded, the first one, and why it is."""
    if not excluded:
        return ""
    name, reason = excluded[0]
    what = f"is {kind}" if len(excluded) == 1 else f"are {len(excluded)} {kind}s, such as"
    return f"; excluded {what} {name}: {reason}"


def ordinal(number: int) -> str:
    """A number as 1st, 2nd, 3rd, 4th."""
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def _missing_workers(task: Task) -> str:
    here, needed = len(task.members) + len(task.waiting), task.required
    waits = task.phase == "forming" and not task.ended and task.state != "stopping"
    if not waits or here >= needed:
        return ""
    more = f"start {needed - here} more with STRATA_TASK={task.id}"
    return f"{here} of {needed} workers are here: {more}"
