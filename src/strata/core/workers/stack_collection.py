"""Collections of stacks: when a task hangs, where is each of its workers?

A collection begins when the watchdog suspects a hang, a barrier times out, or a user asks for it.
Each worker is asked twice: the agent of its host reads the stacks of its processes from outside,
and its own session thread reports them with what it waits for. When heartbeats stop, only the
worker that sent none is asked. A collection ends when every report is there, or after
`hang_report_s`. A task has one collection at a time.

`core/workers/stack_deadlines` decides when the watchdog begins one and when it is over.
"""

from typing import Literal, TypeAlias

from msgspec import field

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.limits import shortened
from strata.core.state import Cluster
from strata.core.task_state import StackCollection, Task
from strata.core.workers.stack_reports import StackReport, bounded, place_of
from strata.errors import NotAllowedNow

Trigger: TypeAlias = Literal["hang", "barrier", "heartbeat", "request"]

MAX_ASKED = 256
"""Workers of one collection; the suspects are asked first."""

MAX_REPORT_BYTES = 64 * 1024
MAX_COLLECTION_BYTES = 8 * 2**20

ITSELF = ""
"""The reporter that is the worker itself; other reporters are agents."""


class StacksRequested(Fact, frozen=True, kw_only=True):
    """The stacks of a task's workers are collected, because it seems to hang or a user asked.

    `trigger` is `hang` (steps stopped), `barrier` (a barrier timed out), `heartbeat` (heartbeats
    stopped, the loss of the worker is near) or `request`. `suspects` are the workers that did not
    progress or arrive, `reporters` the agents that are asked about each worker (the empty name is
    the worker itself). `left_out` counts the other workers, which are not asked: those beyond the
    limit, and for `heartbeat` all but the suspects.
    """

    sentence = "stacks of {workers} are collected[: {reason}]"

    task: str
    collection: int
    trigger: Trigger
    reason: str
    workers: list[str]
    suspects: list[str] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)
    reporters: dict[str, list[str]] = field(default_factory=dict)
    max_bytes: int = MAX_REPORT_BYTES
    left_out: int = 0


class StacksCollected(Fact, frozen=True, kw_only=True):
    """One reporter sent the stacks of a worker: an agent, or the worker itself if `agent` is empty.

    `place` is where the worker's script is.
    """

    sentence = "{worker} [is in {place}|sent no stacks][, rank {rank}][ (reported by {agent})]"
    lane_mark = True

    task: str
    worker: str
    incarnation: int
    collection: int
    report: StackReport
    agent: str = ""
    rank: int = -1
    place: str = ""


class StackCollectionEnded(Fact, frozen=True, kw_only=True):
    """A collection is over; `missing` says why a worker's report is not there."""

    sentence = "stacks of {task} were collected from {reported:worker}[; missing: {missing}]"

    task: str
    collection: int
    reported: int
    missing: dict[str, str] = field(default_factory=dict)


class RequestStacks(Command, frozen=True):
    task: str
    trigger: Trigger = "request"
    reason: str = ""
    suspects: list[str] = field(default_factory=list)


class ReportStacks(Command, frozen=True):
    """A report on a worker, by an agent or by the worker itself."""

    task: str
    worker: str
    collection: int
    report: StackReport
    agent: str = ITSELF


class EndStackCollection(Command, frozen=True):
    task: str
    collection: int
    reason: str


@applies(StacksRequested)
def _requested(state: Cluster, fact: StacksRequested, event: Event) -> None:
    state.tasks[fact.task].stack_collection = StackCollection(
        number=fact.collection,
        began_ns=event.wall_ns,
        open=True,
        workers=len(fact.workers),
        waiting={worker: list(names) for worker, names in fact.reporters.items()},
        max_bytes=fact.max_bytes,
    )


@applies(StacksCollected)
def _collected(state: Cluster, fact: StacksCollected, event: Event) -> None:
    collection = state.tasks[fact.task].stack_collection
    if collection is None or collection.number != fact.collection:
        return
    waiting = collection.waiting.get(fact.worker, [])
    if fact.agent in waiting:
        waiting.remove(fact.agent)
    if not waiting:
        collection.waiting.pop(fact.worker, None)
    if fact.worker not in collection.reported:
        collection.reported.append(fact.worker)


@applies(StackCollectionEnded)
def _ended(state: Cluster, fact: StackCollectionEnded, event: Event) -> None:
    collection = state.tasks[fact.task].stack_collection
    if collection is not None and collection.number == fact.collection:
        collection.open = False
        collection.waiting, collection.reported = {}, []


@decides(RequestStacks)
def request_stacks(d: Decision, c: RequestStacks) -> StackCollection:
    """Begin a collection, unless one of the task is in progress; returns that one then."""
    task = d.state.task(c.task)
    before = task.stack_collection
    if before is not None and before.open:
        return before
    living = [w for w in dict.fromkeys([*c.suspects, *task.members]) if _is_alive(d.state, task, w)]
    if not living:
        raise NotAllowedNow(
            f"task {task.id!r} has no running workers, so there are no stacks to collect",
            hint="collect stacks while the task runs; earlier ones: strata stacks --last",
        )
    # A heartbeat that is late says nothing of the other workers, so they are not interrupted.
    suspects = [w for w in living if w in c.suspects]
    asked = (suspects if suspects and c.trigger == "heartbeat" else living)[:MAX_ASKED]
    reporters = {worker: _reporters(d.state, task, worker) for worker in asked}
    reports = sum(len(each) for each in reporters.values())
    fact = StacksRequested(
        task=task.id,
        collection=before.number + 1 if before is not None else 1,
        trigger=c.trigger,
        reason=shortened(c.reason),
        workers=asked,
        suspects=[worker for worker in c.suspects if worker in asked],
        ranks={worker: rank for rank, worker in enumerate(task.members) if worker in asked},
        reporters=reporters,
        max_bytes=min(MAX_REPORT_BYTES, MAX_COLLECTION_BYTES // reports),
        left_out=len(living) - len(asked),
    )
    d.record(fact, c.cause)
    assert task.stack_collection is not None
    return task.stack_collection


def _is_alive(state: Cluster, task: Task, worker_id: str) -> bool:
    worker = state.workers.get(worker_id)
    return worker is not None and worker.alive and worker.task == task.id


def _reporters(state: Cluster, task: Task, worker: str) -> list[str]:
    """The agent of the worker's host, if there is one, and the worker itself."""
    placement = task.placements.get(worker)
    agent = state.agents.get(placement.agent) if placement is not None else None
    return [ITSELF] if agent is None or not agent.up else [agent.id, ITSELF]


@decides(ReportStacks)
def report_stacks(d: Decision, c: ReportStacks) -> bool:
    """Record a report that was asked for; a late or repeated one is ignored. A worker that was lost
    meanwhile keeps its report."""
    task = d.state.tasks.get(c.task)
    collection = task.stack_collection if task is not None else None
    if task is None or collection is None or not collection.open:
        return False
    if collection.number != c.collection or c.agent not in collection.waiting.get(c.worker, ()):
        return False
    worker = d.state.workers[c.worker]
    report = bounded(c.report, collection.max_bytes)
    place = place_of(report)
    collected = StacksCollected(
        task=task.id,
        worker=worker.id,
        incarnation=worker.incarnation,
        collection=collection.number,
        report=report,
        agent=c.agent,
        rank=task.members.index(worker.id) if worker.id in task.members else -1,
        place=place.text if place is not None else "",
    )
    cause = d.record(collected, c.cause)
    if not collection.waiting:
        _end(d, task, collection, "", (cause,))
    return True


@decides(EndStackCollection)
def end_collection(d: Decision, c: EndStackCollection) -> None:
    """End a collection whose missing reports are not waited for any longer."""
    task = d.state.tasks.get(c.task)
    collection = task.stack_collection if task is not None else None
    if task is None or collection is None or not collection.open:
        return
    if collection.number == c.collection:
        _end(d, task, collection, c.reason, c.cause)


def _end(
    d: Decision, task: Task, collection: StackCollection, reason: str, cause: tuple[str, ...]
) -> None:
    missing = {}
    for worker, reporters in collection.waiting.items():
        names = " and ".join(each or "the worker itself" for each in reporters)
        alive = _is_alive(d.state, task, worker)
        why = reason if alive else "the worker ended before it answered"
        missing[worker] = f"no report of {names}: {why}"
    ended = StackCollectionEnded(
        task=task.id,
        collection=collection.number,
        reported=len(collection.reported),
        missing=missing,
    )
    d.record(ended, cause)


def is_complete(state: Cluster, task: Task, collection: StackCollection) -> bool:
    """Whether only reports on workers that have ended are missing."""
    return not any(_is_alive(state, task, worker) for worker in collection.waiting)
