"""What needs somebody's attention, the gravest first, each with what to do about it.

A pure function of the state and of the tasks whose throughput fell: the page, the terminal and any
other reader show the same list.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import Struct

from strata.core.barriers import missing_workers
from strata.core.scheduling import why_waiting
from strata.core.state import Cluster
from strata.core.step_rates import Drop
from strata.core.tasks import Task

Severity: TypeAlias = Literal["error", "warning"]

MAX_ITEMS = 20
NAMES_SHOWN = 3
SECOND_NS = 1_000_000_000
LATELY_NS = 3_600 * SECOND_NS
PATIENCE_NS = 30 * SECOND_NS


class Attention(Struct, frozen=True):
    """One thing to look at; `subject` is `worker:ID`, `task:ID`, `checkpoint:ID` and so on."""

    severity: Severity
    subject: str
    text: str
    hint: str


def attention(state: Cluster, now_ns: int, drops: Sequence[Drop] = ()) -> list[Attention]:
    """The things to look at; errors before warnings, and a bounded number of them.

    `drops` are the tasks that train much slower than usual, which is known of the present only.
    """
    found = [
        *_lost_facts(state),
        *_tasks(state, now_ns),
        *_throughput(drops),
        *_hosts(state),
        *(
            item
            for task in state.tasks.values()
            if not task.ended
            for item in (*_workers(state, task), *_barriers(task, now_ns), *_checkpoints(task))
        ),
    ]
    found.sort(key=lambda item: item.severity != "error")
    return found[:MAX_ITEMS]


def _lost_facts(state: Cluster) -> Iterator[Attention]:
    """Parts of the log that were lost; they stay lost, so this stays."""
    for salvage in state.salvages:
        named = ", ".join(f"@{first} to @{stop - 1}" for first, stop in salvage.lost[:NAMES_SHOWN])
        more = len(salvage.lost) - NAMES_SHOWN
        if named or salvage.lost_batches:
            what = f"facts {named}" + (f" and {more} more ranges" if more > 0 else "")
            yield Attention(
                "warning",
                f"fact:@{salvage.position}",
                f"the log was damaged: {what if named else 'events of workers'} lost, the state "
                f"went on from position {salvage.base}",
                "strata why trust says what cannot be proven",
            )


def _tasks(state: Cluster, now_ns: int) -> Iterator[Attention]:
    for task in state.tasks.values():
        if task.state == "failed" and now_ns - task.ended_ns < LATELY_NS:
            yield Attention(
                "error",
                f"task:{task.id}",
                f"{task.id} failed: {task.reason}",
                f"strata logs --task {task.id}",
            )
        elif task.storage_wait is not None and task.storage_wait.workers and not task.ended:
            waited_s = (now_ns - task.storage_wait.since_ns) // SECOND_NS
            yield Attention(
                "error",
                f"task:{task.id}",
                f"{task.id} has waited {waited_s} s for storage: {task.storage_wait.reason}",
                "bring the checkpoint storage back; the task goes on by itself",
            )
        elif waits_for := why_waiting(state, task):
            yield Attention(
                "warning",
                f"task:{task.id}",
                f"{task.id} waits: {waits_for}",
                "start its script with COORDINATOR_ADDR=HOST:PORT set"
                if task.spec.external
                else "strata agent --slots N offers slots on a host",
            )


def _throughput(drops: Sequence[Drop]) -> Iterator[Attention]:
    for drop in drops:
        rates = f"{drop.now:.2g} steps/s instead of the usual {drop.usual:.2g} steps/s"
        yield Attention(
            "warning",
            f"task:{drop.task}",
            f"{drop.task} makes {rates}",
            f"strata why throughput task={drop.task}",
        )


def _hosts(state: Cluster) -> Iterator[Attention]:
    for agent in state.agents.values():
        if not agent.up:
            yield Attention(
                "warning",
                f"agent:{agent.id}",
                f"host {agent.hostname or agent.id} is out of reach: {agent.reason}",
                f"start strata agent there again: {agent.slots} slots are missing",
            )


def _workers(state: Cluster, task: Task) -> Iterator[Attention]:
    concerned = dict.fromkeys([*task.members, *task.waiting, *task.placements])
    for name in concerned:
        worker = state.workers.get(name)
        if worker is not None and worker.state in ("lost", "error"):
            word = "is lost" if worker.state == "lost" else "reports an error"
            yield Attention(
                "error",
                f"worker:{worker.id}",
                f"{worker.id} {word}: {worker.reason or 'no reason given'}",
                f"strata logs --worker {worker.id}",
            )


def _barriers(task: Task, now_ns: int) -> Iterator[Attention]:
    for met in task.barriers.values():
        waited_ns = now_ns - met.opened_ns
        if met.state == "waiting" and waited_ns > PATIENCE_NS:
            missing = missing_workers(task, met)
            names = ", ".join(missing[:NAMES_SHOWN])
            more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
            yield Attention(
                "warning",
                f"barrier:{task.id}/{met.name}",
                f"barrier {met.name} of {task.id} waits {waited_ns // SECOND_NS} s "
                f"for {names}{more}",
                "strata barriers shows who is missing",
            )


def _checkpoints(task: Task) -> Iterator[Attention]:
    """The newest checkpoint, if it failed: older failures were made good since."""
    for saved in islice(reversed(task.checkpoints.values()), 1):
        if saved.state == "failed":
            yield Attention(
                "warning",
                f"checkpoint:{saved.id}",
                f"checkpoint {saved.id} of {task.id} failed: {saved.reason}",
                f"POST /api/tasks/{task.id}/checkpoint asks for another",
            )
