"""When members cannot go on as it was chosen: told, recorded, and agreed upon anew.

*The source cannot be had.* A generation goes on from one source, the same for everyone. If a member
cannot take it over, a new generation of the same members begins, and the choice is made again
without what failed:

- a *checkpoint* whose bytes were read and did not verify is damaged and has failed. A member that
  read it whole holds its model, so the others may take it from there; else the checkpoint before
  it is chosen. A checkpoint that cannot be reached has not failed (`core/storage_waits`);
- a *peer* that could not be reached leaves the newest checkpoint. Without one there is nothing to
  choose, and the refusal is the member's own to bear.

*The members cannot reach one another.* A step is applied by all or by none, so a link that breaks
between two living members ends the generation, and the same members form the next one.
"""

from typing import TYPE_CHECKING

from strata.core.checkpoints import committed_newest_first, record_failure
from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies, decides
from strata.core.fencing import WorkerCommand
from strata.core.generations import begin_again, complete
from strata.core.limits import shortened
from strata.core.standing import model_holders
from strata.core.tasks import RecoverySource
from strata.errors import NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task


class RecoveryRefused(Fact, frozen=True):
    """A member could not take over the source that was chosen."""

    task: str
    worker: str
    generation: int
    source: RecoverySource
    reason: str


class RefuseRecovery(WorkerCommand, frozen=True):
    """`damaged`: the bytes of the checkpoint were read and did not verify."""

    generation: int
    reason: str
    damaged: bool = False


class ExchangeBroken(Fact, frozen=True):
    """A member lost its link to another in the middle of a generation."""

    task: str
    worker: str
    generation: int
    reason: str


class ReportBrokenExchange(WorkerCommand, frozen=True):
    generation: int
    reason: str


@applies(ExchangeBroken)
def _broken(state: "Cluster", fact: ExchangeBroken, event: Event) -> None:
    """The generation that follows is the consequence."""


@decides(ReportBrokenExchange)
def break_exchange(d: Decision, c: ReportBrokenExchange) -> "Task":
    """Begins a new generation of the same members; repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if c.generation == task.generation and task.phase == "running" and not task.ended:
        reason = shortened(c.reason)
        cause = d.record(ExchangeBroken(task.id, c.worker, c.generation, reason), c.cause)
        begin_again(d, task, f"worker {c.worker} lost its link to the others: {reason}", cause)
    return task


@applies(RecoveryRefused)
def _refused(state: "Cluster", fact: RecoveryRefused, event: Event) -> None:
    state.tasks[fact.task].peers_refused = fact.source == "peer"


@decides(RefuseRecovery)
def refuse(d: Decision, c: RefuseRecovery) -> "Task":
    """Begins a new generation without the source; repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    source = task.recovery
    if c.generation != task.generation or task.phase != "running" or source is None:
        return task
    if source.source == "peer" and _giver_finished(task):
        complete(d, task, "the workers that held the model had finished", c.cause)
        return task
    _require_another(task, source.source)
    if source.source == "checkpoint" and not c.damaged:
        raise NotAllowedNow(
            f"checkpoint {source.checkpoint!r} was refused without being damaged",
            hint="report unreachable storage with ReportStorage and try again",
        )
    reason = shortened(c.reason)
    cause = d.record(
        RecoveryRefused(task.id, c.worker, c.generation, source.source, reason), c.cause
    )
    checkpoint = task.checkpoints.get(source.checkpoint)
    if checkpoint is not None and checkpoint.state == "committed":
        record_failure(d, task, checkpoint, f"worker {c.worker}: {reason}", cause)
    begin_again(d, task, f"worker {c.worker} could not restore: {reason}", cause)
    return task


def _giver_finished(task: "Task") -> bool:
    """Whether every member that brought the chosen model has finished since: its result stands."""
    holders = set(model_holders(task))
    replicated = task.spec.model_state == "replicated"
    return replicated and bool(holders) and holders <= set(task.finished)


def _require_another(task: "Task", source: RecoverySource) -> None:
    if source == "fresh" or (source == "peer" and not committed_newest_first(task)):
        raise NotAllowedNow(
            f"task {task.id!r} has no other source than the {source} one that was chosen",
            hint="save checkpoints, so that there is something to fall back to",
        )
