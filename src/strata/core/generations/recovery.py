"""Committed steps, and where a new generation resumes.

Steps are numbered from 0; `committed` is the number of committed steps. A step commits when every
member has applied it. Members report their steps with their heartbeats, and commits are recorded as
ranges of steps. The samples of a step follow from its number, so a step that commits once trains
its samples once.

When a generation begins, each member reports its model: attempt, generation and number of steps.
Then one source is chosen, and recorded with the candidates:

- a *peer* whose model belongs to the newest lineage and lacks no committed step; steps that only
  this peer had applied commit now, since all members resume from its state;
- the newest committed *checkpoint*; the steps after it are rolled back, which starts a new attempt.
  The order of samples is a function of the step, so they come in the same order again;
- a *peer* of the newest lineage that lacks committed steps, if no checkpoint is newer: a worker
  that finished takes its model along, and the others may be a step behind it. This is a rollback
  too;
- a *fresh* start, if there is neither. If a checkpoint was ever committed, a fresh start needs
  `allow_fresh_start`; without it the task fails and names the checkpoints.

A model of an older lineage (of a fenced worker, or one that never caught up) is never chosen.
"""

from msgspec import field

from strata.core.barriers.agreements import drop_agreements_after
from strata.core.barriers.barrier_rules import drop_arrivals
from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.datasets.shard_leases import EpochAdvanced
from strata.core.datasets.training_loops import drop_loops_after, trained_steps
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.generations.storage_waits import end_storage_wait
from strata.core.limits import require_text
from strata.core.state import Cluster
from strata.core.task_state import Entry, Recovery, RecoverySource, Task
from strata.core.tasks.framework_trainer import declare_trainer
from strata.core.tasks.task_lifecycle import change_state
from strata.core.workers.fencing import WorkerCommand
from strata.errors import NotAllowedNow


class GenerationEntered(Fact, frozen=True, kw_only=True):
    """A member entered the generation and reported its model."""

    sentence = (
        "{worker} entered generation {generation} [with a model at step {step}|without a model]"
    )

    task: str
    worker: str
    incarnation: int
    generation: int
    model_attempt: int = 0
    model_generation: int = 0
    step: int = -1
    address: str = ""
    meeting: str = ""


class RebuildDeclared(Fact, frozen=True, kw_only=True):
    """A worker builds its model again in each generation, from the newest checkpoint."""

    sentence = "{worker} builds its model again in each generation of {task}"

    task: str
    worker: str


class RecoveryChosen(Fact, frozen=True, kw_only=True):
    """Where the generation resumes; `candidates` maps each possible source to its step."""

    sentence = (
        "generation {generation} of {task} continues at step {step} (state: {source}[ "
        "{checkpoint}][ {worker}])[: {reason}]"
    )

    task: str
    generation: int
    source: RecoverySource
    step: int
    worker: str = ""
    checkpoint: str = ""
    candidates: dict[str, int] = field(default_factory=dict)
    reason: str = ""


class StepsCommitted(Fact, frozen=True, kw_only=True):
    """Steps `first` to `last`, inclusive, were committed."""

    sentence = "steps {first} to {last} of {task} were committed[: {reason}]"

    task: str
    attempt: int
    generation: int
    first: int
    last: int
    reason: str


class RolledBack(Fact, frozen=True, kw_only=True):
    """Steps from `to` up to `origin`, exclusive, were undone; a new attempt begins."""

    sentence = "{task} rolled back from step {origin} to step {to}[: {reason}]"

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
    rebuilds: bool = False
    trainer: str = ""


class CommitSteps(Command, frozen=True):
    task: str
    attempt: int
    generation: int
    steps: int


@applies(GenerationEntered)
def _entered(state: Cluster, fact: GenerationEntered, event: Event) -> None:
    state.tasks[fact.task].entered[fact.worker] = Entry(
        attempt=fact.model_attempt,
        generation=fact.model_generation,
        step=fact.step,
        address=fact.address,
        meeting=fact.meeting,
    )


@applies(RebuildDeclared)
def _rebuilds(state: Cluster, fact: RebuildDeclared, event: Event) -> None:
    state.tasks[fact.task].rebuilds = True


@applies(RecoveryChosen)
def _chosen(state: Cluster, fact: RecoveryChosen, event: Event) -> None:
    task = state.tasks[fact.task]
    task.phase = "running"
    task.recovery = Recovery(
        source=fact.source,
        step=fact.step,
        worker=fact.worker,
        checkpoint=fact.checkpoint,
        model_generation=task.ran_generation,
        model_attempt=task.attempt,
    )
    task.ran_generation = fact.generation
    task.ran_members = len(task.members)
    for member in task.members:
        worker = state.workers[member]
        worker.first_step = worker.first_step if worker.ran else fact.step
        worker.ran = fact.generation
    task.peers_refused = False
    # A member that entered no longer waits at a barrier: its arrival must not release others.
    drop_arrivals(task, task.members)


@applies(StepsCommitted)
def _committed(state: Cluster, fact: StepsCommitted, event: Event) -> None:
    state.tasks[fact.task].committed = fact.last + 1


@applies(RolledBack)
def _rolled_back(state: Cluster, fact: RolledBack, event: Event) -> None:
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
def enter(d: Decision, c: EnterGeneration) -> Task:
    """Record that a member entered its generation; after the last one the recovery is chosen.

    A script may declare later that it builds its model again, or that a framework trains it: the
    worker then enters once more.
    """
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if worker.rank < 0 or c.generation != task.generation or task.ended:
        raise NotAllowedNow(
            f"worker {c.worker!r} enters generation {c.generation} of task {task.id!r}, "
            f"which is at {task.generation}",
            hint="wait for the generation that includes this worker",
        )
    require_text(address=c.address, meeting=c.meeting, trainer=c.trainer)
    if c.rebuilds and not task.rebuilds:
        d.record(RebuildDeclared(task=task.id, worker=c.worker), c.cause)
    if c.trainer:
        declare_trainer(d, task, c.worker, c.trainer, c.cause)
    if c.worker in task.entered:
        return task
    entered = GenerationEntered(
        task=task.id,
        worker=c.worker,
        incarnation=c.incarnation,
        generation=c.generation,
        model_attempt=c.model_attempt,
        model_generation=c.model_generation,
        step=c.step,
        address=c.address,
        meeting=c.meeting,
    )
    recover_if_ready(d, task, d.record(entered, c.cause))
    return task


def recover_if_ready(d: Decision, task: Task, cause: str) -> None:
    """Choose the recovery once every member has entered and no checkpoint is being sealed."""
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
            RolledBack(
                task=task.id,
                attempt=task.attempt + 1,
                origin=task.committed,
                to=choice.step,
                reason=choice.reason,
            ),
            chosen,
        )
    if task.state in ("starting", "recovering"):
        change_state(d, task, "running", f"generation {task.generation} trains", chosen)


def _from_peer(task: Task) -> RecoveryChosen | None:
    """The most advanced model of the newest lineage, if it lacks no committed step."""
    candidates = _models(task, task.committed)
    if not candidates or not _whole(task, candidates):
        return None
    worker = max(candidates, key=lambda w: candidates[w])
    return RecoveryChosen(
        task=task.id,
        generation=task.generation,
        source="peer",
        step=candidates[worker],
        worker=worker,
        candidates=candidates,
        reason=f"worker {worker} holds the most advanced model",
    )


def _models(task: Task, least_step: int) -> dict[str, int]:
    """Members with a model of the newest lineage that has at least `least_step` steps."""
    return {
        worker: entry.step
        for worker, entry in task.entered.items()
        if entry.step >= least_step
        and (entry.attempt, entry.generation) == (task.attempt, task.ran_generation)
    }


def _whole(task: Task, candidates: dict[str, int]) -> bool:
    """Whether the candidates together hold the model: one replica, or every shard of one step."""
    if task.spec.model_state == "replicated":
        return True
    complete = len(candidates) == len(task.members) == task.ran_members
    return complete and len(set(candidates.values())) == 1


def _from_checkpoint_or_behind(task: Task) -> RecoveryChosen:
    """The newest checkpoint, or a member that lacks committed steps but is further than it."""
    saved = _from_checkpoint(task)
    behind = {} if task.peers_refused else _models(task, 0)
    if not behind or not _whole(task, behind):
        return saved
    worker = max(behind, key=lambda w: behind[w])
    if behind[worker] < saved.step:
        return saved
    return RecoveryChosen(
        task=task.id,
        generation=task.generation,
        source="peer",
        step=behind[worker],
        worker=worker,
        candidates={**saved.candidates, **behind},
        reason=f"worker {worker} holds the most advanced model that is left",
    )


def _fail_unrestorable(d: Decision, task: Task, cause: str) -> None:
    """Fail a task whose checkpoints cannot be restored, instead of training again from step 0."""
    if task.state not in ("starting", "running", "recovering"):
        return  # its workers are leaving
    known = [c for c in task.checkpoints.values() if c.damaged or c.state == "deleted"]
    names = ", ".join(f"{c.id} ({'damaged' if c.damaged else c.state})" for c in known)
    reason = (
        f"no checkpoint can be restored and no worker holds a model: {names}. Training does not "
        f"start again from step 0 by itself. Repair a checkpoint and start a task with "
        f'run.restore(..., from_="{task.id}/CHECKPOINT"), or start again from step 0 with: '
        f"strata restart {task.id}"
    )
    change_state(d, task, "failed", reason, cause, 1)


def _from_checkpoint(task: Task) -> RecoveryChosen:
    real = committed_newest_first(task)
    candidates = {checkpoint.id: checkpoint.step for checkpoint in real}
    if not real:
        reason = "nothing was saved and no worker holds a usable model"
        return RecoveryChosen(
            task=task.id, generation=task.generation, source="fresh", step=0, reason=reason
        )
    newest = real[0]
    return RecoveryChosen(
        task=task.id,
        generation=task.generation,
        source="checkpoint",
        step=newest.step,
        checkpoint=newest.id,
        candidates=candidates,
        reason="the newest committed checkpoint; no worker holds a usable model",
    )


@decides(CommitSteps)
def commit_reported(d: Decision, c: CommitSteps) -> int:
    """Commit what every member has reported; reports about an older generation are ignored."""
    task = d.state.task(c.task)
    if (c.attempt, c.generation, "running") == (task.attempt, task.generation, task.phase):
        commit_steps(d, task, c.steps, "every member applied them", c.cause)
        end_storage_wait(d, task, c.cause)
    return task.committed


def commit_steps(
    d: Decision, task: Task, steps: int, reason: str, cause: str | tuple[str, ...]
) -> None:
    """Commit up to `steps` steps, and record the end of an epoch."""
    if steps <= task.committed:
        return
    committed = d.record(
        StepsCommitted(
            task=task.id,
            attempt=task.attempt,
            generation=task.generation,
            first=task.committed,
            last=steps - 1,
            reason=reason,
        ),
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
                    task=task.id,
                    dataset=feed.dataset,
                    epoch=epoch,
                    step=task.committed,
                    reason="its steps are committed",
                ),
                committed,
            )
