"""Which steps count, and from where a new generation goes on.

Steps are numbered from 0; `committed` is how many count. A step commits when every member has
applied it: what each reports rides on messages that are sent anyway, and the commits are
recorded as runs of steps. Samples follow from steps by arithmetic, so a step that commits once
trains its samples once.

When a generation begins, each member says what its model is: of which attempt and generation,
after how many steps. Then one of these is chosen, and recorded with the candidates:

- a *peer* whose model belongs to the newest lineage and lacks no committed step; steps that it
  alone had applied commit now, since everyone goes on from its state;
- the newest committed *checkpoint*; the steps after it are voided by a rollback, which opens a new
  attempt. The order of samples is a function of the step, so the same order returns by itself;
- a *peer* of the newest lineage that lacks committed steps, where no checkpoint is newer: a worker
  that finished takes its model along, and the others may be a step behind it. This rolls back, too;
- a *fresh* start, when there is neither. Where a checkpoint was ever committed, starting again from
  step 0 needs `allow_fresh_start`; without it the task fails and names the checkpoints.

A model from an older lineage (a zombie's, one that never caught up) is never chosen.
"""

from typing import TYPE_CHECKING

from msgspec import field

from strata.core.agreements import drop_agreements_after
from strata.core.barriers import forget_arrivals
from strata.core.checkpoints import committed_newest_first
from strata.core.decision import Decision
from strata.core.events import Command, Event, Fact, applies, decides
from strata.core.fencing import WorkerCommand
from strata.core.leases import EpochAdvanced
from strata.core.limits import require_text
from strata.core.loops import drop_loops_after, trained_steps
from strata.core.storage_waits import end_storage_wait
from strata.core.tasks import Entry, Recovery, RecoverySource, change_state
from strata.errors import NotAllowedNow

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.tasks import Task


class GenerationEntered(Fact, frozen=True):
    """A member is ready for the generation, and says what its model is."""

    task: str
    worker: str
    incarnation: int
    generation: int
    model_attempt: int = 0
    model_generation: int = 0
    step: int = -1
    address: str = ""
    meeting: str = ""


class RecoveryChosen(Fact, frozen=True):
    """From where the generation goes on; `candidates` maps each possible source to its step."""

    task: str
    generation: int
    source: RecoverySource
    step: int
    worker: str = ""
    checkpoint: str = ""
    candidates: dict[str, int] = field(default_factory=dict)
    reason: str = ""


class StepsCommitted(Fact, frozen=True):
    """Steps `first` to `last`, inclusive, count."""

    task: str
    attempt: int
    generation: int
    first: int
    last: int
    reason: str


class RolledBack(Fact, frozen=True):
    """Steps from `to` up to `origin`, exclusive, no longer count; a new attempt begins."""

    task: str
    attempt: int
    origin: int
    to: int
    reason: str


class EnterGeneration(WorkerCommand, frozen=True):
    generation: int
    model_attempt: int = 0
    model_generation: int = 0
    step: int = -1
    address: str = ""
    meeting: str = ""


class CommitSteps(Command, frozen=True):
    task: str
    attempt: int
    generation: int
    steps: int


@applies(GenerationEntered)
def _entered(state: "Cluster", fact: GenerationEntered, event: Event) -> None:
    state.tasks[fact.task].entered[fact.worker] = Entry(
        fact.model_attempt, fact.model_generation, fact.step, fact.address, fact.meeting
    )


@applies(RecoveryChosen)
def _chosen(state: "Cluster", fact: RecoveryChosen, event: Event) -> None:
    task = state.tasks[fact.task]
    task.phase = "running"
    task.recovery = Recovery(
        fact.source, fact.step, fact.worker, fact.checkpoint, task.ran_generation, task.attempt
    )
    task.ran_generation = fact.generation
    task.ran_members = len(task.members)
    for member in task.members:
        worker = state.workers[member]
        worker.first_step = worker.first_step if worker.ran else fact.step
        worker.ran = fact.generation
    task.peers_refused = False
    # Whoever entered had given up waiting: what it said before must not let others pass without it.
    forget_arrivals(task, task.members)


@applies(StepsCommitted)
def _committed(state: "Cluster", fact: StepsCommitted, event: Event) -> None:
    state.tasks[fact.task].committed = fact.last + 1


@applies(RolledBack)
def _rolled_back(state: "Cluster", fact: RolledBack, event: Event) -> None:
    task = state.tasks[fact.task]
    task.attempt = fact.attempt
    task.committed = fact.to
    drop_loops_after(task, fact.to)
    drop_agreements_after(task, fact.to)
    for feed in task.feeds.values():
        if feed.unit == "lane":
            samples = state.datasets[feed.dataset].spec.total_samples
            trained = trained_steps(task.loops, feed.dataset, fact.to)
            feed.epoch = trained * feed.global_batch // samples


@decides(EnterGeneration)
def enter(d: Decision, c: EnterGeneration) -> "Task":
    """Takes a member into its generation; the last one lets the recovery be chosen."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if worker.rank < 0 or c.generation != task.generation or task.ended:
        raise NotAllowedNow(
            f"worker {c.worker!r} enters generation {c.generation} of task {task.id!r}, "
            f"which is at {task.generation}",
            hint="wait for the generation that includes this worker",
        )
    require_text(address=c.address, meeting=c.meeting)
    if c.worker in task.entered:
        return task
    entered = GenerationEntered(
        task.id,
        c.worker,
        c.incarnation,
        c.generation,
        c.model_attempt,
        c.model_generation,
        c.step,
        c.address,
        c.meeting,
    )
    recover_if_ready(d, task, d.record(entered, c.cause))
    return task


def recover_if_ready(d: Decision, task: "Task", cause: str) -> None:
    """Chooses the recovery once every member has entered and no checkpoint is half decided."""
    if task.phase != "syncing" or len(task.entered) < len(task.members):
        return
    if task.ended:
        return
    choice = None if task.peers_refused else _from_peer(task)
    if choice is None:
        if any(c.state == "sealing" for c in task.checkpoints.values()):
            return
        choice = _from_checkpoint_or_behind(task)
    if choice.source == "fresh" and task.saved and not task.spec.allow_fresh_start:
        return _fail_unrestorable(d, task, cause)
    chosen = d.record(choice, cause)
    if choice.step > task.committed:
        commit_steps(d, task, choice.step, f"worker {choice.worker} had applied them", chosen)
    elif choice.step < task.committed:
        chosen = d.record(
            RolledBack(task.id, task.attempt + 1, task.committed, choice.step, choice.reason),
            chosen,
        )
    if task.state in ("starting", "recovering"):
        change_state(d, task, "running", f"generation {task.generation} trains", chosen)


def _from_peer(task: "Task") -> RecoveryChosen | None:
    """The most advanced model of the newest lineage, if no committed step is missing in it."""
    candidates = _models(task, task.committed)
    if not candidates or not _whole(task, candidates):
        return None
    worker = max(candidates, key=lambda w: candidates[w])
    return RecoveryChosen(
        task.id,
        task.generation,
        "peer",
        candidates[worker],
        worker=worker,
        candidates=candidates,
        reason=f"worker {worker} holds the most advanced model",
    )


def _models(task: "Task", least_step: int) -> dict[str, int]:
    """Members with a model of the newest lineage that had at least so many steps."""
    return {
        worker: entry.step
        for worker, entry in task.entered.items()
        if entry.step >= least_step
        and (entry.attempt, entry.generation) == (task.attempt, task.ran_generation)
    }


def _whole(task: "Task", candidates: dict[str, int]) -> bool:
    """Whether the candidates together hold the model: one replica, or every shard of one step."""
    if task.spec.model_state == "replicated":
        return True
    complete = len(candidates) == len(task.members) == task.ran_members
    return complete and len(set(candidates.values())) == 1


def _from_checkpoint_or_behind(task: "Task") -> RecoveryChosen:
    """The newest checkpoint, or a member that lacks committed steps and is further than that."""
    saved = _from_checkpoint(task)
    behind = {} if task.peers_refused else _models(task, 0)
    if not behind or not _whole(task, behind):
        return saved
    worker = max(behind, key=lambda w: behind[w])
    if behind[worker] < saved.step:
        return saved
    return RecoveryChosen(
        task.id,
        task.generation,
        "peer",
        behind[worker],
        worker=worker,
        candidates={**saved.candidates, **behind},
        reason=f"worker {worker} holds the most advanced model that is left",
    )


def _fail_unrestorable(d: Decision, task: "Task", cause: str) -> None:
    """Fails a task instead of training again from step 0 what its checkpoints had saved."""
    if task.state not in ("running", "recovering"):
        return  # its workers are leaving
    known = [c for c in task.checkpoints.values() if c.damaged or c.state == "deleted"]
    names = ", ".join(f"{c.id} ({'damaged' if c.damaged else c.state})" for c in known)
    reason = (
        f"no checkpoint can be restored and no worker holds a model: {names}. Training does not "
        f"start again from step 0 by itself. Repair a checkpoint and start a task with "
        f'run.restore(..., resume="{task.id}/CHECKPOINT"), or start again from step 0 with: '
        f"strata restart {task.id}"
    )
    change_state(d, task, "failed", reason, cause, 1)


def _from_checkpoint(task: "Task") -> RecoveryChosen:
    real = committed_newest_first(task)
    candidates = {checkpoint.id: checkpoint.step for checkpoint in real}
    if not real:
        reason = "nothing was saved and no worker holds a usable model"
        return RecoveryChosen(task.id, task.generation, "fresh", 0, reason=reason)
    newest = real[0]
    return RecoveryChosen(
        task.id,
        task.generation,
        "checkpoint",
        newest.step,
        checkpoint=newest.id,
        candidates=candidates,
        reason="the newest committed checkpoint; no worker holds a usable model",
    )


@decides(CommitSteps)
def commit_reported(d: Decision, c: CommitSteps) -> int:
    """Commits what every member has reported; words about an older generation are ignored."""
    task = d.state.task(c.task)
    if (c.attempt, c.generation, "running") == (task.attempt, task.generation, task.phase):
        commit_steps(d, task, c.steps, "every member applied them", c.cause)
        end_storage_wait(d, task, c.cause)
    return task.committed


def commit_steps(
    d: Decision, task: "Task", steps: int, reason: str, cause: str | tuple[str, ...]
) -> None:
    """Commits up to `steps` steps, and notes where that ends an epoch."""
    if steps <= task.committed:
        return
    committed = d.record(
        StepsCommitted(task.id, task.attempt, task.generation, task.committed, steps - 1, reason),
        cause,
    )
    for feed in task.feeds.values():
        if feed.unit != "lane":
            continue
        samples = d.state.dataset(feed.dataset).spec.total_samples
        trained = trained_steps(task.loops, feed.dataset, task.committed)
        epoch = trained * feed.global_batch // samples
        if epoch > feed.epoch:
            d.record(
                EpochAdvanced(
                    task.id, feed.dataset, epoch, task.committed, "its steps are committed"
                ),
                committed,
            )
