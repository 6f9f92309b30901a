"""`LocalSteps`: data-parallel training with many local steps between two exchanges (DiLoCo).

    local = strata.LocalSteps(run, weights, steps=16)
    run.restore({"weights": weights, "outer": local})
    for batch in run.batches("digits", batch_size=16 * 32, epochs=10):
        try:
            with local.round(batch) as parts:
                for part in parts:                # 16 steps on 32 samples each
                    loss = train_step(weights, part)
        except strata.GenerationChanged:
            continue                              # a worker was lost: repeat the round
        run.mark_step(loss=loss)

A round is one step of the run: its samples count once all workers have applied it. In a round each
worker trains by itself, with its own inner optimizer. At the end of the block the worker compresses
its *update*, the difference of its weights to those at the start (see `round_updates`), offers it
to the others, and announces it to a few neighbors, which forward the announcement (see
`sdk/peers/gossip`). Every worker downloads all updates. After a barrier, which all reach with all
updates, the outer optimizer steps with their mean, so all workers have the same weights again. If a
member is lost before the barrier, no worker applies the round, and the weights are those of its
start. If a member is lost after the barrier, the workers that applied the round have the newest
model.

The outer optimizer's momentum is the same on all workers and is part of the restored state. The
compression error and the inner optimizer's state belong to each worker: a new worker starts without
them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from strata.core.workers.worker_facts import ResultsApplied
from strata.core.workers.worker_operations import (
    ResultDeserializeCompleted,
    ResultDeserializeProgress,
    ResultDeserializeStarted,
    ResultsApplyStarted,
)
from strata.errors import DeadlineExceeded, InvalidArgument
from strata.sdk.peers.announcer import Announcer
from strata.sdk.peers.blob_client import Circle
from strata.sdk.peers.exchange import Exchange, LinkBroken
from strata.sdk.peers.gossip import Announcement, message_id
from strata.sdk.peers.update_collector import Collector, checksum
from strata.sdk.record.recorder import RecordedOperation
from strata.sdk.run import Run
from strata.sdk.steps.round_updates import (
    Arrays,
    Outer,
    Update,
    Vector,
    Weights,
    packed,
    read_update,
    unpacked,
)

BARRIER = "outer round"


class LocalSteps:
    """The rounds of one worker; one object per run. For the training thread.

    `weights` are NumPy arrays by name. A round has `steps` local steps. `rate` and `momentum` are
    the outer optimizer's; `keep` is the fraction of values, the largest ones, that an update sends.
    """

    def __init__(
        self,
        run: Run,
        weights: Mapping[str, NDArray[Any]] | Weights,
        steps: int,
        *,
        rate: float = 0.7,
        momentum: float = 0.9,
        keep: float = 1.0,
    ) -> None:
        if steps < 1 or not 0 < keep <= 1:
            raise InvalidArgument(
                f"LocalSteps got steps={steps} and keep={keep:g}",
                hint="use steps of at least 1, and keep above 0 and at most 1",
            )
        self.run, self.steps = run, steps
        self._weights = Arrays(weights) if isinstance(weights, Mapping) else weights
        self._keep = keep
        self._left = np.zeros_like(self._weights.read())
        self._outer = Outer(self._left.size, self._weights.exact, rate, momentum)
        self._circle: Circle | None = None
        self._collector = Collector(run.blobs, run.recorder)
        self._announcer = Announcer(run.blobs, run.recorder, self._collector.fetch_soon)
        run.add_tick(self._announcer.record_lags)

    @contextmanager
    def round(self, batch: Any) -> Iterator[Iterator[Any]]:
        """Yield the parts of a batch, one for each local step, then exchange and apply the updates.

        Raises `GenerationChanged` if a member is lost in between: repeat the round then.
        """
        start, step = self._weights.read(), self.run.steps
        try:
            yield split(batch, self.steps)
            update = self._weights.read() - start + self._left
            exchanged = partial(self._exchanged, start, update, float(rows(batch)), step)
            mean, left = self.run.together(exchanged)
        except BaseException:
            self._announcer.stop()
            self._weights.write(start)
            raise
        self._left = left
        self._apply(start, mean, step)

    def _apply(self, start: Vector, mean: Vector, step: int) -> None:
        """Apply the mean of all results, and record their owners."""
        circle = self._circle
        assert circle is not None, "the results were exchanged"
        owners, batches = list(circle.addresses), self._batches(step)
        results = [message_id(circle.generation, step, each) for each in owners]
        op = f"apply-{circle.generation}-{step}"
        self.run.recorder.emit(
            ResultsApplyStarted(step=step, workers=len(owners), batches=batches), op=op
        )
        failure = ""
        try:
            self._weights.write(self._outer.step(start, mean))
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}"[:500]
            raise
        finally:
            applied = ResultsApplied(
                batches=batches,
                step=step,
                ok=not failure,
                error=failure,
                results=results,
                owners=owners,
            )
            self.run.recorder.emit(applied, op=op)

    def state_dict(self) -> dict[str, Any]:
        """The outer optimizer's momentum."""
        return {"velocity": self._outer.velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the momentum of a checkpoint or a peer, and reset the compression error."""
        self._outer.velocity[...] = state["velocity"]
        self._left[...] = 0

    def _exchanged(
        self, start: Vector, update: Vector, weight: float, step: int, exchange: Exchange
    ) -> tuple[Vector, Vector]:
        """The mean of all members' updates, and this worker's compression error."""
        circle = self._met(exchange, step)
        digest = xxhash.xxh3_128(start.data)
        digest.update(self._outer.velocity.data)
        begun = digest.hexdigest()
        exact = self._weights.exact
        data = packed(update, circle.own, begun, weight, keep=self._keep, exact=exact)
        message = message_id(circle.generation, step, circle.own)
        announced = Announcement(
            message=message,
            generation=circle.generation,
            step=step,
            author=circle.own,
            blob=checksum(data),
            size_bytes=len(data),
            batch=self._batches(step)[0],
        )
        self._announcer.begin_round(step)
        self._collector.add(announced, data)
        self._announcer.announce(announced)
        results = self._collector.wait(step, lambda: exchange.over)
        mean = self._mean(circle, results, begun, step)
        try:
            self.run.barrier(BARRIER)
        except DeadlineExceeded as error:
            raise LinkBroken(error.message) from error
        self._collector.finish(step)
        return mean, update - unpacked(read_update(data))

    def _met(self, exchange: Exchange, step: int) -> Circle:
        """The members of the generation, once all of them accept announcements."""
        if self._circle is not None and self._circle.generation == exchange.generation:
            return self._circle
        circle = self.run.circle(exchange)
        self._collector.enter(circle)
        self._announcer.enter(circle, step)
        exchange.everyone("")  # no worker sends before all of them listen
        self._circle = circle
        return circle

    def _mean(
        self, circle: Circle, results: Mapping[str, bytes | bytearray], begun: str, step: int
    ) -> Vector:
        """The weighted mean, summed in rank order so that it is bit-identical on all workers."""
        total, weight = np.zeros_like(self._left), 0.0
        for author in circle.addresses:
            update, vector = self._decoded(circle, author, step, results[author])
            if (update.author, update.begun, update.size) != (author, begun, total.size):
                raise InvalidArgument(
                    f"worker {author} began round {step} with different weights or momentum",
                    hint='restore both: run.restore({"weights": weights, "outer": local})',
                )
            total += vector * np.float32(update.weight)
            weight += update.weight
        if not weight > 0:
            raise InvalidArgument(f"no worker has a sample in round {step}")
        if self.run.present_step is not None:
            self.run.present_step.averaged = round(weight)
        return total / np.float32(weight)

    def _decoded(
        self, circle: Circle, author: str, step: int, data: bytes | bytearray
    ) -> tuple[Update, Vector]:
        batch = self._batches(step)[0]
        decoding = RecordedOperation(
            self.run.recorder,
            f"decode-{message_id(circle.generation, step, author)}",
            ResultDeserializeStarted(batch=batch, blob=checksum(data)),
            lambda done_bytes: ResultDeserializeProgress(done_bytes=done_bytes, batch=batch),
            lambda ok, error: ResultDeserializeCompleted(ok=ok, error=error, batch=batch),
        )
        try:
            update = read_update(data)
            decoding.progress(len(data))
            vector = unpacked(update)
        except BaseException as error:
            decoding.end(error)
            raise
        decoding.end()
        return update, vector

    def _batches(self, step: int) -> list[str]:
        """The recorded names of the batches of a round."""
        return [f"{name}/{step}" for name in self.run.datasets] or [str(step)]


def rows(batch: Any) -> int:
    """The number of samples in a batch: a mapping or tuple of columns, or one array."""
    if isinstance(batch, Mapping):
        return rows(next(iter(batch.values())))
    return rows(batch[0]) if isinstance(batch, tuple) else len(batch)


def split(batch: Any, count: int) -> Iterator[Any]:
    """Split a batch into `count` parts of similar size; fewer if it has fewer samples."""
    cuts = np.linspace(0, rows(batch), count + 1).astype(int)
    for first, last in pairwise(cuts.tolist()):
        if first < last:
            yield _cut(batch, slice(first, last))


def _cut(batch: Any, part: slice) -> Any:
    if isinstance(batch, Mapping):
        return {name: _cut(column, part) for name, column in batch.items()}
    return tuple(_cut(each, part) for each in batch) if isinstance(batch, tuple) else batch[part]
