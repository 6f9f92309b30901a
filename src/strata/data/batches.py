"""Batches of one worker: a plain iterator over steps, read ahead in the background.

What a step holds is arithmetic (`core.order`), so there is no cursor but the step: `state_dict` is
that number and what it is a number of, and going anywhere (`seek`, a rollback, a resume) costs
nothing. A thread reads ahead while the one who takes the batches computes, bounded in bytes
and steps (`ahead`); more threads or processes pay only where decoding is dear, and formats that
decode have their own. With `prefetch_bytes=0` no thread is ever started.

Lanes may change from a step on. Batches that were read ahead for later steps keep the rows of lanes
that stay, and only the missing rows are read. (With a transform they are read again, since a
transform may have mixed the rows.)

An error belongs to its step: batches before it are handed out first, then it is raised, and asking
again tries that step again.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import msgspec

from strata.core.order import Integers, digest
from strata.data.ahead import ReadAhead
from strata.data.dataset import OnError, skipping
from strata.data.per_lane import Transform
from strata.data.steps import OnSkip, Ordered, Readable, Reader, require_same_order
from strata.data.streams import Taken
from strata.errors import InvalidArgument, NotAllowedNow

DEFAULT_PREFETCH_BYTES = 64 << 20


class Batches(Iterator[Any]):
    """Steps `start_step` to `stop_step` (exclusive; None: no end) of some lanes (None: all)."""

    def __init__(
        self,
        dataset: Readable,
        order: Ordered,
        lanes: Sequence[int] | None = None,
        start_step: int = 0,
        stop_step: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        on_error: OnError = "raise",
        on_skip: OnSkip | None = None,
        contents: bool = False,
    ) -> None:
        if start_step < 0 or (stop_step is not None and stop_step < start_step):
            raise InvalidArgument(
                f"steps {start_step} to {stop_step} are not a range of steps",
                hint="count from 0, upwards",
            )
        if not isinstance(prefetch_bytes, SupportsIndex) or prefetch_bytes < 0:
            raise InvalidArgument(
                f"prefetch_bytes is {prefetch_bytes!r:.80}",
                hint="give a number of bytes; 0 reads when a batch is asked for",
            )
        self.order = order
        wanted = dataset.checked_columns(columns)
        reader = Reader(dataset, order, wanted, transform, stop_step)
        reader.on_skip = skipping(on_error, on_skip)
        reader.contents = contents
        self._ahead = ReadAhead(reader, start_step, stop_step, prefetch_bytes)
        self._ahead.set_lanes(lanes, start_step)
        # The thread must not keep an iterator alive that everybody else has let go.
        self._finalizer = weakref.finalize(self, self._ahead.close)

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._ahead.step

    @property
    def reading(self) -> int:
        """The step that is being read ahead."""
        return self._ahead.reading

    @property
    def taken(self) -> Taken | None:
        """What was handed out last, if anything was."""
        return self._ahead.taken

    def __next__(self) -> Any:
        return self._ahead.take()

    def lanes_at(self, step: int) -> Sequence[int] | None:
        return self._ahead.lanes_at(step)

    def samples_of(self, step: int) -> Integers:
        """Which samples of the dataset a step's batch has, in its order."""
        return self.order.samples(self.order.positions(step, step + 1, self.lanes_at(step))[0])

    def digest_of(self, step: int) -> int:
        """Eight bytes for what this worker trains in a step; those of all workers add up."""
        positions = self.order.positions(step, step + 1, self.lanes_at(step))[0]
        return digest(positions, self.order.samples(positions))

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        """Other lanes from a step on, which must not have been handed out yet."""
        if from_step < self.step:
            raise NotAllowedNow(
                f"step {from_step} was handed out already; the next is {self.step}",
                hint="seek back first",
            )
        self._ahead.set_lanes(lanes, from_step)

    def seek(self, step: int) -> None:
        """Goes on at another step, back or forth."""
        if step < 0:
            raise InvalidArgument(f"there is no step {step}", hint="count from 0")
        self._ahead.seek(step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self.order.spec)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was taken; refused if the order is another one."""
        require_same_order(self.order, state)
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Stops reading ahead; what was read is let go. Harmless when repeated."""
        self._finalizer()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
