"""`strata.join`: the front door for a training script.

    with strata.join() as run:
        state = run.restore(init_state)        # newest committed checkpoint, else as given
        for batch in run.batches("imagenet-1k", batch_size=32, epochs=3):
            loss = train_step(state, batch)
            run.step(loss=loss)                # a fact; losses and newcomers are taken up after it
            if run.checkpoint_due:
                run.save(state)                # returns at once

A loop without batches takes changes up itself:

        while run.steps < 1_000:
            try:
                if not run.step(loss=train_step(state)):
                    break                      # asked to stop
            except strata.GenerationChanged:
                run.recover()                  # somebody came or went; `state` is brought along

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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from strata.core.events import Fact
from strata.core.order import Mode
from strata.core.worker_facts import RunEnded, StepFinished
from strata.core.workers import Outcome
from strata.data.batches import DEFAULT_PREFETCH_BYTES, Batches
from strata.data.dataset import OnError
from strata.data.per_lane import Transform
from strata.data.streams import Engine
from strata.errors import Fenced, InvalidArgument, NotAllowedNow, StrataError
from strata.sdk import enrolment
from strata.sdk.barriers import Arrivals, BarrierResult, check_barrier, meet
from strata.sdk.capture import Capture, capture_output
from strata.sdk.due import policy_of
from strata.sdk.exchange import Exchange, LinkBroken, Values
from strata.sdk.exchanges import Exchanges, Result
from strata.sdk.feeding import RunBatches, open_batches
from strata.sdk.keeping import Keeping
from strata.sdk.leasing import RunShards, open_shards
from strata.sdk.member import Member
from strata.sdk.reading import Reading
from strata.sdk.remarks import Remarks
from strata.sdk.resources import ResourceSampler
from strata.sdk.signals import GenerationChanged, StopRequested
from strata.sdk.sources import One, Trained, Wanted, checked_epochs, open_source
from strata.sdk.step import Step, StepHook, StepHooks
from strata.sdk.steptime import PARTS, Part, Timing
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
    connect_timeout: float = 10.0,
    reconnect_limit: float | None = None,
    resource_interval: float | None = None,
    spool_dir: str | Path | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_interval: float | None = None,
) -> "Run":
    """Joins a task as one of its workers; what is not given comes from the environment.

    `timeout` is how long to wait for the others (for ever by default), `connect_timeout` for the
    coordinator at the start, and `reconnect_limit` for it to come back later (for ever by
    default), all in seconds. `capture=False` leaves stdout, stderr and logging alone.

    `checkpoint_every` (steps) and `checkpoint_interval` (seconds) say when `run.checkpoint_due` is
    true by itself; they win over the task's config. `checkpoint_dir` is under which root this
    worker sees the coordinator's checkpoints, where that is another one.
    """
    settings = enrolment.settings_for(
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
    enrolled, answer = enrolment.enrol(settings, request, connect_timeout)
    worker = Worker(enrolled, answer, sampler, settings, reconnect_limit)
    config = msgspec.json.decode(answer.config.get("config") or "{}", type=dict[str, object])
    policy = policy_of(settings, config, checkpoint_every, checkpoint_interval)
    keeping = Keeping(worker, settings, dict(answer.config), policy)
    run = Run(worker, keeping, answer.task_id, config)
    lines = worker.lines if settings.capture_output else None
    return run.begun(Remarks(worker.recorder, lines) if capture else None, timeout)


class Run(Member):
    """A worker's part in a task. Made by `join`; its methods are for the training thread."""

    def __init__(
        self, worker: Worker, keeping: Keeping, task_id: str, config: dict[str, object]
    ) -> None:
        self.task_id = task_id
        self.config = config
        super().__init__(worker, keeping)
        self._arrivals = Arrivals()
        self._capture: Capture | None = None
        self._feeds: list[RunBatches | RunShards] = []
        self._exchanges = Exchanges(worker)
        self._hooks = StepHooks()
        self._step: Step | None = None
        self._left = False

    def step(self) -> Step:
        """One step of training, as a `with` block: applied by every worker or by none."""
        return Step(self)

    def add_step_hook(self, hook: StepHook) -> None:
        """Let something take part in every step; for what is built on a run."""
        self._hooks.add(hook)

    def begin_step(self, step: Step) -> None:
        """Prepare a step; part of `run.step`."""
        self._session.require_usable()
        if self._step is not None:
            raise NotAllowedNow(
                f"step {self._step.number} is still open", hint="end its block before the next one"
            )
        if not self._feeds and not self._take_up():
            raise StopRequested(f"the loop ends: {self.stop_requested}")
        step.number = self.steps
        step.samples = sum(feed.samples for feed in self._feeds) or 1
        self._hooks.begin(step)
        self._step = step

    def end_step(self, step: Step) -> None:
        """Count a step as applied, unless a worker was lost; part of `run.step`."""
        self._step = None
        if not self._hooks.end(step):
            self._undo(step)
            return
        metrics = dict(step.metrics)
        self._count_step(metrics.pop("loss", None), None, metrics)
        if self._keeping.has_state and self._keeping.due.now(self.steps):
            self.save()

    def abandon_step(self, step: Step, error: BaseException) -> bool:
        """Undo a step that an error ended; whether the loop goes on. Part of `run.step`."""
        self._step = None
        if isinstance(error, Exception) and self._hooks.lost_link(error):
            error = self._broken_link(error)
        if not isinstance(error, GenerationChanged):
            return False
        self._undo(step)
        return True

    def _undo(self, step: Step) -> None:
        if not self._hooks.abandon(step):
            log.warning("step %d was applied in part; this worker's model is not used", step.number)
            self._membership.discard_model()

    def _broken_link(self, error: Exception) -> BaseException:
        """What the loss of a connection means once the next generation is known."""

        def fail(exchange: Exchange) -> None:
            raise LinkBroken(str(error).splitlines()[0] if str(error) else type(error).__name__)

        try:
            self.together(fail)
        except StrataError as change:
            return change
        raise AssertionError("together raises what its action raises")

    def mark_step(
        self, loss: float | None = None, *, epoch: int | None = None, **metrics: float
    ) -> bool:
        """Count one step as applied; False when the loop should end.

        For loops that drive the run themselves, in place of `run.step`. Raises `GenerationChanged`,
        after the step was counted, when the membership changed and no batches are open.
        """
        self._count_step(loss, epoch, metrics)
        if self.ending:
            return False
        if self._membership.changed and not self._feeds:
            self._session.require_usable()
            raise self._change()
        return True

    def _count_step(self, loss: float | None, epoch: int | None, metrics: dict[str, float]) -> None:
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
        contents: bool = False,
        rebalance: bool = False,
        engine: Engine = Batches,
    ) -> RunBatches:
        """This worker's share of every step: a plain iterator, in step with `run.step`.

        `dataset` is the id of a registered one, data opened here (`strata.open_dataset`), or
        several of these with their weights. `batch_size` is what each worker trains in a step when
        all that the task began with are there; the global batch stays when their number changes
        (name it with `global_batch` instead to fix it yourself). Without `epochs` it goes on until
        the script or somebody else stops it. With `contents` eight bytes for what was read are
        recorded with each step, which `strata audit --content` compares; with `rebalance` lanes
        move from slow workers to fast ones, so batches differ in size. `engine` is what reads:
        `strata.torch.Loading(num_workers=4)` gives tensors by `DataLoader`. Membership changes are
        taken up between two batches, so `run.step` does not raise `GenerationChanged` while
        batches are open.
        """
        cut = (batch_size, global_batch, checked_epochs(epochs), lanes, mode, window, drop_tail)
        wanted = Wanted(*cut, rebalance)
        feed = open_batches(
            self._worker,
            self._times,
            open_source(self._worker, dataset, wanted, seed=seed),
            Reading(columns, transform, on_error, prefetch_bytes, contents),
            engine,
            self._take_up,
            lambda name: self.barrier(f"end of {name}"),
        )
        self._feeds.append(feed)
        self._keeping.attach(feed.name, feed)
        return feed

    def shards(
        self,
        dataset: One,
        batch_size: int,
        epochs: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        seed: int = 42,
        on_error: OnError = "raise",
    ) -> RunShards:
        """Shards for asynchronous training: an iterator of shards, each an iterator of batches.

        A shard counts when its last batch was taken and the next shard is asked for; one that is
        left in the middle goes out again. Workers go at their own pace: see `strata.sdk.leasing`.
        """
        reading = Reading(columns, transform, on_error)
        feed = open_shards(
            self._worker,
            dataset,
            batch_size,
            checked_epochs(epochs),
            reading,
            self._take_up,
            seed=seed,
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
        return self.together(lambda exchange: exchange.average(values, weight))

    def together(self, act: Callable[[Exchange], Result]) -> Result:
        """Does something with all members of the generation; for collectives of one's own.

        `act` gets the members' exchange. When it raises `LinkBroken` the next generation is
        waited for, and `GenerationChanged` is raised.
        """
        self._session.require_usable()
        if self._membership.changed:
            raise self._change()
        with Timing(self._times, "communication"):
            try:
                return self._exchanges.together(act, lambda: bool(self.stop_requested))
            except LinkBroken as broken:
                raise self._change() from broken

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
        for feed in self._feeds:
            feed.close()
        self._keeping.close(SAVE_TIMEOUT_S if outcome != "failed" else LEAVE_TIMEOUT_S)
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
            worker.close()

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
            if isinstance(error, StopRequested) and self._membership.spare:
                raise SystemExit(0) from None  # its task went well without it
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
