"""`strata.join`: the front door for a training script.

    with strata.join() as run:
        while run.steps < 1_000:
            loss = train_step()
            try:
                if not run.step(loss=loss):
                    break                      # asked to stop: save, and leave the loop
            except strata.GenerationChanged:
                recovery = run.sync()          # somebody came or went; go on from recovery.step

`join` registers, opens the session and waits until a generation includes this worker. From then on
the run beats by itself, and records events and output by itself.

`run.step` marks one applied step. It returns False when the loop should end: the task is stopping,
or SIGTERM came. It raises `GenerationChanged` when the membership is another one; the step counts
before it does. `run.rank`, `run.world_size` and `run.generation` are those that the script has
entered and change only in `run.sync`.

Leaving the block says how it went: at its end `done` (or `stopped`, when a stop was asked for),
after an exception `failed` with the reason, after Ctrl-C `stopped`.
"""

import atexit
import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from strata.core.events import Fact
from strata.core.order import Mode
from strata.core.worker_facts import RunEnded, StepFinished
from strata.core.workers import REPORTED, Outcome, Reported
from strata.data.batches import DEFAULT_PREFETCH_BYTES
from strata.data.dataset import OnError
from strata.data.steps import Transform
from strata.errors import Fenced, InvalidArgument, StrataError
from strata.sdk import enrolment
from strata.sdk.barriers import Arrivals, BarrierResult, check_barrier, meet
from strata.sdk.capture import Capture, capture_output
from strata.sdk.exchange import LinkBroken, Values
from strata.sdk.exchanges import Exchanges
from strata.sdk.feeding import Reading, RunBatches, open_batches
from strata.sdk.membership import Recovery
from strata.sdk.resources import ResourceSampler
from strata.sdk.signals import GenerationChanged, StopRequested, TerminationNotice
from strata.sdk.sources import Trained, Wanted, open_source
from strata.sdk.steptime import PARTS, Part, StepTime, Timing
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 10.0


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
    connect_timeout: float = 10.0,
    reconnect_limit: float | None = None,
    resource_interval: float | None = None,
    spool_dir: str | Path | None = None,
) -> "Run":
    """Joins a task as one of its workers; what is not given comes from the environment.

    `timeout` is how long to wait for the others (for ever by default), `connect_timeout` for the
    coordinator at the start, and `reconnect_limit` for it to come back later (for ever by
    default), all in seconds. `capture=False` leaves stdout, stderr and logging alone.
    """
    settings = enrolment.settings_for(
        coordinator_addr=coordinator,
        worker_id=worker_id,
        task=task,
        world_size=world_size,
        gpu_count=gpu_count,
        resource_interval_s=resource_interval,
        spool_dir=None if spool_dir is None else str(spool_dir),
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
    connection = enrolment.connect(settings)
    enrolled = enrolment.Enrolment(connection, request)
    try:
        answer = enrolled.register(connect_timeout)
    except BaseException:
        connection.close()
        raise
    worker = Worker(connection, enrolled, answer, sampler, settings, reconnect_limit)
    config = msgspec.json.decode(answer.config.get("config") or "{}", type=dict[str, object])
    return Run(worker, answer.task_id, config).begun(capture and settings.capture_output, timeout)


class Run:
    """A worker's part in a task. Made by `join`; its methods are for the training thread."""

    def __init__(self, worker: Worker, task_id: str, config: dict[str, object]) -> None:
        self.task_id = task_id
        self.config = config
        self._worker = worker
        self._session = worker.session
        self._membership = worker.membership
        self._arrivals = Arrivals()
        self._times = StepTime()
        self._notice = TerminationNotice()
        self._capture: Capture | None = None
        self._feeds: list[RunBatches] = []
        self._exchanges = Exchanges(worker)
        self._left = False

    @property
    def worker_id(self) -> str:
        """The id that the coordinator knows this worker by."""
        return self._session.identity.worker_id

    @property
    def incarnation(self) -> int:
        """Which start of the worker this is; a new one after it was declared lost."""
        return self._session.identity.incarnation

    @property
    def rank(self) -> int:
        """This worker's number in the generation it has entered, from 0."""
        return self._membership.place.rank

    @property
    def world_size(self) -> int:
        """How many workers the entered generation has."""
        return self._membership.place.world_size

    @property
    def generation(self) -> int:
        """The generation that the script has entered."""
        return self._membership.place.generation

    @property
    def attempt(self) -> int:
        """Counts the task's rollbacks, from 1; steps of an earlier attempt are void."""
        return self._membership.place.attempt

    @property
    def recovery(self) -> Recovery:
        """From where the entered generation went on."""
        return self._membership.recovery

    @property
    def steps(self) -> int:
        """How many steps the model has had, or will have once it is restored."""
        return self._membership.steps

    @property
    def membership_changed(self) -> bool:
        """Whether there is a new generation to enter with `sync`."""
        return self._membership.changed

    @property
    def stop_requested(self) -> str:
        """Why the script should save and end; empty while it need not."""
        return self._notice.reason or self._membership.stopping

    def sync(self, timeout: float | None = None) -> Recovery:
        """Enters the newest generation; when all have, returns from where it goes on.

        The coordinator is told the lineage of this worker's model and its `steps`. What is returned
        has to be carried out by the caller, unless it is `in_place`; then call `restored`, or just
        `step`. Raises `StopRequested` when a stop comes first.
        """
        self._session.require_usable()
        self._worker.waiting = True
        try:
            with Timing(self._times, "wait"):
                recovery = self._membership.sync(
                    self._session, lambda: bool(self.stop_requested), timeout
                )
        finally:
            self._worker.waiting = False
        if recovery is None:
            raise StopRequested(f"no generation was entered: {self.stop_requested}")
        self.report("training" if recovery.in_place else "recovering")
        return recovery

    def restored(self) -> None:
        """The model is now what `sync` said; the next `step` says the same."""
        self._membership.restored()
        self.report("training")

    def step(
        self, loss: float | None = None, *, epoch: int | None = None, **metrics: float
    ) -> bool:
        """Marks one step as applied; False when the loop should end.

        Raises `GenerationChanged`, after the step was counted, when the membership changed.
        """
        worker = self._worker
        if epoch is not None:
            worker.epoch = epoch
        if loss is not None:
            loss = worker.loss = float(loss)
        number = self._membership.stepped()
        for feed in self._feeds:
            feed.finished(number, loss)
            worker.epoch = feed.epoch if epoch is None else epoch
        split = self._times.finish()
        worker.recorder.emit(StepFinished(number, *split, loss, worker.epoch, metrics or None))
        if worker.state != "training":
            self.report("training")
        if self.stop_requested:
            return False
        if self._membership.changed and not self._feeds:
            self._session.require_usable()
            raise self._change()
        return True

    def batches(
        self,
        dataset: Trained,
        batch_size: int = 0,
        epochs: int | None = None,
        *,
        global_batch: int = 0,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        mode: Mode | None = None,
        window: int = 0,
        lanes: int = 0,
        seed: int = 42,
        drop_tail: bool = False,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        on_error: OnError = "raise",
    ) -> RunBatches:
        """This worker's share of every step: a plain iterator, in step with `run.step`.

        `dataset` is the id of a registered one, data opened here (`strata.open_dataset`), or
        several of these with their weights. `batch_size` is what each worker trains in a step when
        all that the task began with are there; the global batch stays when their number changes
        (name it with `global_batch` instead to fix it yourself). Without `epochs` it goes on until
        the script or somebody else stops it. Membership changes are taken up between two batches,
        so `run.step` does not raise `GenerationChanged` while batches are open.
        """
        wanted = Wanted(batch_size, global_batch, epochs or 0, lanes, mode, window, drop_tail)
        feed = open_batches(
            self._worker,
            self._times,
            open_source(self._worker, dataset, wanted, seed=seed),
            Reading(columns, transform, prefetch_bytes, on_error),
            self._take_up,
            lambda name: self.barrier(f"end of {name}"),
        )
        self._feeds.append(feed)
        return feed

    def timing(self, part: Part) -> Timing:
        """Says what the time in a `with` block goes to: `data`, `communication` or `wait`."""
        if part not in PARTS:
            raise InvalidArgument(f"{part!r} is no part of a step", hint=f"use {', '.join(PARTS)}")
        return Timing(self._times, part)

    def barrier(self, name: str, timeout: float | None = None) -> BarrierResult:
        """Waits until every member of the generation has arrived at the barrier of that name.

        Raises `DeadlineExceeded` naming the missing when the coordinator gives up, and
        `GenerationChanged` when the membership changes meanwhile.
        """
        check_barrier(name, self.steps, timeout)
        self._session.require_usable()
        if self._membership.changed:
            raise self._change()
        worker = self._worker
        worker.waiting = True
        try:
            with Timing(self._times, "wait"):
                return meet(
                    self._session,
                    self._arrivals,
                    name,
                    self.steps,
                    timeout,
                    lambda: self._change() if self._membership.changed else None,
                )
        finally:
            worker.waiting = False

    def average(self, values: Values, weight: float = 1.0) -> Values:
        """The mean of every array and number in `values` over all members, the same for all.

        `weight` is this worker's share, such as the size of its batch. Raises `GenerationChanged`
        when a member is lost meanwhile: the step is not applied then, so let go of it.
        """
        self._session.require_usable()
        if self._membership.changed:
            raise self._change()
        with Timing(self._times, "communication"):
            try:
                return self._exchanges.average(values, weight, lambda: bool(self.stop_requested))
            except LinkBroken as broken:
                raise self._change() from broken

    def report(self, state: Reported) -> None:
        """Says what this worker does now, for whoever looks and for the watchdog."""
        if state not in REPORTED:
            raise InvalidArgument(f"{state!r} is no state", hint=f"use {', '.join(REPORTED)}")
        if self._worker.state != state:
            self._worker.state = state
            self._session.pulse.beat_soon()

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
        for feed in self._feeds:
            feed.close()
        self._exchanges.close()
        worker = self._worker
        worker.recorder.emit(RunEnded(outcome, reason, self.steps))
        worker.recorder.seal()
        try:
            self._session.flush(LEAVE_TIMEOUT_S)
            leave = pb.Leave(outcome=outcome, reason=reason[:1000], steps=self.steps)
            self._session.answer(self._session.ask("leave", leave), LEAVE_TIMEOUT_S)
        except Fenced:
            log.debug("the coordinator had already taken this worker out")
        except StrataError as error:
            log.warning("left without the coordinator's knowledge: %s", error)
        finally:
            self._session.close()
            worker.recorder.close()
            worker.connection.close()

    def begun(self, capture: bool, timeout_s: float | None) -> Self:
        """Starts the session and enters the first generation; part of `join`."""
        _open_runs.add(self)
        try:
            if capture:
                self._capture = capture_output(self._worker.lines)
            self._notice.install()
            self._session.start()
            self.sync(timeout_s)
            self._times.finish()
        except BaseException as error:
            self.leave(*_outcome(error, self.stop_requested))
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
        return isinstance(error, StopRequested)

    def _take_up(self) -> bool:
        """Enters the newest generation if it is another one; False when the loop should end."""
        while self._membership.changed and not self.stop_requested:
            self._session.require_usable()
            try:
                self.sync()
            except StopRequested:
                return False
        return not self.stop_requested

    def _change(self) -> StrataError:
        """Why the script cannot go on as it is."""
        if self.stop_requested:
            return StopRequested(f"the others are leaving: {self.stop_requested}")
        standing = self._membership.standing
        told = f"generation {standing.generation}" if standing else "a new incarnation"
        return GenerationChanged(
            f"the membership changed: {told} in place of generation {self.generation}",
            hint="call run.sync() and go on from where it says",
        )


def _outcome(error: BaseException | None, stop: str) -> tuple[Outcome, str]:
    """How a block that ended like this is told to the coordinator."""
    if error is None or isinstance(error, StopRequested):
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
