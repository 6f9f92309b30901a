"""Waiting for storage: a checkpoint that cannot be reached is not a damaged one.

A member that cannot read the chosen checkpoint because its storage is unreachable (no connection, a
missing mount, refused credentials, an object that is not listed) reports that and retries. The task
is `recovering`, its reason names the storage, and the checkpoint stays committed. If the storage
was reached and lists other files but lacks one of this checkpoint, the reason names the command
that deletes the checkpoint (`core/checkpoints/checkpoint_retention`). The wait ends when every
waiting member has the model. After `storage_timeout_s` (`core/workers/liveness`) the task fails
with its checkpoints unchanged; it never starts again from step 0.
"""

from strata.core.checkpoints.checkpoint_lifecycle import committed_newest_first
from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.limits import shortened
from strata.core.state import Cluster
from strata.core.task_state import StorageWait, Task
from strata.core.tasks.task_lifecycle import change_state
from strata.core.workers.fencing import WorkerCommand
from strata.errors import InvalidArgument

SECOND_NS = 1_000_000_000


class StorageUnreachable(Fact, frozen=True, kw_only=True):
    """A member cannot read the chosen checkpoint now and keeps retrying."""

    sentence = "{worker} cannot read checkpoint {checkpoint} from storage[: {reason}]"

    task: str
    worker: str
    generation: int
    checkpoint: str
    reason: str
    missing: bool = False


class StorageReached(Fact, frozen=True, kw_only=True):
    """A member no longer waits for storage; `ended` if it was the last one."""

    sentence = "{task} waited {waited_s} for storage[: {reason}]"

    task: str
    worker: str
    waited_s: float
    ended: bool
    reason: str


class ReportStorage(WorkerCommand, frozen=True):
    """Sent by a member when it begins to wait for storage, and when it has the model.

    `missing`: the storage was reached and lists other files, but not one of the checkpoint.
    """

    generation: int
    reachable: bool
    reason: str = ""
    missing: bool = False


class GiveUpStorage(Command, frozen=True):
    """The storage of a task has been unreachable for too long."""

    task: str
    timeout_s: float


@applies(StorageUnreachable)
def _unreachable(state: Cluster, fact: StorageUnreachable, event: Event) -> None:
    task = state.tasks[fact.task]
    if task.storage_wait is None:
        task.storage_wait = StorageWait(since_ns=event.wall_ns, reason=fact.reason)
    task.storage_wait.reason = _advice(fact) if fact.missing else fact.reason
    task.storage_wait.missing = fact.missing
    if fact.worker not in task.storage_wait.workers:
        task.storage_wait.workers.append(fact.worker)
    state.workers[fact.worker].reason = _words(fact)


def _advice(fact: StorageUnreachable) -> str:
    return (
        f"{fact.reason}. Restore the file, or give this checkpoint up: "
        f"strata checkpoints rm {fact.checkpoint} --task {fact.task}"
    )


def _words(fact: StorageUnreachable) -> str:
    if fact.missing:
        return f"checkpoint {fact.checkpoint} lacks a file: {_advice(fact)}"
    return f"storage unreachable: {fact.reason}"


@applies(StorageReached)
def _reached(state: Cluster, fact: StorageReached, event: Event) -> None:
    task = state.tasks[fact.task]
    assert task.storage_wait is not None, "only a wait that began can end"
    if fact.worker in task.storage_wait.workers:
        task.storage_wait.workers.remove(fact.worker)
        state.workers[fact.worker].reason = ""
    if fact.ended:
        task.storage_wait = None


@decides(ReportStorage)
def report(d: Decision, c: ReportStorage) -> Task:
    """Record that a member waits for storage, or no longer does; repeating changes nothing."""
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    if c.reachable:
        return _note_reached(d, task, c)
    if not c.reason:
        raise InvalidArgument(
            "unreachable storage was reported without a reason", hint="give the error's text"
        )
    wait = task.storage_wait
    known = wait is not None and c.worker in wait.workers and wait.missing == c.missing
    source = task.recovery
    current = c.generation == task.generation and task.phase == "running"
    if task.ended or not current or source is None or not source.checkpoint:
        return task
    cause: str | tuple[str, ...] = c.cause
    found = StorageUnreachable(
        task=task.id,
        worker=c.worker,
        generation=c.generation,
        checkpoint=source.checkpoint,
        reason=shortened(c.reason),
        missing=c.missing,
    )
    if not known:
        cause = d.record(found, c.cause)
    if task.state == "running":
        change_state(d, task, "recovering", _words(found), cause)
    return task


def _note_reached(d: Decision, task: Task, c: ReportStorage) -> Task:
    wait = task.storage_wait
    if wait is None or c.worker not in wait.workers:
        return task
    ended = wait.workers == [c.worker]
    _record_reached(d, task, c.worker, ended, f"worker {c.worker} has the model", c.cause)
    return task


def end_storage_wait(d: Decision, task: Task, cause: tuple[str, ...]) -> None:
    """End a wait because every member has applied a step: all of them have the model."""
    if task.storage_wait is not None:
        _record_reached(d, task, "", True, "every member trains", cause)


def _record_reached(
    d: Decision, task: Task, worker: str, ended: bool, reason: str, cause: tuple[str, ...]
) -> None:
    assert task.storage_wait is not None
    waited_s = max(d.now.wall_ns - task.storage_wait.since_ns, 0) / SECOND_NS
    reached = d.record(
        StorageReached(task=task.id, worker=worker, waited_s=waited_s, ended=ended, reason=reason),
        cause,
    )
    if ended and task.state == "recovering" and task.phase == "running":
        change_state(d, task, "running", f"generation {task.generation} trains", reached)


@decides(GiveUpStorage)
def fail_after_timeout(d: Decision, c: GiveUpStorage) -> None:
    """Fail a task that still waits for storage; its checkpoints stay unchanged."""
    task = d.state.tasks.get(c.task)
    if task is None or task.storage_wait is None or not task.storage_wait.workers:
        return
    if task.state not in ("running", "recovering"):
        return
    saved = ", ".join(checkpoint.id for checkpoint in committed_newest_first(task))
    reason = (
        f"storage was unreachable for {c.timeout_s:g} s (storage_timeout_s): "
        f"{task.storage_wait.reason}. No checkpoint was changed ({saved}). When the storage is "
        f'back, start a task with run.restore(..., from_="{task.id}")'
    )
    change_state(d, task, "failed", reason, c.cause, 1)


class StorageDeadlines:
    """Deadlines of waiting tasks by the monotonic clock: soft state of the liveness watch."""

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._deadlines: dict[str, int] = {}

    def follow(self, fact: StorageUnreachable | StorageReached, now_ns: int) -> None:
        """Update the deadlines after a fact."""
        if isinstance(fact, StorageUnreachable):
            self.expect(fact.task, now_ns)
        elif fact.ended:
            self._deadlines.pop(fact.task, None)

    def expect(self, task: str, now_ns: int) -> None:
        """Start the deadline of a task, when its first member waits."""
        self._deadlines.setdefault(task, now_ns + self._timeout_ns)

    def credit(self, gap_ns: int) -> None:
        """Move every deadline by the time in which the coordinator did not run."""
        self._deadlines = {task: at_ns + gap_ns for task, at_ns in self._deadlines.items()}

    def moments(self) -> list[int]:
        """The times of the deadlines."""
        return list(self._deadlines.values())

    def overdue(self, now_ns: int) -> list[Command]:
        """Commands for expired deadlines."""
        over = [task for task, deadline_ns in self._deadlines.items() if deadline_ns <= now_ns]
        for task in over:
            del self._deadlines[task]
        return [GiveUpStorage(task=task, timeout_s=self._timeout_ns / SECOND_NS) for task in over]
