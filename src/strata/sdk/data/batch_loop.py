"""`run.batches` and `run.loader`: the batches of one loop of a script, shared among the workers.

The samples of a step depend on the step's number alone (`core/order`). This worker's part of them
depends on the lanes that it owns in the entered generation. So there is no cursor: the next batch
is always that of step `run.steps`. A step that was not applied gets its batch again, a rollback
repeats the same order, and a new worker starts at the step of the others.

A loop trains a range of the run's steps (`core/datasets/training_loops`). It ends after them, so it
is empty in a process that starts from a later state.

Membership changes take effect between two batches: the worker enters the newest generation and gets
its lanes. Prefetched rows of lanes that it keeps are reused.

At the end of a loop all workers wait for each other. Otherwise a worker could continue with the
newest model, and the loss of another worker in its last step would cost more than that step.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, SupportsFloat, TypeAlias

from msgspec import Struct

from strata.core.events import Fact
from strata.core.workers.worker_facts import BatchesAssigned, TrainingFinished, TrainingStarted
from strata.data.reading.step_reader import BatchStream, Engine
from strata.errors import DeadlineExceeded, InvalidArgument, NotAllowedNow
from strata.sdk.data.loop_source import LoopSource, ReadOptions, recorded_skip
from strata.sdk.data.preview_sender import SamplePreview
from strata.sdk.data.script_position import Position
from strata.sdk.interrupts import GenerationChanged
from strata.sdk.record.late_numbers import fact_with_numbers
from strata.sdk.session.run_worker import RunWorker
from strata.sdk.steps.step_block import StepTime, Timing
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


class LoopCalls(Struct, frozen=True):
    """Callbacks of a loop into its run.

    `enter` enters a newer generation, and raises `StopRequested` if the loop should end. `meet`
    waits until every worker has finished the loop, and raises `GenerationChanged` if one is lost.
    `handed` is called for every batch, `ended` at the end of the loop with whether it was complete,
    and `peeked` with the name of a dataset of which the script only took one batch.
    """

    enter: Callable[[], None]
    meet: Callable[[str], object]
    handed: Callable[[], None]
    ended: Callable[["RunBatches", bool], None]
    peeked: Callable[[str], None]


class Iteration(Iterator[Any]):
    """One `for` loop over batches.

    When a script leaves the loop with `break`, this object is deleted; that is how the run notices
    it. With `next(iter(loader))` that happens in the same instruction of the script that took the
    batch: then the script only peeked at a batch.
    """

    def __init__(self, batches: "RunBatches") -> None:
        self._batches = batches
        self._taken_at: Instruction = None

    def __next__(self) -> Any:
        self._taken_at = _instruction()
        return next(self._batches)

    def __del__(self) -> None:
        here = _instruction()
        self._batches.leave(peeked=here is not None and here == self._taken_at)


Instruction: TypeAlias = tuple[int, int] | None


def _instruction() -> Instruction:
    """The frame and instruction from which the caller of this function was called."""
    frame: FrameType | None = sys._getframe(1).f_back
    return None if frame is None else (id(frame), frame.f_lasti)


class RunBatches:
    """The batches of one worker in one loop. For the training thread."""

    def __init__(
        self,
        worker: RunWorker,
        source: LoopSource,
        place: Position,
        batches: BatchStream,
        columns: list[str],
        previewing: SamplePreview,
        times: StepTime,
        calls: LoopCalls,
    ) -> None:
        self.name, self.place = source.name, place
        self._worker = worker
        self._membership = worker.membership
        self._recorder = worker.recorder
        self._batches, self._columns = batches, columns
        self.start, self._steps = source.start, source.steps
        self._shift = source.first - source.start
        self._previewing = previewing
        self._times = times
        self._calls = calls
        self._generation = -1
        self._handed = -1
        self._open = True

    def __iter__(self) -> Iteration:
        return Iteration(self)

    def __next__(self) -> Any:
        while self._open:
            self._calls.enter()
            step = self._membership.steps
            self._require_inside(step)
            if self._steps is not None and step >= self.start + self._steps:
                if self._all_finished(self.start + self._steps):
                    self._end(complete=True)
                continue
            if self._membership.place.generation != self._generation:
                self._divide(step)
            elif self._handed == step:
                raise NotAllowedNow(
                    f"the script took the batch of step {step} but did not apply the step",
                    hint="train every batch inside `with run.step() as step:`",
                )
            with Timing(self._times, "data"):
                batch = next(self._batches, self)
            if batch is not self:
                self._began(step, batch)
                return batch
            if self._all_finished(step):  # the length of a stream is known at its end
                self._end(complete=True)
        raise StopIteration

    @property
    def key(self) -> str:
        """The recorded name of the loop."""
        return self.place.key

    @property
    def samples(self) -> int:
        """The number of samples that this worker trains in the current step."""
        taken = self._batches.taken
        current = taken is not None and self._handed == self._membership.steps
        return len(taken.samples) if taken is not None and current else 0

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self._batches.order.epoch_of(self._membership.steps + self._shift)

    def finished(self, step: int, loss: SupportsFloat | None, averaged: int = 0) -> None:
        """Record the samples of a step that was applied. Called by `run.step`."""
        taken = self._batches.taken
        if step == self._handed and taken is not None:
            generation = self._generation

            def make(loss: float | None, _: object) -> Fact:
                return TrainingFinished(
                    batch=f"{self.name}/{step}",
                    step=step,
                    loss=loss,
                    dataset=self.name,
                    generation=generation,
                    samples=len(taken.samples),
                    digest=taken.digest,
                    content=taken.content,
                    averaged=averaged,
                )

            self._recorder.emit(fact_with_numbers(make, loss, {}))

    def leave(self, *, peeked: bool = False) -> None:
        """Close a loop that the script left before its end.

        `peeked` means that the script took one batch and left the loop at once.
        """
        if self._open:
            if peeked and self._handed == self._membership.steps == self.start:
                self._calls.peeked(self.name)
            self._end(complete=False)

    def state_dict(self) -> dict[str, Any]:
        """The next step of the dataset, and its order."""
        return {**self._batches.state_dict(), "step": self._membership.steps + self._shift}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if the state has another order; the position follows from the run's steps."""
        self._batches.load_state_dict(state)
        self._generation = -1

    def preview(self) -> None:
        """Send a few samples to the coordinator from time to time. Called once a second."""
        lanes = self._membership.lanes(self.name)
        self._previewing.tick(self._batches, lanes, self._shift)

    def close(self) -> None:
        """Stop prefetching."""
        self._open = False
        self._batches.close()

    def _end(self, *, complete: bool) -> None:
        self.close()
        if self.preview in self._worker.on_tick:
            self._worker.on_tick.remove(self.preview)
        self._calls.ended(self, complete)

    def _require_inside(self, step: int) -> None:
        """Raise if the run was rolled back to before this loop."""
        if step < self.start:
            raise NotAllowedNow(
                f"the run was rolled back to step {step}, but this loop over {self.name!r} starts "
                f"at step {self.start}",
                hint="start this process again; an agent does so automatically",
            )

    def _began(self, step: int, batch: Any) -> None:
        self._handed = step
        taken = self._batches.taken
        assert taken is not None, "a batch was just taken"
        self._recorder.emit(
            TrainingStarted(
                batch=f"{self.name}/{step}",
                step=step,
                dataset=self.name,
                generation=self._generation,
                samples=len(taken.samples),
                digest=taken.digest,
            )
        )
        self._previewing.see(batch, taken)
        self._calls.handed()

    def _divide(self, step: int) -> None:
        """Apply the lanes of the entered generation."""
        lanes = self._membership.lanes(self.name)
        wanted = step + self._shift
        if self._batches.step != wanted:
            self._batches.seek(wanted)
        self._batches.set_lanes(lanes, wanted)
        self._generation = self._membership.place.generation
        self._recorder.emit(self._assigned(step, lanes))

    def _assigned(self, step: int, lanes: list[int]) -> BatchesAssigned:
        """The event for this worker's assignment from a step to the end of the loop."""
        order, at = self._batches.order, step + self._shift
        stop = None if self._steps is None else self.start + self._steps
        return BatchesAssigned(
            dataset=self.name,
            step=step,
            generation=self._generation,
            lanes=lanes,
            columns=self._columns,
            first_batch=f"{self.name}/{step}",
            last_batch="" if stop is None else f"{self.name}/{stop - 1}",
            batches=0 if stop is None else stop - step,
            samples=order.positions(at, at + 1, lanes).size,
            global_batch=order.positions(at, at + 1).size,
            lane_count=order.lanes,
        )

    def _all_finished(self, end: int) -> bool:
        """Wait for the others at the end; False if the membership may have changed.

        When the steps up to the end are committed, all workers have applied them. That also tells a
        worker that missed the release of the barrier because another worker was lost.
        """
        if self._membership.entered.committed >= end:
            return True
        try:
            self._calls.meet(f"end of {self.name}, step {end}")
            return True
        except GenerationChanged:
            return False
        except DeadlineExceeded as error:
            log.warning("waiting for other workers to finish the loop: %s", error.message)
            return False


def first_batch(worker: RunWorker, source: LoopSource, reading: ReadOptions, engine: Engine) -> Any:
    """This worker's first batch of a source, with its current lanes."""
    batches = engine(
        source.dataset,
        source.order,
        worker.membership.lanes(source.name) or None,
        0,
        1,
        columns=reading.columns,
        transform=reading.transform,
        prefetch_bytes=0,
        on_error=reading.on_error,
        on_skip=lambda row: None,
        contents=False,
    )
    try:
        return next(batches)
    finally:
        batches.close()


def open_batches(
    worker: RunWorker,
    times: StepTime,
    source: LoopSource,
    place: Position,
    reading: ReadOptions,
    engine: Engine,
    calls: LoopCalls,
) -> RunBatches:
    """Open the batches of an attached source, from the current step on."""
    if not callable(engine):
        raise InvalidArgument(
            f"run.batches got engine={engine!r:.80}",
            hint="pass a callable, such as engine=strata.torch.Loading(num_workers=4)",
        )
    step = max(worker.membership.steps, source.start) - source.start + source.first
    batches = engine(
        source.dataset,
        source.order,
        worker.membership.lanes(source.name),
        step,
        None if source.steps is None else max(source.first + source.steps, step),
        columns=reading.columns,
        transform=reading.transform,
        prefetch_bytes=reading.prefetch_bytes,
        on_error=reading.on_error,
        on_skip=recorded_skip(worker),
        contents=reading.contents,
    )
    shift = source.first - source.start
    source.dataset.read_for(lambda: f"{source.name}/{batches.reading - shift}")
    columns = source.dataset.checked_columns(reading.columns)
    previewing = SamplePreview(
        source.name,
        source.dataset,
        columns,
        source.shard_size,
        lambda preview: worker.session.tell(pb.WorkerMessage(preview=preview)),
    )
    feed = RunBatches(worker, source, place, batches, columns, previewing, times, calls)
    worker.on_tick.append(feed.preview)
    return feed
