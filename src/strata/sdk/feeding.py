"""`run.batches`: the batches of a run, shared among its workers.

What a step trains follows from the step alone (`core.order`); which part of it is this worker's
follows from the lanes it owns in the generation it has entered. So there is no cursor here either:
the batch that comes next is that of step `run.steps`. A step that was not applied is handed out
again, after a rollback the same order returns, and a newcomer begins where the others are.

Between two batches is where membership changes are taken up: the newest generation is entered, and
lanes are divided anew. Rows that were read ahead and stay here are kept.

At the end everyone waits for everyone: whoever left early would take the newest model along, and
the loss of a worker in its last step would cost more than that step.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from strata.core.worker_facts import (
    BatchesAssigned,
    TrainingFinished,
    TrainingStarted,
)
from strata.data.streams import Engine, Stream
from strata.errors import DeadlineExceeded, InvalidArgument, NotAllowedNow
from strata.sdk.fetches import Fetches
from strata.sdk.previewing import Previewing
from strata.sdk.reading import Reading, recorded_skip
from strata.sdk.signals import GenerationChanged
from strata.sdk.sources import Source
from strata.sdk.steptime import StepTime, Timing
from strata.sdk.worker import Worker
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

SMOOTHED = 0.8


class RunBatches(Iterator[Any]):
    """The batches of one worker. Made by `run.batches`; for the training thread.

    `enter` takes up a new generation and says whether there is anything left to do; `meet_at_end`
    returns when every member is through, and raises `GenerationChanged` if one is lost before.
    """

    def __init__(
        self,
        worker: Worker,
        name: str,
        batches: Stream,
        columns: list[str],
        previewing: Previewing,
        times: StepTime,
        enter: Callable[[], bool],
        meet_at_end: Callable[[str], object],
    ) -> None:
        self.name = name
        self._worker = worker
        self._membership = worker.membership
        self._recorder = worker.recorder
        self._batches, self._columns = batches, columns
        self._previewing = previewing
        self._times = times
        self._enter = enter
        self._meet_at_end = meet_at_end
        self._generation = -1
        self._handed = -1
        self.rebalance = False

    def __next__(self) -> Any:
        while self._enter():
            step = self._membership.steps
            if self._membership.place.generation != self._generation:
                self._divide(step)
            elif self._handed == step:
                raise NotAllowedNow(
                    f"the batch of step {step} was handed out and the step was not marked",
                    hint="call run.mark_step() once for every batch; it makes the batch count",
                )
            with Timing(self._times, "data"):
                batch = next(self._batches, self)
            if batch is not self:
                self._began(step)
                return batch
            if self._all_through():
                break
        raise StopIteration

    @property
    def samples(self) -> int:
        """How many samples this worker trains in the present step."""
        taken = self._batches.taken
        current = taken is not None and self._handed == self._membership.steps
        return len(taken.samples) if taken is not None and current else 0

    @property
    def epoch(self) -> int:
        """The epoch that the next step begins in."""
        return self._batches.order.epoch_of(self._membership.steps)

    def finished(self, step: int, loss: float | None) -> None:
        """The step was applied: its samples are trained. Called by `run.step`."""
        if self.rebalance:
            known_s, now_s = self._worker.busy_s, self._times.busy_s
            self._worker.busy_s = SMOOTHED * known_s + (1 - SMOOTHED) * now_s if known_s else now_s
        if step == self._handed:
            self._recorder.emit(TrainingFinished(f"{self.name}/{step}", step, loss))

    def state_dict(self) -> dict[str, Any]:
        """Which step comes next, and of what order."""
        return {**self._batches.state_dict(), "step": self._membership.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a state of another order; where to go on is the run's to say, in steps."""
        self._batches.load_state_dict(state)
        self._generation = -1

    def preview(self) -> None:
        """Shows the coordinator a few samples, now and then. Called once a second."""
        self._previewing.tick(self._batches.taken)

    def close(self) -> None:
        """Stops reading ahead."""
        self._batches.close()

    def _began(self, step: int) -> None:
        self._handed = step
        taken = self._batches.taken
        assert taken is not None, "a batch was just taken"
        self._recorder.emit(
            TrainingStarted(
                f"{self.name}/{step}",
                step,
                self.name,
                self._generation,
                len(taken.samples),
                taken.digest,
                taken.content,
            )
        )

    def _divide(self, step: int) -> None:
        """Takes up the lanes of the generation that was entered."""
        lanes = self._membership.lanes(self.name)
        if self._batches.step != step:
            self._batches.seek(step)
        self._batches.set_lanes(lanes, step)
        self._generation = self._membership.place.generation
        self._worker.busy_s = 0.0  # with other lanes a step takes another time
        assigned = BatchesAssigned(self.name, step, self._generation, lanes, self._columns)
        self._recorder.emit(assigned)

    def _all_through(self) -> bool:
        """Waits for the others at the end; False when there is more to do after all."""
        while True:
            try:
                self._meet_at_end(self.name)
                return True
            except GenerationChanged:
                return False
            except DeadlineExceeded as error:
                log.warning("waiting for the others to train their last step: %s", error.message)


def open_batches(
    worker: Worker,
    times: StepTime,
    source: Source,
    reading: Reading,
    engine: Engine,
    enter: Callable[[], bool],
    meet_at_end: Callable[[str], object],
) -> RunBatches:
    """The batches of a source that was attached to the task, from the present step on."""
    if not callable(engine):
        raise InvalidArgument(
            f"the engine is {engine!r:.80}", hint="as engine=strata.torch.Loading(num_workers=4)"
        )
    batches = engine(
        source.dataset,
        source.order,
        worker.membership.lanes(source.name),
        worker.membership.steps,
        source.stop_step,
        columns=reading.columns,
        transform=reading.transform,
        prefetch_bytes=reading.prefetch_bytes,
        on_error=reading.on_error,
        on_skip=recorded_skip(worker),
        contents=reading.contents,
    )
    source.dataset.watch(Fetches(source.name, batches, worker.recorder))
    columns = source.dataset.checked_columns(reading.columns)
    previewing = Previewing(
        source.name,
        source.dataset,
        columns,
        source.shard_size,
        lambda preview: worker.session.tell(pb.WorkerMessage(preview=preview)),
    )
    feed = RunBatches(worker, source.name, batches, columns, previewing, times, enter, meet_at_end)
    feed.rebalance = source.rebalance
    worker.on_tick.append(feed.preview)
    return feed
