"""Salvage: how a log goes on after a part of it was lost.

Every lost position holds a `FactLost`, so positions stay dense and are never used twice. The state
after a lost fact is unknown: facts that follow it can be read but not folded, up to the next
`LogSalvaged`. That fact says from which state the log goes on: from the one after its first `base`
facts, which is where folding stopped, or a snapshot behind the lost facts. Readable facts from
`base` on stay in the record, and the state does not include them.

The lost facts may have handed out incarnations, generations, ids of tasks and checkpoints, and
start counts. Processes and files that carry these numbers may still exist, so all counters go on
`skip` higher, and every worker and agent that the state takes for alive is declared lost: its
replacement gets a number that no process ever had. A worker that had been declared lost in the
lost facts therefore stays fenced, and its model is not taken for the newest one.
"""

from typing import TYPE_CHECKING, ClassVar

from msgspec import field, structs

from strata.core.agents import DeclareAgentLost
from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.losses import DeclareLosses, declare_together
from strata.core.state import Salvage
from strata.core.workers import DeclareLost

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task

SKIP = 1_000_000
"""More numbers than any lost part of a log has handed out: each takes at least one fact."""

MAX_SALVAGES = 16
"""Salvages that the state remembers; the log keeps them all."""

REASON = "the log was salvaged, and what became of it is in the lost part"


class FactLost(Fact, frozen=True):
    """The fact at this position could not be read when the log was salvaged. It is one of the lost
    facts `first` to `stop`, exclusive."""

    first: int
    stop: int


class LogSalvaged(Fact, frozen=True):
    """The readable part of a damaged log was taken over, and the log goes on from here.

    `lost` are ranges of positions, the stop exclusive. The state goes on from the first `base`
    facts. Counters go on `skip` higher. `lost_batches` counts batches of workers' events that are
    lost as well, -1 if that is not known.
    """

    after_loss: ClassVar[bool] = True

    base: int
    skip: int
    lost: list[tuple[int, int]] = field(default_factory=list)
    lost_batches: int = 0
    reason: str = ""


class SalvageLog(Command, frozen=True):
    """Goes on after damage. Positions up to `end` were acknowledged; those that the state has not
    reached are recorded as lost. Nothing is skipped when no fact is lost and that is certain."""

    base: int
    end: int
    lost: list[tuple[int, int]]
    lost_batches: int = 0
    certain: bool = False
    reason: str = ""


@applies(FactLost)
def _lost(state: "Cluster", fact: FactLost, event: Event) -> None:
    state.unknown_from = event.seq


@applies(LogSalvaged)
def _salvaged(state: "Cluster", fact: LogSalvaged, event: Event) -> None:
    if state.unknown_from not in (None, fact.base):
        return  # the snapshot of the base is needed to go on: the state stays unknown
    state.unknown_from = None
    state.coordinator_incarnation += fact.skip
    state.last_incarnation += fact.skip
    state.last_worker += fact.skip
    state.last_task += fact.skip
    for task in state.tasks.values():
        _skip_numbers(task, fact.skip)
    salvage = Salvage(event.seq, event.wall_ns, fact.base, fact.lost, fact.lost_batches)
    state.salvages = [*state.salvages, salvage][-MAX_SALVAGES:]


def _skip_numbers(task: "Task", skip: int) -> None:
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
    """Records what is lost, raises every counter, and declares everyone lost."""
    first = d.state.position
    for _ in range(first, c.end):
        d.record(FactLost(first, c.end), c.cause)
    skip = 0 if c.certain and not c.lost else SKIP
    salvaged = d.record(
        LogSalvaged(
            base=c.base, skip=skip, lost=c.lost, lost_batches=c.lost_batches, reason=c.reason
        ),
        c.cause,
    )
    if skip:
        declare_together(d, _everyone(d.state, salvaged))


def _everyone(state: "Cluster", cause: str) -> DeclareLosses:
    """The loss of all agents and workers that the state takes for alive."""
    return DeclareLosses(
        agents=[
            DeclareAgentLost(
                agent=agent.id, incarnation=agent.incarnation, reason=REASON, cause=(cause,)
            )
            for agent in state.agents.values()
            if agent.up
        ],
        workers=[
            DeclareLost(
                worker=worker.id,
                incarnation=worker.incarnation,
                signal="absent",
                reason=REASON,
                cause=(cause,),
            )
            for worker in state.workers.values()
            if worker.alive
        ],
    )
