"""`strata.join`: the front door for a training script.

    with strata.join() as run:
        run.restore(model=model, optimizer=optimizer)   # where the run goes on, else as given
        for epoch in run.epochs(3):
            for batch in run.loader(train_set, batch_size=32):
                with run.step() as step:                # applied by every worker or by none
                    loss = train_step(model, optimizer, batch)
                    step.log(loss=loss)
            accuracy = run.evaluate(valid_set, score)

`join` registers, opens the session and waits until a generation includes this worker. From then on
the run sends heartbeats and records events and output by itself, and saves when a checkpoint is
due. `run.rank`, `run.world_size` and `run.generation` are those that the script has entered; they
change between two steps.

When the task stops, or SIGTERM comes, a last checkpoint is saved and the loop raises
`StopRequested`, which the `with` block takes: code after the loop runs only when the loop came to
its end. Leaving the block says how it went: at its end `done`, after a stop `stopped`, after an
exception `failed` with the reason, after Ctrl-C `stopped`.
"""

import atexit
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from strata.core.events import Fact
from strata.core.worker_facts import RunEnded
from strata.core.workers import Outcome
from strata.errors import Fenced, StrataError, TaskEnded
from strata.sdk import embedded, enrolment
from strata.sdk.capture import Capture, capture_output
from strata.sdk.due import policy_of
from strata.sdk.final_save import RunWentBack
from strata.sdk.keeping import Keeping
from strata.sdk.remarks import Remarks
from strata.sdk.request_log import LAST_KINDS
from strata.sdk.resources import ResourceSampler
from strata.sdk.run_decisions import RunDecisions
from strata.sdk.signals import StopRequested
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 10.0
SAVE_TIMEOUT_S = 600.0


def join(
    coordinator: str | None = None,
    worker_id: str | None = None,
    task: str | None = None,
    world_size: int | None = None,
    *,
    gpu_count: int | None = None,
    weight: int = 1,
    metadata: dict[str, str] | None = None,
    capture: bool = True,
    timeout: float | None = None,
    connect_timeout: float | None = None,
    reconnect_limit: float | None = None,
    resource_interval: float | None = None,
    spool_dir: str | Path | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_interval: float | None = None,
) -> "Run":
    """Joins a task as one of its workers; what is not given comes from the environment.

    Where no coordinator is named, one is started for this process alone (see `sdk.embedded`).

    `timeout` is how long to wait for the others (for ever by default), `connect_timeout` for the
    coordinator at the start (10 s, or for ever where an agent started this process), and
    `reconnect_limit` for it to come back later (for ever by default), all in seconds.
    `capture=False` leaves stdout, stderr and logging alone.

    `checkpoint_every` (steps) and `checkpoint_interval` (seconds) say when a save is due, in place
    of the adaptive interval; they win over the task's config. `checkpoint_dir` is under which
    root this worker sees the coordinator's checkpoints, where that is another one.
    """
    settings = embedded.settings_for_join(
        coordinator_addr=coordinator,
        worker_id=worker_id,
        task=task,
        world_size=world_size,
        gpu_count=gpu_count,
        resource_interval_s=resource_interval,
        spool_dir=None if spool_dir is None else str(spool_dir),
        checkpoint_dir=None if checkpoint_dir is None else str(checkpoint_dir),
    )
    sampler = ResourceSampler()
    cards = settings.gpu_count
    request = enrolment.registration(
        settings,
        syncs=True,
        gpu_count=len(sampler.sample().gpu_metrics) if cards is None else cards,
        weight=weight,
        labels=metadata,
    )
    with _quiet_end():
        enrolled, answer = enrolment.enrol(settings, request, connect_timeout)
    worker = Worker(enrolled, answer, sampler, settings, reconnect_limit)
    config = msgspec.json.decode(answer.config.get("config") or "{}", type=dict[str, object])
    policy = policy_of(settings, config, checkpoint_every, checkpoint_interval)
    keeping = Keeping(worker, settings, dict(answer.config), policy)
    run = Run(worker, keeping, answer.task_id, config)
    lines = worker.lines if settings.capture_output else None
    return run.begun(Remarks(worker.recorder, lines) if capture else None, timeout)


class Run(RunDecisions):
    """A worker's part in a task. Made by `join`; its methods are for the training thread."""

    def __init__(
        self, worker: Worker, keeping: Keeping, task_id: str, config: dict[str, object]
    ) -> None:
        self.task_id = task_id
        self.config = config
        super().__init__(worker, keeping)
        self._capture: Capture | None = None

    def measure(self, pid: int) -> None:
        """What this worker uses is from now on what that process uses, which works for it."""
        self._worker.sampler.follow(pid)

    def emit(self, fact: Fact, cause: tuple[str, ...] = (), op: str = "") -> None:
        """Records a fact; takes less than a microsecond, never blocks, never raises."""
        self._worker.recorder.emit(fact, cause, op)

    def leave(self, outcome: Outcome = "done", reason: str = "") -> None:
        """Delivers what was recorded, and leaves; harmless when repeated, and in a forked child."""
        if self._left or self._session.forked:
            return
        self._left = True
        _open_runs.discard(self)
        self._notice.restore()
        if self._capture is not None:
            self._capture.restore()
        if outcome == "done":
            self._tell_loop_left()
            self._settle_numbers()
        for feed in self._feeds:
            feed.close()
        worker, timeout_s = self._worker, LEAVE_TIMEOUT_S if outcome == "failed" else SAVE_TIMEOUT_S
        unsaved, went_back = "", None
        try:
            unsaved = self._keeping.finish(outcome, worker.epoch, timeout_s)
        except RunWentBack as error:
            outcome, reason, went_back = "failed", str(error), error
        self._exchanges.close()
        worker.recorder.emit(RunEnded(outcome, reason, self.steps))
        worker.recorder.seal(but=LAST_KINDS)
        try:
            leave = pb.Leave(outcome=outcome, reason=reason[:1000], steps=self.steps)
            leave.save_failure = unsaved[:1000]
            self._deliver_and_leave(leave)
        except (Fenced, TaskEnded):
            log.debug("the coordinator had already taken this worker out")
        except StrataError as error:
            log.warning("left without the coordinator's knowledge: %s", error)
        finally:
            self._session.close()
            worker.close()
        if went_back is not None:
            raise went_back

    def _deliver_and_leave(self, leave: pb.Leave) -> None:
        """Delivers what was recorded, and says goodbye.

        A worker that is done waits for a coordinator that is away: it would be taken for lost, and
        what it trained would be trained again. Others have no time for that.
        """
        session, done = self._session, leave.outcome == "done"
        while not session.flush(LEAVE_TIMEOUT_S) and done and not session.attached:
            log.warning("the training is done, waiting for the coordinator to hear of it")
        session.leave(leave, None if done else LEAVE_TIMEOUT_S)

    def begun(self, remarks: Remarks | None, timeout_s: float | None) -> Self:
        """Starts the session and enters the first generation; part of `join`."""
        _open_runs.add(self)
        try:
            if remarks is not None:
                self._capture = capture_output(remarks, streams=remarks.lines is not None)
            self._notice.install()
            self._session.start()
            self._worker.state = "idle"
            self.sync(timeout_s)
            self._times.finish()
        except BaseException as error:
            self.leave(*_outcome(error, self.stop_requested))
            if isinstance(error, StopRequested) and not self._membership.failed:
                with _quiet_end():
                    raise StopRequested(self.stop_requested) from None
            raise
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.leave(*_outcome(error, self.stop_requested))
        return isinstance(error, StopRequested | TaskEnded)


@contextmanager
def _quiet_end() -> Iterator[None]:
    """End the process with one line where its task wants no more work, before it has trained."""
    try:
        yield
    except (StopRequested, TaskEnded) as error:
        print(f"strata: {error.message}, so this process has nothing to do", file=sys.stderr)
        raise SystemExit(0) from None


def _outcome(error: BaseException | None, stop: str) -> tuple[Outcome, str]:
    """How a block that ended like this is told to the coordinator."""
    if error is None or isinstance(error, StopRequested | TaskEnded):
        return ("stopped", stop) if stop else ("done", "")
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted"
    if isinstance(error, SystemExit) and not error.code:
        return "done", ""
    return "failed", f"{type(error).__name__}: {error}"


_open_runs: set[Run] = set()


@atexit.register
def _leave_open_runs() -> None:
    """A script or notebook that ends without leaving is not taken for a crash."""
    for run in list(_open_runs):
        run.leave("stopped", "the process ended without leaving")
