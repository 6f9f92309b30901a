"""Transforms with state, one for each lane: packing, or filtering that refills batches.

State that carries rows from one step to the next must not depend on which worker owns a lane, nor
on where a run was resumed. So every lane has a state of its own, which is empty after every `span`
steps. The output of a lane in a step is then a function of that step, as the order is: a worker
that takes over a lane, resumes or goes back reads the earlier steps of the span for that lane
again. State is never saved, and never sent between workers.

    run.batches("documents", 32, epochs=1, transform=PerLane(lambda: Packing("tokens", 2048)))

A sample counts in the step that reads it; its rows are trained within the same span. Rows that
remain at the end of a span, or of the run, are trained in its last step.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from strata.core.order import Integers
from strata.data.formats.source import Array, Columns
from strata.errors import InvalidArgument


class LaneState(Protocol):
    """The state of one lane."""

    def __call__(self, rows: Columns, last: bool) -> Columns:
        """Take the rows of a step and return the rows to train; with `last` no row may be kept."""


class PerLane:
    """A transform for `run.batches`: `make` creates the state of a lane, which is empty every
    `span` steps.
    """

    def __init__(self, make: Callable[[], LaneState], span: int = 64) -> None:
        if span <= 0:
            raise InvalidArgument(f"span is {span}", hint="give 1 step or more")
        self.make, self.span = make, span


Transform: TypeAlias = Callable[[Columns], Any] | PerLane


def stateless(transform: Transform | None) -> Callable[[Columns], Any] | None:
    """The transform, for readers that do not read step by step; raises for a `PerLane`."""
    if isinstance(transform, PerLane):
        raise InvalidArgument(
            "a PerLane transform needs batches that are read step by step",
            hint="use run.batches",
        )
    if transform is not None and not callable(transform):
        raise InvalidArgument(
            f"transform is {transform!r}, not a function",
            hint="give a function that takes and returns a batch",
        )
    return transform


class StatefulTransform(Protocol):
    """Turns the rows that were read for a step into the rows to train."""

    def apply(self, step: int, lanes: Sequence[int], rows: Columns, owners: Integers) -> Any: ...


class LaneStates:
    """The states of a worker's lanes, each with the step that it is ready for.

    `rows_of(step, lanes)` reads rows again, and returns the lane of each one.
    """

    def __init__(
        self,
        transform: PerLane,
        stop_step: int | None,
        rows_of: Callable[[int, Sequence[int]], tuple[Columns, Integers]],
    ) -> None:
        self._transform, self._stop_step, self._rows_of = transform, stop_step, rows_of
        self._ready: dict[int, tuple[int, LaneState]] = {}

    def apply(self, step: int, lanes: Sequence[int], rows: Columns, owners: Integers) -> Columns:
        """The rows to train in a step, lane by lane, from those that were read for it."""
        self._ready = {lane: self._ready[lane] for lane in lanes if self._is_ready(lane, step)}
        late = [lane for lane in lanes if lane not in self._ready]
        for earlier in range(step - step % self._transform.span, step if late else 0):
            self._feed(earlier, late, *self._rows_of(earlier, late))
        given = self._feed(step, lanes, rows, owners) or [self._transform.make()(rows, True)]
        return {name: np.concatenate([each[name] for each in given]) for name in given[0]}

    def _is_ready(self, lane: int, step: int) -> bool:
        return lane in self._ready and self._ready[lane][0] == step

    def _feed(
        self, step: int, lanes: Sequence[int], rows: Columns, owners: Integers
    ) -> list[Columns]:
        """The output of each lane in a step. A state whose transform fails is not used again."""
        span = self._transform.span
        last = (step + 1) % span == 0 or step + 1 == self._stop_step
        given = []
        for lane in lanes:
            known = self._ready.pop(lane, None)
            memory = known[1] if known and step % span else self._transform.make()
            own = owners == lane
            given.append(memory({name: values[own] for name, values in rows.items()}, last))
            self._ready[lane] = (step + 1, memory)
        return given


class Packing:
    """Documents of any length, packed end to end into rows of `length` tokens.

    Returns the column, and `segments`: the number of each token's document in its row, from 1; 0 is
    padding, which only the last row of a span may have. A document that does not fit into the rest
    of a row continues in the next one.
    """

    def __init__(self, column: str, length: int, pad: int = 0, dtype: str = "int64") -> None:
        self._column, self._length = column, length
        self._pad, self._dtype = pad, np.dtype(dtype)
        self._tokens = np.empty(0, self._dtype)
        self._documents = np.empty(0, np.int64)
        self._count = 0

    def __call__(self, rows: Columns, last: bool) -> Columns:
        found = [np.asarray(each, self._dtype) for each in rows[self._column]]
        numbers = self._count + np.arange(len(found))
        sizes = np.array([len(each) for each in found], np.int64)
        self._count += len(found)
        tokens = np.concatenate([self._tokens, *found])
        documents = np.concatenate([self._documents, np.repeat(numbers, sizes)])
        full = len(tokens) // self._length * self._length
        if last and full < len(tokens):
            missing = full + self._length - len(tokens)
            tokens = np.pad(tokens, (0, missing), constant_values=self._pad)
            documents = np.pad(documents, (0, missing), constant_values=-1)
            full = len(tokens)
        self._tokens, self._documents = tokens[full:], documents[full:]
        shape = (full // self._length, self._length)
        return {
            self._column: tokens[:full].reshape(shape),
            "segments": _segments(documents[:full].reshape(shape)),
        }


def _segments(documents: Array) -> Array:
    """Documents numbered from 1 in each row; padding is 0."""
    begins = np.zeros(documents.shape, bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    found: Array = np.where(documents < 0, 0, begins.cumsum(axis=1) + 1)
    return found
