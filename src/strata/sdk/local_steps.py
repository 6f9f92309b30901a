"""Data-parallel training that communicates seldom: many local steps, then one exchange (DiLoCo).

    local = strata.LocalSteps(run, weights, steps=16)
    run.restore({"weights": weights, "outer": local})
    for batch in run.batches("digits", batch_size=16 * 32, epochs=10):
        try:
            with local.round(batch) as parts:
                for part in parts:                # 16 steps on 32 samples each
                    loss = train_step(weights, part)
        except strata.GenerationChanged:
            continue                              # a worker was lost: the round is done again
        run.mark_step(loss=loss)

A round is one step of the run: its samples count when everyone has applied it, and never twice. In
it each worker trains on its own, with an optimizer of its own. At the end of the block its
*update*, how far its weights have come, is made small (see `updates`), offered to the others,
and announced to a few neighbours, who tell theirs (see `gossip`). Everyone fetches everyone's
update, and once all have all of them, which is a barrier, an outer optimizer takes their mean for
its gradient: all have the same weights again. A round in which a member is lost is applied by
nobody, and the weights are again those it began with. (One that was lost after the barrier has
taken part: those who applied the round have the newest model then.)

The outer optimizer's momentum is the same everywhere and belongs to the state that is restored.
What compression left out and the inner optimizer's state are each worker's own: a newcomer
begins without them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from strata.core.worker_facts import ResultsApplied
from strata.core.worker_operations import (
    ResultDeserializeCompleted,
    ResultDeserializeProgress,
    ResultDeserializeStarted,
    ResultsApplyStarted,
)
from strata.errors import DeadlineExceeded, InvalidArgument
from strata.sdk.announcing import Announcer
from strata.sdk.collecting import Collector, checksum
from strata.sdk.exchange import Exchange, LinkBroken
from strata.sdk.gossip import Announcement, message_id
from strata.sdk.operations import Operation
from strata.sdk.peers import Circle
from strata.sdk.run import Run
from strata.sdk.updates import Outer, Update, Vector, packed, read_update, unpacked
from strata.sdk.weights import Arrays, Weights

BARRIER = "outer round"


class LocalSteps:
    """The rounds of one worker; a run has one of it. For the training thread.

    `weights` are NumPy arrays by name. A round has `steps` local steps. `rate` and `momentum` are
    the outer optimizer's; `keep` is the share of values that an update sends, the largest ones.
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
                f"steps is {steps} and keep {keep:g}", hint="at least 1 step; keep up to 1"
            )
        self.run, self.steps = run, steps
        self._weights = Arrays(weights) if isinstance(weights, Mapping) else weights
        self._keep = keep
        self._left = np.zeros_like(self._weights.read())
        self._outer = Outer(self._left.size, self._weights.exact, rate, momentum)
        self._circle: Circle | None = None
        self._collector = Collector(run.blobs, run.recorder)
        self._announcer = Announcer(run.blobs, run.recorder, self._collector.fetch_soon)
        run.add_tick(self._announcer.look)

    @contextmanager
    def round(self, batch: Any) -> Iterator[Iterator[Any]]:
        """Gives the parts of a batch, one for each local step; then the workers' updates are one.

        Raises `GenerationChanged` when a member is lost meanwhile: let go of the round then.
        """
        start, step = self._weights.read(), self.run.steps
        try:
            yield split(batch, self.steps)
            update = self._weights.read() - start + self._left
            exchanged = partial(self._exchanged, start, update, float(rows(batch)), step)
            mean, left = self.run.together(exchanged)
        except BaseException:
            self._announcer.hush()
            self._weights.write(start)
            raise
        self._left = left
        self._apply(start, mean, step)

    def _apply(self, start: Vector, mean: Vector, step: int) -> None:
        """Step with the mean of all results, and record whose they were."""
        circle = self._circle
        assert circle is not None, "the results were exchanged"
        owners, batches = list(circle.addresses), self._batches(step)
        results = [message_id(circle.generation, step, each) for each in owners]
        op = f"apply-{circle.generation}-{step}"
        self.run.recorder.emit(ResultsApplyStarted(step, len(owners), batches), op=op)
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
        """Takes it over from a checkpoint or a peer; what was left out before is void."""
        self._outer.velocity[...] = state["velocity"]
        self._left[...] = 0

    def _exchanged(
        self, start: Vector, update: Vector, weight: float, step: int, exchange: Exchange
    ) -> tuple[Vector, Vector]:
        """The mean of everyone's updates, and what of ours is not in it; all have it, or none."""
        circle = self._met(exchange, step)
        digest = xxhash.xxh3_128(start.data)
        digest.update(self._outer.velocity.data)
        begun = digest.hexdigest()
        exact = self._weights.exact
        data = packed(update, circle.own, begun, weight, keep=self._keep, exact=exact)
        message = message_id(circle.generation, step, circle.own)
        said = Announcement(
            message,
            circle.generation,
            step,
            circle.own,
            checksum(data),
            len(data),
            self._batches(step)[0],
        )
        self._announcer.begin(step)
        self._collector.put(said, data)
        self._announcer.announce(said)
        results = self._collector.wait(step, lambda: exchange.over)
        mean = self._mean(circle, results, begun, step)
        try:
            self.run.barrier(BARRIER)
        except DeadlineExceeded as error:
            raise LinkBroken(error.message) from error
        self._collector.finish(step)
        return mean, update - unpacked(read_update(data))

    def _met(self, exchange: Exchange, step: int) -> Circle:
        """The members of the generation, once all of them listen."""
        if self._circle is not None and self._circle.generation == exchange.generation:
            return self._circle
        circle = self.run.circle(exchange)
        self._collector.open(circle)
        self._announcer.open(circle, step)
        exchange.everyone("")  # no worker sends before all of them listen
        self._circle = circle
        return circle

    def _mean(
        self, circle: Circle, results: Mapping[str, bytes | bytearray], begun: str, step: int
    ) -> Vector:
        """Adds up in the order of ranks, so that everyone gets the same, bit for bit."""
        total, weight = np.zeros_like(self._left), 0.0
        for author in circle.addresses:
            update, vector = self._decoded(circle, author, step, results[author])
            if (update.author, update.begun, update.size) != (author, begun, total.size):
                raise InvalidArgument(
                    f"worker {author} began round {step} with other weights or momentum",
                    hint='restore both: run.restore({"weights": weights, "outer": local})',
                )
            total += vector * np.float32(update.weight)
            weight += update.weight
        if not weight > 0:
            raise InvalidArgument(f"no worker had a sample in round {step}")
        if self.run.present_step is not None:
            self.run.present_step.averaged = round(weight)
        return total / np.float32(weight)

    def _decoded(
        self, circle: Circle, author: str, step: int, data: bytes | bytearray
    ) -> tuple[Update, Vector]:
        batch = self._batches(step)[0]
        decoding = Operation(
            self.run.recorder,
            f"decode-{message_id(circle.generation, step, author)}",
            ResultDeserializeStarted(batch, checksum(data)),
            lambda done_bytes: ResultDeserializeProgress(done_bytes, batch),
            lambda ok, error: ResultDeserializeCompleted(ok, error, batch),
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
        """The batches that a round trains, by the names that they have in the record."""
        return [f"{name}/{step}" for name in self.run.datasets] or [str(step)]


def rows(batch: Any) -> int:
    """How many samples a batch has: a mapping or tuple of columns, or one array."""
    if isinstance(batch, Mapping):
        return rows(next(iter(batch.values())))
    return rows(batch[0]) if isinstance(batch, tuple) else len(batch)


def split(batch: Any, count: int) -> Iterator[Any]:
    """A batch in so many parts of about one size; fewer, where it has fewer samples."""
    cuts = np.linspace(0, rows(batch), count + 1).astype(int)
    for first, last in pairwise(cuts.tolist()):
        if first < last:
            yield _cut(batch, slice(first, last))


def _cut(batch: Any, part: slice) -> Any:
    if isinstance(batch, Mapping):
        return {name: _cut(column, part) for name, column in batch.items()}
    return tuple(_cut(each, part) for each in batch) if isinstance(batch, tuple) else batch[part]
