"""The steps of a run: begin, apply or undo, and count them.

Scripts use `run.step` (see `sdk/steps/step_block`). Loops that drive the run themselves use
`mark_step`: adapters of other frameworks, local steps, the torchrun wrapper.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import SupportsFloat, TypeAlias

from strata.core.workers.worker_facts import ConfigLogged, MetricsLogged, StepFinished
from strata.errors import Conflict, InvalidArgument, NotAllowedNow, StrataError
from strata.sdk.data.batch_loop import RunBatches
from strata.sdk.data.script_position import PEEK_HINT
from strata.sdk.data.shard_loop import RunShards
from strata.sdk.interrupts import GenerationChanged, StepInterrupt, StopRequested
from strata.sdk.peers.current_exchange import CurrentExchange, Result
from strata.sdk.peers.exchange import Exchange, LinkBroken, Values
from strata.sdk.peers.exchange_log import ExchangeLog
from strata.sdk.record.late_numbers import fact_with_numbers, number_of, numbers_of
from strata.sdk.record.logged_config import config_values
from strata.sdk.record.logged_media import Loggable, Media, Moment
from strata.sdk.record.media_log import MediaLog
from strata.sdk.run_member import RunMember
from strata.sdk.session.barrier_arrivals import Arrivals, BarrierResult, check_barrier, meet
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.state.run_state import RunState
from strata.sdk.steps.step_block import PARTS, Part, Step, StepHook, StepHooks, Timing
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

Feed: TypeAlias = RunBatches | RunShards


class RunSteps(RunMember):
    """The steps, barriers and exchanges of a run. For the training thread."""

    def __init__(self, worker: RunWorker, run_state: RunState) -> None:
        super().__init__(worker, run_state)
        self._feeds: list[Feed] = []
        self._exchanges = CurrentExchange(worker)
        self._hooks = StepHooks()
        self.step_interrupt = StepInterrupt()
        self._step: Step | None = None
        self._exchanged = self._exchanges_last = 0
        self._arrivals = Arrivals()
        self._last_loss: SupportsFloat | None = None
        self._loop_left: pb.LeaveLoop | None = None
        self._peeked_dataset = ""
        self._left = False
        self._refused = False
        self._media = MediaLog(worker.session, worker.recorder)

    def step(self) -> Step:
        """One training step as a `with` block: applied by every worker or by none."""
        return Step(self)

    @property
    def present_step(self) -> Step | None:
        """The step whose block is open, if any."""
        return self._step

    @property
    def exchange_log(self) -> ExchangeLog:
        """The record of this worker's exchanges; for libraries that extend a run."""
        return self._exchanges.log

    def add_step_hook(self, hook: StepHook) -> None:
        """Add a participant in every step; for libraries that extend a run."""
        self._hooks.add(hook)

    def begin_step(self, step: Step) -> None:
        """Prepare a step; part of `run.step`."""
        self._session.require_usable()
        if self._step is not None:
            raise NotAllowedNow(
                f"step {self._step.number} is still open",
                hint="end its `with run.step()` block before the next one",
            )
        self._require_trained()
        if not self._feeds:
            self._enter_newest_or_stop()
        self._script.step()
        step.number = self.steps
        self._require_common(step)
        step.samples = sum(feed.samples for feed in self._feeds) if self._feeds else 1
        self._membership.training = {feed.key for feed in self._feeds}
        if self._run_state.has_state:
            several = self._exchanges_last > 1 and not len(self._hooks)
            self._run_state.checks.note_step(self._run_state.state, exact=several)
        self._exchanged = self._exchanges.count
        self._exchanges.begin_step()
        try:
            self._hooks.begin(step)
        except BaseException as error:
            self._exchanges.end_step()
            self._exchanges.log.end_step(error)
            raise
        self._step = step

    def _require_trained(self) -> None:
        """Raise if a loop was left after its first batch without a step.

        Such a loop counts as a loop of the script, so it would be empty in a process that resumes
        the run.
        """
        if self._peeked_dataset:
            raise NotAllowedNow(
                f"a loop over {self._peeked_dataset!r} was left after one batch, without a step",
                hint=PEEK_HINT,
            )

    def _require_common(self, step: Step) -> None:
        """Raise if another worker does not train this step: it left the loop or finished."""
        loops = {feed.key for feed in self._feeds if feed.key}
        left = self._membership.left_before(step.number, loops)
        finished = self._membership.finished_step
        if loops and 0 <= finished <= step.number:
            raise Conflict(
                f"another worker finished after {finished} steps, but this worker begins step "
                f"{step.number}",
                hint="end all workers at the same step: decide with run.agree(value)",
            )
        if left:
            raise Conflict(
                f"worker {left!r} left this loop before step {step.number}",
                hint="leave a loop on all workers at the same step: decide with run.agree(value)",
            )

    def end_step(self, step: Step) -> None:
        """Count a step as applied, or undo it if a worker was lost; part of `run.step`."""
        self._close_step()
        if not self._complete_block(step):
            self._undo(step)
            return
        metrics, media = dict(step.metrics), step.media
        averaged = step.averaged if len(self._feeds) == 1 else 0
        self._count_step(metrics.pop("loss", None), None, metrics, averaged)
        step.applied = True
        if media:
            self._log_media(media, step.number, in_step=True)
        if self._membership.applied == 1:
            self._run_state.prepare_saves()  # optimizers have their full state after one step
        if self._run_state.has_state and self.save_due():
            self.save()

    def _complete_block(self, step: Step) -> bool:
        """Complete a step with the hooks and check it; False if a worker was lost."""
        exchanges = self._exchanges.log
        try:
            complete = self._hooks.end(step)
            if complete:
                self._require_exchange(step)
                if self._run_state.has_state:
                    self._run_state.checks.require_changed(self._run_state.state)
        except BaseException as error:
            self._undo_failed(step, error)
            exchanges.end_step(error)
            raise
        finally:
            self._exchanges.end_step()
        exchanges.end_step(None if complete else self._change())
        return complete

    def _require_exchange(self, step: Step) -> None:
        """Raise if several workers train a common state without exchanging anything."""
        alone = self.world_size == 1 or not self._run_state.has_state or self._membership.rebuilds
        shares = any(isinstance(feed, RunBatches) for feed in self._feeds)
        if alone or not shares or len(self._hooks) or self._exchanges.count > self._exchanged:
            return
        raise NotAllowedNow(
            f"step {step.number} exchanged nothing with the other {self.world_size - 1} workers, "
            "so their models would differ",
            hint="average the gradients: use strata.torch.data_parallel(run, model) or "
            "run.average(gradients)",
        )

    def abandon_step(self, step: Step, error: BaseException) -> bool:
        """Undo a step that raised an error; True if the loop continues. Part of `run.step`."""
        self._close_step()
        self._exchanges.end_step()
        if isinstance(error, Exception) and self._hooks.lost_link(error):
            error = self._broken_link(error)
        self._exchanges.log.end_step(error)
        if isinstance(error, GenerationChanged):
            self._undo(step)
            return True
        self._undo_failed(step, error)
        return False

    def _close_step(self) -> None:
        self._step = None
        self._exchanges_last = self._exchanges.count - self._exchanged
        self._membership.training = set()

    def _undo_failed(self, step: Step, error: BaseException) -> None:
        """Undo a step that an error of the script or a stop ended, or refuse the next one."""
        undone = self._is_undone(step, interrupted=isinstance(error, StopRequested))
        if not undone and self._run_state.has_state:
            ended = f"{type(error).__name__} ended step {step.number}"
            self._run_state.checks.partly_changed = ended

    def _is_undone(self, step: Step, *, interrupted: bool) -> bool:
        """Undo a step; False if the state may be partly changed. If it was `interrupted` in an
        exchange, a block with only one has changed nothing yet."""
        undone = self._hooks.abandon(step)
        unknown = self._exchanges_last > 1 or not interrupted
        if not len(self._hooks) and unknown and self._run_state.has_state:
            return self._run_state.checks.is_unchanged(self._run_state.state)
        return undone

    def _undo(self, step: Step) -> None:
        if not self._is_undone(step, interrupted=True):
            log.warning(
                "step %d may be partly applied; recovery will not use this worker's model",
                step.number,
            )
            self._membership.discard_model()

    def _broken_link(self, error: Exception) -> BaseException:
        """The error for a lost connection, once the next generation is known."""

        def fail(exchange: Exchange) -> None:
            raise LinkBroken(str(error).splitlines()[0] if str(error) else type(error).__name__)

        try:
            self.together(fail)
        except StrataError as change:
            return change
        raise AssertionError("together raises what its action raises")

    def _enter_newest_or_stop(self) -> None:
        """Enter a newer generation if there is one; raise if the loop should end."""
        if not self._enter_newest():
            raise StopRequested(f"the loop ends: {self.stop_requested}")

    def log(self, values: Mapping[str, Loggable] | None = None, **metrics: Loggable) -> None:
        """Record metrics of the present state, such as `val_loss=loss` after an evaluation, and
        images, texts and histograms (`sample=strata.Image(pixels)`).

        Checkpoints are saved with the last value of each metric, of rank 0. In a step this is
        `step.log`.
        """
        if self._step is not None:
            return self._step.log(values, **metrics)
        self.log_at(self.steps, {**(values or {}), **metrics})

    def log_at(self, step: int, values: Mapping[str, Loggable]) -> None:
        """Record what `run.log` takes, after `step` steps by the script's own count.

        For loggers that count steps themselves, outside of `run.step`.
        """
        media: dict[str, Media] = {}
        numbers = numbers_of(values, media)
        if media:
            self._log_media(media, step, in_step=False)
        if media and not numbers:
            return
        generation = self._membership.place.generation
        self._run_state.metrics.note(numbers)
        fact = fact_with_numbers(
            lambda _, metrics: MetricsLogged(step=step, metrics=metrics, generation=generation),
            None,
            numbers,
        )
        self._worker.recorder.emit(fact)

    def log_config(self, config: Mapping[str, object]) -> None:
        """Record the script's configuration, such as its hyperparameters, nested or flat.

        At most 500 names; a value whose name says that it is secret (`api_key`) is left out.
        """
        self._worker.recorder.emit(ConfigLogged(values=config_values(config)))

    def _log_media(self, media: Mapping[str, Media], step: int, *, in_step: bool) -> None:
        moment = Moment(step=step, in_step=in_step, generation=self.generation)
        self._media.record(media, moment)

    def mark_step(
        self,
        loss: SupportsFloat | None = None,
        *,
        epoch: int | None = None,
        **metrics: SupportsFloat,
    ) -> bool:
        """Count one step as applied; False if the loop should end.

        For loops that drive the run themselves, instead of `run.step`. Raises `GenerationChanged`,
        after the step was counted, if the membership changed and no batches are open.
        """
        numbers = numbers_of(metrics)
        self._count_step(None if loss is None else number_of(loss), epoch, numbers)
        if self.ending:
            return False
        if self._membership.changed and not self._feeds:
            self._session.require_usable()
            raise self._change()
        return True

    def _count_step(
        self,
        loss: SupportsFloat | None,
        epoch: int | None,
        metrics: dict[str, SupportsFloat],
        averaged: int = 0,
    ) -> None:
        worker = self._worker
        self._settle_numbers()
        if epoch is not None:
            worker.epoch = epoch
        self._last_loss = loss
        self._run_state.metrics.note(metrics if loss is None else {**metrics, "loss": loss})
        number = self._membership.stepped()
        for feed in self._feeds:
            feed.finished(number, loss, averaged)
            worker.epoch = feed.epoch if epoch is None else epoch
        data_s, compute_s, communication_s, wait_s = self._times.finish()
        at, generation = worker.epoch, self._membership.place.generation
        worker.stepped(generation, data_s, compute_s)
        fact = fact_with_numbers(
            lambda loss, metrics: StepFinished(
                step=number,
                data_s=data_s,
                compute_s=compute_s,
                communication_s=communication_s,
                wait_s=wait_s,
                loss=loss,
                epoch=at,
                metrics=metrics or None,
                generation=generation,
            ),
            loss,
            metrics,
        )
        worker.recorder.emit(fact)
        if isinstance(loss, float | int):
            self._settle_loss()
        if worker.state != "training":
            self.report("training")

    def _settle_numbers(self) -> None:
        """Wait for numbers of earlier steps that the GPU has not computed yet."""
        self._worker.recorder.settle()
        self._settle_loss()

    def _settle_loss(self) -> None:
        if self._last_loss is not None:
            with suppress(RuntimeError):  # a device that has failed
                self._worker.loss = float(self._last_loss)
            self._last_loss = None

    def timing(self, part: Part) -> Timing:
        """Attribute the time of a `with` block to `data`, `communication` or `wait`."""
        if part not in PARTS:
            raise InvalidArgument(
                f"{part!r} is not a part of a step's time", hint=f"use {', '.join(PARTS)}"
            )
        return Timing(self._times, part)

    def barrier(self, name: str, timeout: float | None = None) -> BarrierResult:
        """Wait until every member of the generation has arrived at the barrier of that name.

        Raises `DeadlineExceeded` with the missing workers on a timeout, and `GenerationChanged` if
        the membership changes.
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

    def average(self, values: Values, weight: float | None = None) -> Values:
        """The mean of every array and number in `values` over all workers, identical on all.

        `weight` is this worker's weight: by default the number of samples that it trains in this
        step, and 1 outside of a step. Raises `GenerationChanged` if a worker is lost, which ends
        the block of the step.
        """
        step = self._step if weight is None else None
        own = weight if weight is not None else float(step.samples) if step is not None else 1.0

        def averaged(exchange: Exchange) -> Values:
            mean = exchange.average(values, own)
            if step is not None:
                step.averaged = round(exchange.total_weight)
            return mean

        return self.together(averaged)

    def together(self, act: Callable[[Exchange], Result]) -> Result:
        """Run a collective action of all members of the generation.

        `act` gets the members' exchange. If it raises `LinkBroken`, this call waits for the next
        generation and raises `GenerationChanged`.
        """
        self._session.require_usable()
        if self._exchanges.interrupted:
            raise self._change()
        with Timing(self._times, "communication"):
            try:
                return self._exchanges.together(act, lambda: bool(self.stop_requested))
            except LinkBroken as broken:
                raise self._change() from broken
