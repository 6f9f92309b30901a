"""Failed recoveries: members that cannot restore the chosen source, or cannot reach each other.

*The source cannot be restored.* All members of a generation resume from the same source. If a
member cannot restore it, a new generation of the same members begins, and the choice is made again
without that source:

- a *checkpoint* whose bytes were read and did not match their checksums is damaged and has failed.
  If a member has read it whole, the others may fetch the model from that member; else the
  checkpoint before it is chosen. A checkpoint that cannot be reached has not failed
  (`core/generations/storage_waits`);
- after a *peer* that could not be reached, the newest checkpoint is chosen. Without one there is no
  other source, and the refusing worker gets an error.

*Members cannot reach each other.* A step is applied by all members or by none, so a broken
connection between two living members ends the generation, and the same members form the next one.
"""

from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first, record_failure
from strata.core.decision import Decision, applies, decides
from strata.core.events import Event, Fact
from strata.core.generations.generation_members import complete, restart_generation
from strata.core.limits import shortened
from strata.core.state import Cluster
from strata.core.task_state import RecoverySource, Task
from strata.core.tasks.standing import model_holders
from strata.core.workers.fencing import WorkerCommand
from strata.errors import NotAllowedNow


class RecoveryRefused(Fact, frozen=True, kw_only=True):
    """A member could not restore the chosen source."""

    sentence = "{worker} could not restore its state (source: {source})[: {reason}]"

    task: str
    worker: str
    generation: int
    source: RecoverySource
    reason: str


class RefuseRecovery(WorkerCommand, frozen=True):
    """`damaged`: the bytes of the checkpoint were read and did not match their checksums."""

    generation: int
    reason: str
    damaged: bool = False


class ExchangeBroken(Fact, frozen=True, kw_only=True):
    """A member lost its connection to another member during a generation."""

    sentence = "{worker} could not exchange data with its peers[: {reason}]"

    task: str
    worker: str
    generation: int
    reason: str


class ReportBrokenExchange(WorkerCommand, frozen=True):
    generation: int
    reason: str


@applies(ExchangeBroken)
def _broken(state: Cluster, fact: ExchangeBroken, event: Event) -> None:
    """Change nothing: the next generation is the consequence."""


@decides(ReportBrokenExchange)
def break_exchange(d: Decision, c: ReportBrokenExchange) -> Task:
    """Start a new generation of the same members; repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if c.generation == task.generation and task.phase == "running" and not task.ended:
        reason = shortened(c.reason)
        cause = d.record(
            ExchangeBroken(task=task.id, worker=c.worker, generation=c.generation, reason=reason),
            c.cause,
        )
        restart_generation(
            d, task, f"worker {c.worker} lost its connection to other members: {reason}", cause
        )
    return task


@applies(RecoveryRefused)
def _refused(state: Cluster, fact: RecoveryRefused, event: Event) -> None:
    state.tasks[fact.task].peers_refused = fact.source == "peer"


@decides(RefuseRecovery)
def refuse(d: Decision, c: RefuseRecovery) -> Task:
    """Start a new generation without the source; repeating changes nothing."""
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
        RecoveryRefused(
            task=task.id,
            worker=c.worker,
            generation=c.generation,
            source=source.source,
            reason=reason,
        ),
        c.cause,
    )
    checkpoint = task.checkpoints.get(source.checkpoint)
    if checkpoint is not None and checkpoint.state == "committed":
        record_failure(d, task, checkpoint, f"worker {c.worker}: {reason}", cause)
    restart_generation(d, task, f"worker {c.worker} could not restore: {reason}", cause)
    return task


def _giver_finished(task: Task) -> bool:
    """Whether every member that held the chosen model has finished since: its result is final."""
    holders = set(model_holders(task))
    replicated = task.spec.model_state == "replicated"
    return replicated and bool(holders) and holders <= set(task.finished)


def _require_another(task: Task, source: RecoverySource) -> None:
    if source == "fresh" or (source == "peer" and not committed_newest_first(task)):
        raise NotAllowedNow(
            f"task {task.id!r} has no other source to restore than the chosen {source}",
            hint="save checkpoints, so that the task can fall back to one",
        )
