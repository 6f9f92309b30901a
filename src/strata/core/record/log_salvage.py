"""Salvage: how a log continues after a part of it was lost.

Every lost position holds a `FactLost`, so positions stay dense and are never used twice. The state
after a lost fact is unknown: facts that follow it can be read but not folded, up to the next
`LogSalvaged`. That fact says from which state the log continues: the one after its first `base`
facts, which is where folding stopped, or a snapshot behind the lost facts. Readable facts from
`base` on stay in the record, and the state does not include them.

The lost facts may have handed out incarnations, generations, ids of tasks and checkpoints, and
start counts. Processes and files with these numbers may still exist, so all counters skip ahead by
`skip`, and every worker and agent that is alive in the state is declared lost: its replacement gets
a number that no process ever had. So a worker that had been declared lost in the lost facts stays
fenced, and its model does not count as the newest one.
"""

from typing import ClassVar

from msgspec import field, structs

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Cluster, Salvage
from strata.core.task_state import Task
from strata.core.workers.declared_losses import DeclareLosses, declare_together
from strata.core.workers.host_agents import DeclareAgentLost
from strata.core.workers.worker_lifecycle import DeclareLost

SKIP = 1_000_000
"""More numbers than any lost part of a log can have handed out: each takes at least one fact."""

MAX_SALVAGES = 16
"""Salvages that stay in the state; the log keeps them all."""

REASON = "the log was salvaged, and its later facts are lost"


class FactLost(Fact, frozen=True, kw_only=True):
    """The fact at this position could not be read when the log was salvaged. It is one of the lost
    facts `first` to `stop`, exclusive."""

    sentence = "this fact was lost: the log was damaged from @{first} to before @{stop}"

    first: int
    stop: int


class LogSalvaged(Fact, frozen=True, kw_only=True):
    """The readable part of a damaged log was kept, and the log continues from here.

    `lost` are ranges of positions, the stop exclusive. The state continues from the first `base`
    facts. Counters skip ahead by `skip`. `lost_batches` counts lost batches of workers' events, -1
    if that is not known. `copied`: the log is a copy, and may lack the last facts of the process
    that wrote it.
    """

    sentence = (
        "[{copied:?}the run continues from a copy of its log|the damaged log was salvaged]; "
        "the state continues from @{base}[, lost: {lost:positions}]"
    )

    after_loss: ClassVar[bool] = True

    base: int
    skip: int
    lost: list[tuple[int, int]] = field(default_factory=list)
    lost_batches: int = 0
    reason: str = ""
    copied: bool = False


class SalvageLog(Command, frozen=True):
    """Continue after damage. Positions up to `end` were acknowledged; those that the state has not
    reached are recorded as lost. No number is skipped if certainly no fact is lost."""

    base: int
    end: int
    lost: list[tuple[int, int]]
    lost_batches: int = 0
    certain: bool = False
    reason: str = ""


class ContinueCopy(Command, frozen=True):
    """Continue from a copy of a log whose later facts, if there are any, were never copied."""

    reason: str


@applies(FactLost)
def _lost(state: Cluster, fact: FactLost, event: Event) -> None:
    state.unknown_from = event.seq


@applies(LogSalvaged)
def _salvaged(state: Cluster, fact: LogSalvaged, event: Event) -> None:
    if state.unknown_from not in (None, fact.base):
        return  # without the snapshot of the base the state stays unknown
    state.unknown_from = None
    state.coordinator_incarnation += fact.skip
    state.last_incarnation += fact.skip
    state.last_worker += fact.skip
    state.last_task += fact.skip
    for task in state.tasks.values():
        _skip_numbers(task, fact.skip)
    salvage = Salvage(
        position=event.seq,
        wall_ns=event.wall_ns,
        base=fact.base,
        lost=fact.lost,
        lost_batches=fact.lost_batches,
    )
    state.salvages = [*state.salvages, salvage][-MAX_SALVAGES:]


def _skip_numbers(task: Task, skip: int) -> None:
    task.generation += skip
    task.ran_generation += skip if task.ran_generation else 0
    task.last_round += skip
    task.last_checkpoint += skip
    for feed in task.feeds.values():
        feed.last_lease += skip
    task.placements = {
        worker: structs.replace(placement, start=placement.start + skip)
        for worker, placement in task.placements.items()
    }


@decides(SalvageLog)
def salvage(d: Decision, c: SalvageLog) -> None:
    """Record what is lost, raise every counter, and declare all workers and agents lost."""
    first = d.state.position
    for _ in range(first, c.end):
        d.record(FactLost(first=first, stop=c.end), c.cause)
    skip = 0 if c.certain and not c.lost else SKIP
    salvaged = d.record(
        LogSalvaged(
            base=c.base, skip=skip, lost=c.lost, lost_batches=c.lost_batches, reason=c.reason
        ),
        c.cause,
    )
    if skip:
        declare_together(d, _everyone(d.state, salvaged))


@decides(ContinueCopy)
def continue_copy(d: Decision, c: ContinueCopy) -> None:
    """Skip the numbers of facts that were not copied, and declare all workers and agents lost."""
    copied = d.record(
        LogSalvaged(base=d.state.position, skip=SKIP, reason=c.reason, copied=True), c.cause
    )
    declare_together(d, _everyone(d.state, copied, c.reason))


def _everyone(state: Cluster, cause: str, reason: str = REASON) -> DeclareLosses:
    """The losses of all agents and workers that are alive in the state."""
    return DeclareLosses(
        agents=[
            DeclareAgentLost(
                agent=agent.id, incarnation=agent.incarnation, reason=reason, cause=(cause,)
            )
            for agent in state.agents.values()
            if agent.up
        ],
        workers=[
            DeclareLost(
                worker=worker.id,
                incarnation=worker.incarnation,
                signal="absent",
                reason=reason,
                cause=(cause,),
            )
            for worker in state.workers.values()
            if worker.alive
        ],
    )
