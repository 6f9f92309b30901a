"""The steps of a run: begun, applied or undone, and counted.

`run.step` is the door for scripts (see `step`). `mark_step` is the one for loops that drive the run
themselves: adapters of other frameworks, local steps, the wrapper around torchrun.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import SupportsFloat, TypeAlias

from strata.core.worker_facts import StepFinished
from strata.errors import Conflict, InvalidArgument, NotAllowedNow, StrataError
from strata.sdk.barriers import Arrivals, BarrierResult, check_barrier, meet
from strata.sdk.exchange import Exchange, LinkBroken, Values
from strata.sdk.exchange_log import ExchangeLog
from strata.sdk.exchanges import Exchanges, Result
from strata.sdk.feeding import RunBatches
from strata.sdk.keeping import Keeping
from strata.sdk.late_numbers import fact_with_numbers, number_of
from strata.sdk.leasing import RunShards
from strata.sdk.loader import PEEK_HINT
from strata.sdk.member import Member
from strata.sdk.signals import GenerationChanged, StopRequested
from strata.sdk.step import Step, StepHook, StepHooks
from strata.sdk.steptime import PARTS, Part, Timing
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

Feed: TypeAlias = RunBatches | RunShards


class RunSteps(Member):
    """A run as something that takes steps. For the training thread."""

    def __init__(self, worker: Worker, keeping: Keeping) -> None:
        super().__init__(worker, keeping)
        self._feeds: list[Feed] = []
        self._exchanges = Exchanges(worker)
        self._hooks = StepHooks()
        self._step: Step | None = None
        self._exchanged = self._exchanges_last = 0
        self._arrivals = Arrivals()
        self._last_loss: SupportsFloat | None = None
        self._loop_left: pb.LeaveLoop | None = None
        self._looked_at = ""
        self._left = False

    def step(self) -> Step:
        """One step of training, as a `with` block: applied by every worker or by none."""
        return Step(self)

    @property
    def present_step(self) -> Step | None:
        """The step whose block is open, if one is."""
        return self._step

    @property
    def exchange_log(self) -> ExchangeLog:
        """Records the exchanges of this worker; for what is built on a run."""
        return self._exchanges.log

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
        self._require_trained()
        if not self._feeds:
            self._take_up_or_stop()
        self._script.step()
        step.number = self.steps
        self._require_common(step)
        step.samples = sum(feed.samples for feed in self._feeds) if self._feeds else 1
        self._membership.training = {feed.key for feed in self._feeds}
        if self._keeping.has_state:
            several = self._exchanges_last > 1 and not len(self._hooks)
            self._keeping.checks.note_step(self._keeping.state, exact=several)
        self._exchanged = self._exchanges.count
        self._exchanges.log.begin_step()
        try:
            self._hooks.begin(step)
        except BaseException as error:
            self._exchanges.log.end_step(error)
            raise
        self._step = step

    def _require_trained(self) -> None:
        """Refuse to go on after a loop that was only opened to look at a batch.

        It counts as a loop of the script, so it would be empty in a process that resumes the run.
        """
        if self._looked_at:
            raise NotAllowedNow(
                f"a batch of {self._looked_at!r} was taken from a loop that was left at once",
                hint=PEEK_HINT,
            )

    def _require_common(self, step: Step) -> None:
        """Refuse a step that another worker does not train, since it left the loop or finished."""
        loops = {feed.key for feed in self._feeds if feed.key}
        left = self._membership.left_before(step.number, loops)
        finished = self._membership.finished_step
        if loops and 0 <= finished <= step.number:
            raise Conflict(
                f"another worker has finished after {finished} steps, and this one would train "
                f"step {step.number}",
                hint="all workers must end at the same step; decide with run.agree(value)",
            )
        if left:
            raise Conflict(
                f"worker {left!r} has left this loop before step {step.number}",
                hint="all workers must leave a loop at the same step; decide with run.agree(value)",
            )

    def end_step(self, step: Step) -> None:
        """Count a step as applied, unless a worker was lost; part of `run.step`."""
        self._close_step()
        if not self._complete_block(step):
            self._undo(step)
            return
        metrics = dict(step.metrics)
        averaged = step.averaged if len(self._feeds) == 1 else 0
        self._count_step(metrics.pop("loss", None), None, metrics, averaged)
        step.applied = True
        if self._membership.applied == 1:
            self._keeping.prepare_saves()  # from the first step on, optimizers have their moments
        if self._keeping.has_state and self.save_due():
            self.save()

    def _complete_block(self, step: Step) -> bool:
        """Let the hooks complete a step, and check it; False when a worker was lost meanwhile."""
        exchanges = self._exchanges.log
        try:
            complete = self._hooks.end(step)
            if complete:
                self._require_exchange(step)
                if self._keeping.has_state:
                    self._keeping.checks.require_changed(self._keeping.state)
        except BaseException as error:
            exchanges.end_step(error)
            raise
        exchanges.end_step(None if complete else self._change())
        return complete

    def _require_exchange(self, step: Step) -> None:
        """Refuse a step in which several workers train a common state, each for itself."""
        alone = self.world_size == 1 or not self._keeping.has_state or self._membership.rebuilds
        shares = any(isinstance(feed, RunBatches) for feed in self._feeds)
        if alone or not shares or len(self._hooks) or self._exchanges.count > self._exchanged:
            return
        raise NotAllowedNow(
            f"step {step.number} exchanged nothing with the other {self.world_size - 1} workers: "
            "each would train a model of its own",
            hint="average gradients over the workers: strata.torch.data_parallel(run, model), or "
            "run.average(gradients)",
        )

    def abandon_step(self, step: Step, error: BaseException) -> bool:
        """Undo a step that an error ended; whether the loop goes on. Part of `run.step`."""
        self._close_step()
        if isinstance(error, Exception) and self._hooks.lost_link(error):
            error = self._broken_link(error)
        self._exchanges.log.end_step(error)
        if not isinstance(error, GenerationChanged):
            return False
        self._undo(step)
        return True

    def _close_step(self) -> None:
        self._step = None
        self._exchanges_last = self._exchanges.count - self._exchanged
        self._membership.training = set()

    def _undo(self, step: Step) -> None:
        undone = self._hooks.abandon(step)
        if not len(self._hooks) and self._exchanges_last > 1 and self._keeping.has_state:
            undone = self._keeping.checks.is_unchanged(self._keeping.state)
        if not undone:
            log.warning(
                "step %d may be applied in part; this worker's model is not used", step.number
            )
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

    def _take_up_or_stop(self) -> None:
        """Enter the newest generation if it is another one; raise when the loop should end."""
        if not self._take_up():
            raise StopRequested(f"the loop ends: {self.stop_requested}")

    def mark_step(
        self,
        loss: SupportsFloat | None = None,
        *,
        epoch: int | None = None,
        **metrics: SupportsFloat,
    ) -> bool:
        """Count one step as applied; False when the loop should end.

        For loops that drive the run themselves, in place of `run.step`. Raises `GenerationChanged`,
        after the step was counted, when the membership changed and no batches are open.
        """
        numbers: dict[str, SupportsFloat] = {k: number_of(each) for k, each in metrics.items()}
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
        number = self._membership.stepped()
        for feed in self._feeds:
            feed.finished(number, loss, averaged)
            worker.epoch = feed.epoch if epoch is None else epoch
        split = self._times.finish()
        at = worker.epoch
        fact = fact_with_numbers(
            lambda loss, metrics: StepFinished(number, *split, loss, at, metrics or None),
            loss,
            metrics,
        )
        worker.recorder.emit(fact)
        if isinstance(loss, float | int):
            self._settle_loss()
        if worker.state != "training":
            self.report("training")

    def _settle_numbers(self) -> None:
        """Wait for the numbers of earlier steps that a GPU has yet to compute."""
        self._worker.recorder.settle()
        self._settle_loss()

    def _settle_loss(self) -> None:
        if self._last_loss is not None:
            with suppress(RuntimeError):  # a device that has failed
                self._worker.loss = float(self._last_loss)
            self._last_loss = None

    def timing(self, part: Part) -> Timing:
        """Says what the time in a `with` block goes to: `data`, `communication` or `wait`."""
        if part not in PARTS:
            raise InvalidArgument(
                f"{part!r} is not a part of a step", hint=f"use {', '.join(PARTS)}"
            )
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

    def average(self, values: Values, weight: float | None = None) -> Values:
        """The mean of every array and number in `values` over all workers, the same for all.

        `weight` is this worker's share: by default the samples that it trains in this step, and 1
        outside of a step. Raises `GenerationChanged` when a worker is lost meanwhile, which ends
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
