"""`run.batches` and `run.loader`: the batches of one loop of a script, shared among the workers.

What a step trains follows from the step alone (`core.order`). Which part of it is this worker's
follows from the lanes that the worker owns in the generation it has entered. So there is no cursor:
the batch that comes next is that of step `run.steps`. A step that was not applied is handed out
again, after a rollback the same order returns, and a new worker begins where the others are.

A loop trains some steps of the run (`core.loops`). It has ended when the run has had them, so in a
process that starts from a later state it is empty.

Between two batches is where membership changes are taken up: the newest generation is entered, and
lanes are divided anew. Rows that were read ahead and stay here are kept.

At the end of a loop all workers wait for each other: a worker that went on alone would take the
newest model with it, and the loss of another one in its last step would cost more than that step.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, SupportsFloat, TypeAlias

from msgspec import Struct

from strata.core.events import Fact
from strata.core.worker_facts import (
    BatchesAssigned,
    TrainingFinished,
    TrainingStarted,
)
from strata.data.streams import Engine, Stream
from strata.errors import DeadlineExceeded, InvalidArgument, NotAllowedNow
from strata.sdk.fetches import Fetches
from strata.sdk.late_numbers import fact_with_numbers
from strata.sdk.position import Position
from strata.sdk.previewing import Previewing
from strata.sdk.reading import Reading, recorded_skip
from strata.sdk.signals import GenerationChanged
from strata.sdk.sources import Source
from strata.sdk.steptime import StepTime, Timing
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

SMOOTHED = 0.8
PEEK_HINT = "to look at a batch without training it, call peek() of what run.batches returned"


class LoopCalls(Struct, frozen=True):
    """What a loop asks of its run.

    `enter` takes up a new generation, and raises `StopRequested` when the loop should end. `meet`
    returns when every worker is through, and raises `GenerationChanged` if one is lost before.
    `handed` is told of every batch, `ended` that the loop is over, and whether at its last step.
    `looked` is told of a dataset of which a script took one batch and left the loop at once.
    """

    enter: Callable[[], None]
    meet: Callable[[str], object]
    handed: Callable[[], None]
    ended: Callable[["RunBatches", bool], None]
    looked: Callable[[str], None]


class Iteration(Iterator[Any]):
    """One `for` loop over batches.

    When a script leaves the loop with `break`, nothing refers to this object any more; that is how
    the run learns of it. In `next(iter(loader))` that happens in the same instruction of the script
    in which the batch was taken: then the script only looked at a batch.
    """

    def __init__(self, batches: "RunBatches") -> None:
        self._batches = batches
        self._taken_at: Instruction = None

    def __next__(self) -> Any:
        self._taken_at = _instruction()
        return next(self._batches)

    def __del__(self) -> None:
        here = _instruction()
        self._batches.leave(looked=here is not None and here == self._taken_at)


class PastIteration(Iterator[Any]):
    """A `for` loop that the run had left before this process began: it has no batches."""

    def __init__(self, place: Position) -> None:
        self._place = place

    def __next__(self) -> Any:
        # A `for` loop ends here; `next` in a script shows the message.
        raise StopIteration(
            f"loop {self._place.key} of this script was over when this process resumed the run; "
            f"{PEEK_HINT}"
        )


Instruction: TypeAlias = tuple[int, int] | None


def _instruction() -> Instruction:
    """Which instruction of which frame has called the caller of this function."""
    frame: FrameType | None = sys._getframe(1).f_back
    return None if frame is None else (id(frame), frame.f_lasti)


class RunBatches:
    """The batches of one worker in one loop. For the training thread."""

    def __init__(
        self,
        worker: Worker,
        source: Source,
        place: Position,
        batches: Stream,
        columns: list[str],
        previewing: Previewing,
        times: StepTime,
        calls: LoopCalls,
    ) -> None:
        self.name, self.place = source.name, place
        self.rebalance = source.rebalance
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
                if self._all_through(self.start + self._steps):
                    self._end(complete=True)
                continue
            if self._membership.place.generation != self._generation:
                self._divide(step)
            elif self._handed == step:
                raise NotAllowedNow(
                    f"the batch of step {step} was handed out and the step was not applied",
                    hint="train every batch in a block: with run.step() as step",
                )
            with Timing(self._times, "data"):
                batch = next(self._batches, self)
            if batch is not self:
                self._began(step, batch)
                return batch
            if self._all_through(step):  # a stream says by its end how long it is
                self._end(complete=True)
        raise StopIteration

    @property
    def key(self) -> str:
        """The loop's name in the record."""
        return self.place.key

    @property
    def samples(self) -> int:
        """How many samples this worker trains in the present step."""
        taken = self._batches.taken
        current = taken is not None and self._handed == self._membership.steps
        return len(taken.samples) if taken is not None and current else 0

    @property
    def epoch(self) -> int:
        """The epoch that the next step begins in."""
        return self._batches.order.epoch_of(self._membership.steps + self._shift)

    def finished(self, step: int, loss: SupportsFloat | None, averaged: int = 0) -> None:
        """The step was applied: its samples are trained. Called by `run.step`."""
        if self.rebalance:
            known_s, now_s = self._worker.busy_s, self._times.busy_s
            self._worker.busy_s = SMOOTHED * known_s + (1 - SMOOTHED) * now_s if known_s else now_s
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

    def leave(self, *, looked: bool = False) -> None:
        """The script has left the loop before its end, if it was not over.

        `looked` means that it took a batch and left the loop at once.
        """
        if self._open:
            if looked and self._handed == self._membership.steps == self.start:
                self._calls.looked(self.name)
            self._end(complete=False)

    def state_dict(self) -> dict[str, Any]:
        """Which of the dataset's steps comes next, and of what order."""
        return {**self._batches.state_dict(), "step": self._membership.steps + self._shift}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a state of another order; where to go on is the run's to say, in steps."""
        self._batches.load_state_dict(state)
        self._generation = -1

    def preview(self) -> None:
        """Shows the coordinator a few samples, now and then. Called once a second."""
        lanes = self._membership.lanes(self.name)
        self._previewing.tick(self._batches, lanes, self._shift)

    def close(self) -> None:
        """Stops reading ahead."""
        self._open = False
        self._batches.close()

    def _end(self, *, complete: bool) -> None:
        self.close()
        if self.preview in self._worker.on_tick:
            self._worker.on_tick.remove(self.preview)
        self._calls.ended(self, complete)

    def _require_inside(self, step: int) -> None:
        """The run may have gone back to before this loop, where this process cannot follow."""
        if step < self.start:
            raise NotAllowedNow(
                f"the run is at step {step}, and this loop over {self.name!r} begins at step "
                f"{self.start}",
                hint="the process has to start again; an agent does that by itself",
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
        """Takes up the lanes of the generation that was entered."""
        lanes = self._membership.lanes(self.name)
        wanted = step + self._shift
        if self._batches.step != wanted:
            self._batches.seek(wanted)
        self._batches.set_lanes(lanes, wanted)
        self._generation = self._membership.place.generation
        self._worker.busy_s = 0.0  # with other lanes a step takes another time
        assigned = BatchesAssigned(self.name, step, self._generation, lanes, self._columns)
        self._recorder.emit(assigned)

    def _all_through(self, end: int) -> bool:
        """Wait for the others at the end; False when the membership has to be looked at again.

        When the steps up to the end are committed, all have applied them. A worker that missed the
        release of the barrier, because another one was lost at that moment, learns it by that.
        """
        if self._membership.entered.committed >= end:
            return True
        try:
            self._calls.meet(f"end of {self.name}, step {end}")
            return True
        except GenerationChanged:
            return False
        except DeadlineExceeded as error:
            log.warning("waiting for the others to train their last step: %s", error.message)
            return False


class Loader:
    """What a script loops over. Made by `run.batches` and `run.loader`.

    Each `for` loop over it is a loop of the run, so one loader can serve every epoch. A loop that
    the run had left before this process began has no batches. `len` is how many steps a loop has.
    """

    def __init__(
        self,
        open_loop: Callable[[], RunBatches | Position],
        length: Callable[[], int],
        first: Callable[[], Any],
    ) -> None:
        self._open_loop, self._length, self._first = open_loop, length, first
        self._current: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        opened = self._open_loop()
        return PastIteration(opened) if isinstance(opened, Position) else iter(opened)

    def peek(self) -> Any:
        """This worker's first batch of the dataset, to look at its shapes and types.

        No loop is opened, no step is counted, and the batch is trained later all the same.
        """
        return self._first()

    def __next__(self) -> Any:
        if self._current is None:
            self._current = iter(self)
        return next(self._current)

    def __len__(self) -> int:
        return self._length()


def first_batch(worker: Worker, source: Source, reading: Reading, engine: Engine) -> Any:
    """The first batch of a source that this worker would have with its present lanes."""
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
    worker: Worker,
    times: StepTime,
    source: Source,
    place: Position,
    reading: Reading,
    engine: Engine,
    calls: LoopCalls,
) -> RunBatches:
    """The batches of a source that was attached to the task, from the present step on."""
    if not callable(engine):
        raise InvalidArgument(
            f"the engine is {engine!r:.80}", hint="as engine=strata.torch.Loading(num_workers=4)"
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
    source.dataset.watch(Fetches(source.name, batches, shift, worker.recorder))
    columns = source.dataset.checked_columns(reading.columns)
    previewing = Previewing(
        source.name,
        source.dataset,
        columns,
        source.shard_size,
        lambda preview: worker.session.tell(pb.WorkerMessage(preview=preview)),
    )
    feed = RunBatches(worker, source, place, batches, columns, previewing, times, calls)
    worker.on_tick.append(feed.preview)
    return feed
