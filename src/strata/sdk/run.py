"""`strata.join`: the entry point for a training script.

    with strata.join() as run:
        run.restore(model=model, optimizer=optimizer)   # resume, or start with these
        for epoch in run.epochs(3):
            for batch in run.loader(train_set, batch_size=32):
                with run.step() as step:                # applied by every worker or by none
                    loss = train_step(model, optimizer, batch)
                    step.log(loss=loss)
            accuracy = run.evaluate(valid_set, score)

`join` registers, opens the session and waits until a generation includes this worker. From then on
background threads send heartbeats, events and output, and `run.step` saves when a checkpoint is
due. `run.rank`, `run.world_size` and `run.generation` are those of the entered generation; they
change only between two steps.

When the task stops or SIGTERM arrives, a last checkpoint is saved and the loop raises
`StopRequested`, which the `with` block catches: code after the loop runs only if the loop reached
its end. Leaving the block reports the outcome: `done` at its end, `stopped` after a stop or Ctrl-C,
`failed` with the reason after another exception.
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
from strata.core.secret_names import merged
from strata.core.state import Outcome
from strata.core.workers.worker_facts import RunEnded
from strata.errors import (
    AlreadyExists,
    Fenced,
    InvalidArgument,
    NotAllowedNow,
    NotFound,
    StrataError,
    TaskEnded,
)
from strata.sdk import embedded_coordinator
from strata.sdk.data.data_record import DataRecord
from strata.sdk.data.script_position import LoopLength
from strata.sdk.interrupts import StopRequested
from strata.sdk.record.output_capture import OutputCapture, WarningRecorder, capture_output
from strata.sdk.record.resource_sampler import ResourceSampler
from strata.sdk.run_decisions import RunDecisions
from strata.sdk.session import owner_watch, registration
from strata.sdk.session.requests import LAST_KINDS
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.state.final_save import RunWentBack
from strata.sdk.state.run_state import RunState
from strata.sdk.state.save_policy import policy_of
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 10.0
SAVE_TIMEOUT_S = 600.0
REFUSALS = (InvalidArgument, NotFound, AlreadyExists)
"""Errors about arguments: before the first step, a script gets them again at every start."""


def join(
    coordinator: str | None = None,
    worker_id: str | None = None,
    task: str | None = None,
    world_size: int | None = None,
    *,
    name: str = "",
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
    keep_count: int | None = None,
    keep_every: int | None = None,
    keep_best: str | None = None,
    keep_best_count: int | None = None,
) -> "Run":
    """Join a task as one of its workers; arguments default to the environment variables.

    Without a coordinator address, one for this process alone is started
    (`sdk/embedded_coordinator`). Then a `name` continues the run with that name, if there is one.

    `timeout` is how long to wait for the other workers (default: no limit), `connect_timeout` for
    the coordinator at the start (default: 10 s, or no limit if an agent started this process), and
    `reconnect_limit` for a lost coordinator (default: no limit), all in seconds. `capture=False`
    does not capture stdout, stderr and logging.

    `checkpoint_every` (steps) and `checkpoint_interval` (seconds) replace the adaptive interval and
    override the task's config. `checkpoint_dir` is the root under which this worker sees the
    coordinator's checkpoints, if the path differs on this host.

    Kept are the newest `keep_count` checkpoints, the first at or after each multiple of
    `keep_every` steps, and the `keep_best_count` best by the logged metric `keep_best`: the lowest
    `"val_loss"`, the highest `"max:accuracy"`. These override what the task was submitted with.
    """
    settings = embedded_coordinator.settings_for_join(
        name,
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
    gpus = settings.gpu_count
    request = registration.registration(
        settings,
        syncs=True,
        gpu_count=len(sampler.sample().gpu_metrics) if gpus is None else gpus,
        weight=weight,
        labels=metadata,
        keep_count=keep_count,
        keep_every=keep_every,
        keep_best=keep_best,
        keep_best_count=keep_best_count,
    )
    owner_watch.end_after(settings.owner)
    with _quiet_end():
        enrolled, answer = registration.enrol(settings, request, connect_timeout)
    worker = RunWorker(enrolled, answer, sampler, settings, reconnect_limit)
    submitted = msgspec.json.decode(answer.config.get("config") or "{}", type=dict[str, object])
    config = merged(submitted, settings.secret_config)
    policy = policy_of(settings, config, checkpoint_every, checkpoint_interval)
    run_state = RunState(worker, settings, dict(answer.config), policy)
    run_state.script.goal = LoopLength(
        int(answer.config.get("epochs") or 0), int(answer.config.get("max_steps") or 0)
    )
    run = Run(worker, run_state, answer.task_id, config)
    lines = worker.lines if settings.capture_output else None
    return run.begin(WarningRecorder(worker.recorder, lines) if capture else None, timeout)


class Run(RunDecisions):
    """One worker of a task, as its training script sees it. Made by `join`; not thread-safe."""

    def __init__(
        self, worker: RunWorker, run_state: RunState, task_id: str, config: dict[str, object]
    ) -> None:
        self.task_id = task_id
        self.config = config
        super().__init__(worker, run_state)
        self._capture: OutputCapture | None = None
        self._data_record = DataRecord(worker.recorder, self._times)

    def measure(self, pid: int) -> None:
        """Report the resources of another process, which trains for this worker, from now on."""
        self._worker.sampler.follow(pid)

    def emit(self, fact: Fact, cause: tuple[str, ...] = (), op: str = "") -> None:
        """Record a fact; takes less than a microsecond, never blocks, never raises."""
        self._worker.recorder.emit(fact, cause, op)

    def leave(self, outcome: Outcome = "done", reason: str = "") -> None:
        """Deliver the recorded events and leave; a no-op when repeated or in a forked child."""
        if self._left or self._session.forked:
            return
        self._left = True
        _open_runs.discard(self)
        self._notice.restore()
        self.step_interrupt.restore()
        if self._capture is not None:
            self._capture.restore()
        if outcome == "done":
            self._report_left_loop()
            self._settle_numbers()
        for feed in self._feeds:
            feed.close()
        self._data_record.end()
        worker, timeout_s = self._worker, LEAVE_TIMEOUT_S if outcome == "failed" else SAVE_TIMEOUT_S
        if self._save_wanted:
            self._run_state.save_at_end(timeout_s)
        unsaved, went_back = "", None
        try:
            unsaved = self._run_state.finish(outcome, worker.epoch, timeout_s)
        except RunWentBack as error:
            outcome, reason, went_back = "failed", str(error), error
        self._exchanges.close()
        worker.recorder.emit(RunEnded(outcome=outcome, reason=reason, steps=self.steps))
        worker.recorder.seal(but=LAST_KINDS)
        try:
            leave = pb.Leave(outcome=outcome, reason=reason[:1000], steps=self.steps)
            leave.save_failure = unsaved[:1000]
            leave.refused = self._refused and outcome == "failed"
            self._deliver_and_leave(leave)
        except (Fenced, TaskEnded):
            log.debug("the coordinator had already removed this worker")
        except StrataError as error:
            log.warning("could not report to the coordinator that this worker leaves: %s", error)
        finally:
            self._session.close()
            worker.close()
        if went_back is not None:
            raise went_back

    def _deliver_and_leave(self, leave: pb.Leave) -> None:
        """Deliver the recorded events and deregister.

        A worker that is done waits for an unreachable coordinator: otherwise it would be declared
        lost and its steps trained again. Workers that stop or failed do not wait.
        """
        session, done = self._session, leave.outcome == "done"
        while not session.flush(LEAVE_TIMEOUT_S) and done and not session.attached:
            log.warning("training is done; waiting for the coordinator to confirm it")
        session.leave(leave, None if done else LEAVE_TIMEOUT_S)

    def begin(self, sink: WarningRecorder | None, timeout_s: float | None) -> Self:
        """Start the session and enter the first generation; part of `join`."""
        _open_runs.add(self)
        self._data_record.begin()
        try:
            if sink is not None:
                self._capture = capture_output(sink, streams=sink.lines is not None)
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
        if error is None:
            self._script.went_on()
            try:
                self._script.require_goal_used()
            except InvalidArgument as unused:
                self.leave("failed", str(unused))
                raise
        if isinstance(error, REFUSALS) and not self._membership.applied:
            self._refused = True
            error.__traceback__ = _own_frames(trace)
        self.leave(*_outcome(error, self.stop_requested))
        return isinstance(error, StopRequested | TaskEnded)


@contextmanager
def _quiet_end() -> Iterator[None]:
    """End the process with one line if its task needs no more work before it has trained."""
    try:
        yield
    except (StopRequested, TaskEnded) as error:
        print(f"strata: {error.message}, so this process has nothing to do", file=sys.stderr)
        raise SystemExit(0) from None


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback up to the call of Strata, whose error names what the script has to change."""
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("strata."):
        return None
    following = _own_frames(trace.tb_next)
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _outcome(error: BaseException | None, stop: str) -> tuple[Outcome, str]:
    """The outcome and reason to report for a `with` block that ended with this error."""
    if error is None or isinstance(error, StopRequested | TaskEnded):
        return ("stopped", stop) if stop else ("done", "")
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted"
    if isinstance(error, SystemExit) and not error.code:
        return "done", ""
    return "failed", f"{type(error).__name__}: {error}"


_open_runs: set[Run] = set()


def open_run() -> Run | None:
    """The run that this process has joined and not left; raises if there are several."""
    if len(_open_runs) > 1:
        raise NotAllowedNow(
            f"this process has {len(_open_runs)} open runs", hint="leave all but one of them"
        )
    return next(iter(_open_runs), None)


@atexit.register
def _leave_open_runs() -> None:
    """Leave for a script or notebook that did not, so that its end is not reported as a crash."""
    for run in list(_open_runs):
        run.leave("stopped", "the process ended without leaving")
