"""Median times of the parts of steps: data, compute, communication and wait.

A worker's own time is data and compute. Communication is not: in a collective exchange every worker
waits for the slowest one, so the slowest worker has the shortest communication. Wait is the time in
barriers and while a generation forms.
"""

from collections.abc import Sequence
from itertools import islice
from statistics import median

from msgspec import Struct

from strata.core.generations.generation_members import GenerationChanged
from strata.core.workers.worker_facts import StepFinished
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import Record
from strata.timeline.why.investigation import LogSearch

PARTS = ("data", "compute", "communication", "wait")
OWN = ("data", "compute")
STEPS = 200
PEERS = 32
FINISHED = frozenset({StepFinished.__name__})


class Split(Struct, frozen=True):
    """The median seconds of each part of some steps."""

    data: float
    compute: float
    communication: float
    wait: float
    steps: int

    @property
    def own(self) -> float:
        """The seconds of a step that do not depend on other workers."""
        return self.data + self.compute

    @property
    def whole(self) -> float:
        """The seconds of a whole step."""
        return self.own + self.communication + self.wait

    def share(self, part: str) -> float:
        """The share of a part in the step's time."""
        spent: float = getattr(self, part)
        return spent / self.whole if self.whole else 0.0


def split_of(records: Sequence[Record]) -> Split | None:
    """The medians of some steps; None without steps."""
    bodies = [each.event.body for each in records]
    steps = [body for body in bodies if isinstance(body, StepFinished)]
    if not steps:
        return None
    return Split(
        data=median(step.data_s for step in steps),
        compute=median(step.compute_s for step in steps),
        communication=median(step.communication_s for step in steps),
        wait=median(step.wait_s for step in steps),
        steps=len(steps),
    )


class Group(Struct, frozen=True):
    """The members of a generation at a moment, and the generation's start."""

    task: str
    generation: int
    members: list[str]
    since_ns: int


def group_of(search: LogSearch, worker: str, at_ns: int) -> Group | None:
    """The generation of a worker at a moment; None if it had none."""
    state = state_at(search.timeline, search.timeline.position_at(at_ns)).state
    known = state.workers.get(worker)
    return task_group(search, known.task, at_ns) if known is not None else None


def task_group(search: LogSearch, task: str, at_ns: int) -> Group | None:
    """The generation of a task at a moment."""
    state = state_at(search.timeline, search.timeline.position_at(at_ns)).state
    found = state.tasks.get(task)
    if found is None or not found.members:
        return None
    began = search.last(
        {GenerationChanged.__name__}, at_ns + 1, task=task, generation=found.generation
    )
    since_ns = began.at_ns if began is not None else search.extent.from_ns
    return Group(
        task=task, generation=found.generation, members=list(found.members), since_ns=since_ns
    )


def newest_steps(search: LogSearch, worker: str, since_ns: int, until_ns: int) -> list[Record]:
    """The last steps of a worker in a span, oldest first."""
    found = search.timeline.backwards(until_ns, since_ns, node=worker, kinds=FINISHED)
    return list(islice(found, STEPS))[::-1]


def first_steps(search: LogSearch, worker: str, since_ns: int, until_ns: int) -> list[Record]:
    """The first steps of a worker in a span."""
    found = search.timeline.records(since_ns, until_ns, node=worker, kinds=FINISHED)
    return list(islice(found, STEPS))
