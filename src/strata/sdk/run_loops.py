"""The loops of a run: over epochs, over the batches of a dataset, over leased shards."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from strata.core.datasets.training_loops import epoch_start, loop_steps
from strata.core.order import Mode
from strata.core.rule_settings import SHUFFLE_SEED
from strata.data.reading.batch_iterator import DEFAULT_PREFETCH_BYTES, Batches
from strata.data.reading.lane_transforms import Transform
from strata.data.reading.step_reader import Engine
from strata.data.source_dataset import OnError
from strata.data.torch.loader_plan import plan_loader
from strata.errors import InvalidArgument
from strata.sdk.data.batch_loop import LoopCalls, RunBatches, first_batch, open_batches
from strata.sdk.data.loop_source import (
    BatchOptions,
    LoopRequest,
    One,
    ReadOptions,
    Trained,
    checked_epochs,
    open_loop_source,
)
from strata.sdk.data.script_position import Loader, LoopLength, Position
from strata.sdk.data.shard_loop import RunShards, open_shards
from strata.sdk.run_steps import RunSteps
from strata.sdk.steps.step_block import Timing
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


class RunLoops(RunSteps):
    """The loops of a run. For the training thread."""

    def epochs(self, count: int | None = None, *, max_steps: int | None = None) -> Iterator[int]:
        """Iterate over the epoch numbers, from 0 or from the position of a restored state.

        Inside, every loop over `run.batches` or `run.loader` is one epoch. With `max_steps` the
        epochs end when the run has had that many steps. Code between the loops of two epochs runs
        once per epoch: a saved state contains whether that code had run.
        """
        for epoch in self._script.run_epochs(count, max_steps, lambda: self.steps):
            self._worker.epoch = epoch
            yield epoch

    def require_no_goal(self, setter: str) -> None:
        """Raise if the task was given `--epochs` or `--steps`, which `setter` cannot follow."""
        self._script.require_no_goal(setter)

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
        seed: int = SHUFFLE_SEED,
        drop_tail: bool = False,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        on_error: OnError = "raise",
        contents: bool = False,
        rebalance: bool = False,
        engine: Engine = Batches,
    ) -> Loader:
        """This worker's share of every step: `for batch in run.batches(...)`.

        `dataset` is the id of a registered dataset, an opened one (`strata.open_dataset`), or a
        dict of these with their weights. `batch_size` is the number of samples per worker and step
        at the task's initial number of workers. The global batch stays the same when that number
        changes; set it directly with `global_batch`.

        The loop ends after `epochs` epochs or `steps` steps. Inside `run.epochs` it is one epoch;
        elsewhere, without either, it ends when the script leaves it. A dataset that is opened again
        continues where its last loop ended.

        With `contents` a checksum (8 bytes) of the samples read is recorded with each step, for
        `strata audit --content`. With `rebalance` lanes move from slow to fast workers, so batch
        sizes differ. `engine` reads the data: `strata.torch.Loading(num_workers=4)` returns tensors
        from a `DataLoader`.
        """
        wanted = BatchOptions(batch_size, global_batch, lanes, mode, window, drop_tail, rebalance)
        reading = ReadOptions(columns, transform, on_error, prefetch_bytes, contents)
        source = partial(open_loop_source, self._worker, dataset, wanted, seed=seed)
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
        seed: int = SHUFFLE_SEED,
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
        wanted = BatchOptions(batch_size, global_batch, lanes, None, 0, drop_last)
        plan = plan_loader(
            dataset,
            seed=seed,
            name=name,
            shuffle=shuffle,
            sampler=sampler,
            drop_last=drop_last,
            **options,
        )
        source = partial(open_loop_source, self._worker, plan.dataset, wanted, seed=seed)
        return self._loader(
            source,
            checked_epochs(epochs),
            steps,
            ReadOptions(),
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
        seed: int = SHUFFLE_SEED,
        on_error: OnError = "raise",
    ) -> RunShards:
        """Shards for asynchronous training: an iterator of shards, each an iterator of batches.

        A shard is complete when its last batch was taken and the next shard is requested; a shard
        that is left earlier is assigned again. Workers run at their own pace: see
        `sdk/data/shard_loop`.
        """
        reading = ReadOptions(columns, transform, on_error)
        feed = open_shards(
            self._worker,
            dataset,
            batch_size,
            checked_epochs(epochs),
            reading,
            self._enter_newest,
            self._times,
            seed=seed,
        )
        self._feeds.append(feed)
        self._run_state.due.even = False
        return feed

    def _loader(
        self,
        source: Callable[[LoopRequest], Any],
        epochs: int,
        steps: int | None,
        reading: ReadOptions,
        engine: Engine,
        drop_tail: bool,
        *,
        has_length: bool = True,
    ) -> Loader:
        if steps is not None and steps < 1:
            raise InvalidArgument(f"the loop has steps={steps!r}", hint="use 1 or more, or omit it")
        script = self._script

        def length() -> int:
            own_epochs = epochs or int(script.in_epoch)
            found = source(LoopRequest(planned_epochs=script.epochs or epochs))
            left = max(script.max_steps - self.steps, 0) if script.max_steps else None
            if left is None and not steps and not (own_epochs and has_length):
                raise TypeError("a loop without epochs or steps has no length; pass one of them")
            whole = epoch_start(found.total_samples, found.global_batch, own_epochs, drop_tail)
            most = min(each for each in (whole, steps) if each) if whole or steps else None
            return min(each for each in (most, left) if each is not None)

        def opened() -> RunBatches | Position:
            self._require_trained()
            self._report_left_loop()
            own_epochs = epochs or int(script.in_epoch)
            place, past = script.open_loop(LoopLength(own_epochs, steps or 0))
            if past:
                return place
            if script.max_steps and self.steps >= script.max_steps and place > script.resumed:
                script.limit(place)
                script.end_loop(place)
                return place
            found = source(
                LoopRequest(
                    key=place.key,
                    step=self.steps,
                    epochs=own_epochs,
                    steps=steps or 0,
                    planned_epochs=script.epochs or epochs,
                    entering=place > script.resumed,
                    until=script.max_steps,
                )
            )
            size = found.total_samples, found.global_batch
            own = loop_steps(*size, found.first, own_epochs, steps or 0, drop_tail=drop_tail)
            if script.max_steps and found.steps is not None and (own is None or found.steps < own):
                script.limit(place)
            return self._opened(found, place, reading, engine)

        def first() -> Any:
            found = source(LoopRequest(planned_epochs=script.epochs or epochs))
            with Timing(self._times, "data"):
                return first_batch(self._worker, found, reading, engine)

        return Loader(opened, length, first)

    def _opened(
        self, source: Any, place: Position, reading: ReadOptions, engine: Engine
    ) -> RunBatches:
        calls = LoopCalls(
            enter=self._enter_newest_or_stop,
            meet=self.barrier,
            handed=self._script.handed,
            ended=self._loop_ended,
            peeked=self._note_peek,
        )
        feed = open_batches(self._worker, self._times, source, place, reading, engine, calls)
        for earlier in [each for each in self._feeds if isinstance(each, RunBatches)]:
            if earlier.start < source.start:
                earlier.leave()  # the script still holds its iterator but has left the loop
        self._feeds.append(feed)
        self._run_state.attach(feed.name, feed)
        if self._save_wanted:
            self.save()
        return feed

    def _note_peek(self, dataset: str) -> None:
        self._peeked_dataset = dataset

    def _loop_ended(self, feed: RunBatches, complete: bool) -> None:
        """Close a loop; if it was left before its end, all workers must leave it.

        An error also leaves a loop. So the other workers are told only once the script continues
        after the loop.
        """
        if feed in self._feeds:
            self._feeds.remove(feed)
        self._script.end_loop(feed.place, complete=complete)
        self._settle_numbers()
        if not complete:
            self._loop_left = pb.LeaveLoop(loop=feed.place.key, step=self.steps)

    def _report_left_loop(self) -> None:
        """Tell the other workers that the script has left a loop before its end, if it has."""
        left, self._loop_left = self._loop_left, None
        if left is not None and not self.stop_requested:
            self._session.ask("leave_loop", left)
