"""The loops of a run: over epochs, over the batches of a dataset, over leased shards."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from strata.core.loops import epoch_start
from strata.core.order import Mode
from strata.data.batches import DEFAULT_PREFETCH_BYTES, Batches
from strata.data.dataset import OnError
from strata.data.loader_plan import plan_loader
from strata.data.per_lane import Transform
from strata.data.streams import Engine
from strata.errors import InvalidArgument
from strata.sdk.feeding import LoopCalls, RunBatches, first_batch, open_batches
from strata.sdk.leasing import RunShards, open_shards
from strata.sdk.loader import Loader
from strata.sdk.position import Position
from strata.sdk.reading import Reading
from strata.sdk.run_steps import RunSteps
from strata.sdk.sources import LoopAsked, One, Trained, Wanted, checked_epochs, open_source
from strata.sdk.steptime import Timing
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


class RunLoops(RunSteps):
    """A run as something that a script loops over. For the training thread."""

    def epochs(self, count: int | None = None, *, max_steps: int | None = None) -> Iterator[int]:
        """The numbers of the epochs, from 0, or from where a restored state goes on.

        Within it every loop over `run.batches` or `run.loader` is one epoch. With `max_steps` the
        epochs go on until the run has had so many steps. Code between the loops of two epochs runs
        once for each epoch: a state that is saved knows whether it was before or after it.
        """
        for epoch in self._script.run_epochs(count, max_steps, lambda: self.steps):
            self._worker.epoch = epoch
            yield epoch

    def batches(
        self,
        dataset: Trained,
        batch_size: int = 0,
        epochs: int | None = None,
        *,
        steps: int | None = None,
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
    ) -> Loader:
        """This worker's share of every step, to loop over: `for batch in run.batches(...)`.

        `dataset` is the id of a registered one, data opened here (`strata.open_dataset`), or
        several of these with their weights. `batch_size` is what each worker trains in a step when
        all that the task began with are there; the global batch stays when their number changes
        (name it with `global_batch` instead to fix it yourself).

        The loop ends after `epochs` epochs or `steps` steps. Within `run.epochs` it is one epoch;
        elsewhere, with neither, it goes on until the script leaves it. A dataset that is opened
        again goes on where its last loop ended.

        With `contents` eight bytes for what was read are recorded with each step, which
        `strata audit --content` compares; with `rebalance` lanes move from slow workers to fast
        ones, so batches differ in size. `engine` is what reads:
        `strata.torch.Loading(num_workers=4)` gives tensors by `DataLoader`.
        """
        wanted = Wanted(batch_size, global_batch, lanes, mode, window, drop_tail, rebalance)
        reading = Reading(columns, transform, on_error, prefetch_bytes, contents)
        source = partial(open_source, self._worker, dataset, wanted, seed=seed)
        return self._loader(source, checked_epochs(epochs), steps, reading, engine, drop_tail)

    def loader(
        self,
        dataset: Any,
        batch_size: int = 0,
        epochs: int | None = None,
        *,
        steps: int | None = None,
        global_batch: int = 0,
        lanes: int = 0,
        seed: int = 42,
        name: str = "",
        shuffle: bool | None = None,
        sampler: Any = None,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """Batches of any map-style torch Dataset, in place of `torch.utils.data.DataLoader`.

        `batch_size`, `global_batch`, `epochs` and `steps` are as for `run.batches`. `shuffle`,
        `sampler`, `drop_last`, `collate_fn`, `num_workers`, `pin_memory` and the other options are
        those of `DataLoader`; what a run cannot honour is refused by name. The order is the same
        for any number of workers and processes, and a run resumes at the exact batch.
        """
        wanted = Wanted(batch_size, global_batch, lanes, None, 0, drop_last)
        plan = plan_loader(
            dataset,
            seed=seed,
            name=name,
            shuffle=shuffle,
            sampler=sampler,
            drop_last=drop_last,
            **options,
        )
        source = partial(open_source, self._worker, plan.dataset, wanted, seed=seed)
        return self._loader(
            source,
            checked_epochs(epochs),
            steps,
            Reading(),
            plan.engine,
            plan.drop_tail,
            has_length=plan.has_length,
        )

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
            self._times,
            seed=seed,
        )
        self._feeds.append(feed)
        self._keeping.due.even = False
        return feed

    def _loader(
        self,
        source: Callable[[LoopAsked], Any],
        epochs: int,
        steps: int | None,
        reading: Reading,
        engine: Engine,
        drop_tail: bool,
        *,
        has_length: bool = True,
    ) -> Loader:
        if steps is not None and steps < 1:
            raise InvalidArgument(f"steps is {steps!r}", hint="give 1 or more, or leave it out")
        script = self._script

        def bound() -> tuple[int, int]:
            """Epochs and steps of a loop that is opened now; 0 is no limit."""
            within = script.max_steps - self.steps if script.max_steps else 0
            most = min(each for each in (steps, within) if each) if steps or within else 0
            return epochs or int(script.in_epoch), most

        def length() -> int:
            own_epochs, most = bound()
            found = source(LoopAsked(planned_epochs=script.epochs or epochs))
            if not most and not (own_epochs and has_length):
                raise TypeError("a loop without epochs or steps has no length")
            whole = epoch_start(found.total_samples, found.global_batch, own_epochs, drop_tail)
            return min(each for each in (whole, most) if each)

        def opened() -> RunBatches | Position:
            self._require_trained()
            self._tell_loop_left()
            place, past = script.open_loop()
            if past:
                return place
            own_epochs, most = bound()
            asked = LoopAsked(
                key=place.key,
                step=self.steps,
                epochs=own_epochs,
                steps=most,
                planned_epochs=script.epochs or epochs,
                entering=place > script.resumed,
            )
            return self._opened(source(asked), place, reading, engine)

        def first() -> Any:
            found = source(LoopAsked(planned_epochs=script.epochs or epochs))
            with Timing(self._times, "data"):
                return first_batch(self._worker, found, reading, engine)

        return Loader(opened, length, first)

    def _opened(self, source: Any, place: Position, reading: Reading, engine: Engine) -> RunBatches:
        calls = LoopCalls(
            enter=self._take_up_or_stop,
            meet=self.barrier,
            handed=self._script.handed,
            ended=self._loop_ended,
            looked=self._looked,
        )
        feed = open_batches(self._worker, self._times, source, place, reading, engine, calls)
        for earlier in [each for each in self._feeds if isinstance(each, RunBatches)]:
            if earlier.start < source.start:
                earlier.leave()  # its variable is still there, and the script has gone on
        self._feeds.append(feed)
        self._keeping.attach(feed.name, feed)
        if self._save_wanted:
            self.save()
        return feed

    def _looked(self, dataset: str) -> None:
        self._looked_at = dataset

    def _loop_ended(self, feed: RunBatches, complete: bool) -> None:
        """A loop is over; one that was left before its end must be left by all workers.

        An error leaves a loop, too. So the others are told when the script goes on after the loop.
        """
        if feed in self._feeds:
            self._feeds.remove(feed)
        self._script.end_loop(feed.place)
        self._settle_numbers()
        if not complete:
            self._loop_left = pb.LeaveLoop(loop=feed.place.key, step=self.steps)

    def _tell_loop_left(self) -> None:
        """Tell the other workers that the script has left a loop before its end, if it has."""
        left, self._loop_left = self._loop_left, None
        if left is not None and not self.stop_requested:
            self._session.ask("leave_loop", left)
