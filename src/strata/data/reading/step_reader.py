"""Reads steps into batches, several steps at once, and the interface of engines that do so.

The order is evaluated for thousands of samples at a time, and small steps are gathered together;
their batches are then views of one block.

An engine is called with the arguments of `Batches` and returns a stream: the batches of steps, in
order, with lanes that may change and a position that can be set. `Batches` is one,
`strata.torch.Loading` is another, over `DataLoader`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from strata.core.order import Integers, digest, digests
from strata.data.formats.row_gather import batches_of
from strata.data.formats.source import Array, Columns
from strata.data.reading.batch_measures import content_of, held_bytes
from strata.data.reading.lane_transforms import (
    LaneStates,
    PerLane,
    StatefulTransform,
    Transform,
    stateless,
)
from strata.data.source_dataset import SkippedRow
from strata.errors import InvalidArgument

_BLOCK_BYTES = 4 << 20
BLOCK_STEPS = 64
_PLANNED_SAMPLES = 8_192  # samples for which the order is evaluated at a time
_RECORD_BYTES = 512

OnSkip = Callable[[SkippedRow], None]


class Readable(Protocol):
    """A source of batches: a dataset, or several mixed."""

    def checked_columns(self, columns: Sequence[str] | None) -> list[str]: ...

    @property
    def forks(self) -> bool: ...

    @property
    def batch(self) -> str: ...

    def read_for(self, batch: Callable[[], str]) -> None: ...

    def gather(
        self, rows: Integers, columns: Sequence[str], on_skip: OnSkip | None
    ) -> tuple[Columns, Array | None]: ...


class Ordered(Protocol):
    """An order of samples by step: of one dataset, or of several mixed."""

    @property
    def spec(self) -> msgspec.Struct: ...

    @property
    def lanes(self) -> int: ...

    def epoch_of(self, step: int) -> int: ...

    def positions(self, step: int, stop: int, lanes: Sequence[int] | None = None) -> Integers: ...

    def samples(self, positions: Integers) -> Integers: ...


class ReadStep(NamedTuple):
    """A step that was read: its batch, or its error. `size_bytes` is the memory it uses."""

    step: int
    batch: Any
    size_bytes: int
    reusable: bool
    error: BaseException | None = None
    samples: Integers = np.empty(0, np.int64)
    digest: int = 0
    content: int = 0


class StepReader:
    """Reads steps; used by one thread at a time. With `contents` it also digests what it read."""

    def __init__(
        self,
        dataset: Readable,
        order: Ordered,
        columns: list[str],
        transform: Transform | None,
        stop_step: int | None = None,
    ) -> None:
        self.order = order
        self.on_skip: OnSkip | None = None
        self.contents = False
        self._dataset, self._columns = dataset, columns
        self.lane_states: StatefulTransform | None = None
        if isinstance(transform, PerLane):
            self.lane_states = LaneStates(transform, stop_step, self._again)
            transform = None
        self._transform = stateless(transform)
        self._step_bytes = 0
        self._plan = _Plan(first=0, lanes=None, samples=np.empty((0, 0), np.int64), proofs=[])

    def read(self, step: int, stop: int, lanes: Sequence[int] | None) -> list[ReadStep]:
        """The next few steps; if reading fails, the last of them has the error."""
        plan = self._planned(step, stop, lanes)
        try:
            return self._block(plan)
        except Exception as error:
            if len(plan.samples) == 1:
                return [ReadStep(step=step, batch=None, size_bytes=0, reusable=False, error=error)]
        done: list[ReadStep] = []
        for each in range(step, step + len(plan.samples)):
            try:
                done += self._block(plan.cut(each, 1))
            except Exception as error:
                return [
                    *done,
                    ReadStep(step=each, batch=None, size_bytes=0, reusable=False, error=error),
                ]
        return done

    def patch(
        self, step: int, lanes: Sequence[int] | None, old: Columns, old_lanes: Sequence[int] | None
    ) -> list[ReadStep]:
        """A step that was read for other lanes: rows of remaining lanes are
        kept, the rest is read.
        """
        wanted = self.order.positions(step, step + 1, lanes)[0]
        have = self.order.positions(step, step + 1, old_lanes)[0]
        at = np.searchsorted(have, wanted)
        stays = np.isin(wanted, have)
        missing = self.order.samples(wanted[~stays])
        try:
            fresh, skipped = self._dataset.gather(missing, self._columns, self.on_skip)
        except Exception as error:
            return [ReadStep(step=step, batch=None, size_bytes=0, reusable=False, error=error)]
        if skipped is not None:
            kept = np.ones(len(wanted), bool)
            kept[np.flatnonzero(~stays)[~skipped]] = False
            at, stays = at[kept], stays[kept]
        batch = {}
        for name, new in fresh.items():
            values = np.empty((len(stays), *new.shape[1:]), new.dtype)
            values[stays] = old[name][at[stays]]
            values[~stays] = new
            batch[name] = values
        samples = self.order.samples(wanted)
        return [
            ReadStep(
                step=step,
                batch=batch,
                size_bytes=held_bytes(batch) + _record_bytes(samples),
                reusable=skipped is None,
                samples=samples,
                digest=digest(wanted, samples),
                content=content_of(batch) if self.contents else 0,
            )
        ]

    def _planned(self, step: int, stop: int, lanes: Sequence[int] | None) -> "_Plan":
        """The steps to read at once; one the first time, to learn its size."""
        plan = self._plan
        if plan.lanes is not lanes or not plan.first <= step < plan.first + len(plan.samples):
            width = max(1, self.order.positions(step, step + 1, lanes).size)
            steps = max(1, _PLANNED_SAMPLES // width) if self._step_bytes else 1
            positions = self.order.positions(step, min(stop, step + steps), lanes)
            samples = self.order.samples(positions.ravel()).reshape(positions.shape)
            proofs = digests(positions, samples).tolist()
            plan = self._plan = _Plan(first=step, lanes=lanes, samples=samples, proofs=proofs)
        count = _BLOCK_BYTES // self._step_bytes if self._step_bytes else 1
        return plan.cut(step, max(1, min(count, BLOCK_STEPS, stop - step)))

    def _block(self, plan: "_Plan") -> list[ReadStep]:
        samples = plan.samples
        steps, width = samples.shape
        columns, kept = self._dataset.gather(samples.ravel(), self._columns, self.on_skip)
        sizes = [width] * steps if kept is None else kept.reshape(steps, width).sum(1).tolist()
        plain = self._transform is None and self.lane_states is None
        shell = held_bytes({name: values[:0] for name, values in columns.items()})
        # Without Python's overhead: a block of 4 MiB or more is copied by several threads into huge
        # pages, so a little less would be several times as slow.
        payload = largest = (held_bytes(columns) - shell) // steps
        done = []
        for at, batch in enumerate(batches_of(columns, sizes)):
            content = content_of(batch) if self.contents else 0
            there = None if kept is None else kept.reshape(steps, width)[at]
            ready = self._transformed(plan.first + at, plan.lanes, batch, there)
            proof = (samples[at], plan.proofs[at], content)
            held = payload + shell
            if not plain:
                held = max(held, held_bytes(ready))
                largest = max(largest, held)
            held += _record_bytes(samples[at])
            done.append(
                ReadStep(plan.first + at, ready, held, plain and kept is None, None, *proof)
            )
        self._step_bytes = max(1, largest)
        return done

    def _transformed(
        self, step: int, lanes: Sequence[int] | None, batch: Columns, kept: Array | None
    ) -> Any:
        if self.lane_states is not None:
            chosen = range(self.order.lanes) if lanes is None else sorted(lanes)
            owners = self._owners(step, chosen, kept)
            return self.lane_states.apply(step, chosen, batch, owners)
        return batch if self._transform is None else self._transform(batch)

    def _owners(self, step: int, lanes: Sequence[int], kept: Array | None) -> Integers:
        """The lane of each row of a step."""
        owners: Integers = self.order.positions(step, step + 1, lanes)[0] % self.order.lanes
        return owners if kept is None else owners[kept]

    def _again(self, step: int, lanes: Sequence[int]) -> tuple[Columns, Integers]:
        """Rows of an earlier step; its skipped rows were reported when it was first read."""
        samples = self.order.samples(self.order.positions(step, step + 1, lanes)[0])
        on_skip = None if self.on_skip is None else lambda skipped: None
        rows, kept = self._dataset.gather(samples, self._columns, on_skip)
        return rows, self._owners(step, lanes, kept)


class _Plan(NamedTuple):
    """The samples of some steps from `first` on, one row per step, and the digest of each row."""

    first: int
    lanes: Sequence[int] | None
    samples: Integers
    proofs: list[int]

    def cut(self, step: int, count: int) -> "_Plan":
        """Up to `count` of the steps, beginning with one of them."""
        rows = slice(step - self.first, step - self.first + count)
        return _Plan(
            first=step, lanes=self.lanes, samples=self.samples[rows], proofs=self.proofs[rows]
        )


def require_same_order(order: Ordered, state: Mapping[str, Any]) -> None:
    """Raise if a state was saved with another order, and name the differences."""
    if not _is_state(state):
        raise InvalidArgument(
            f"not a state of batches: {state!r:.80}", hint="give what state_dict() returned"
        )
    ours, theirs = msgspec.to_builtins(order.spec), state["order"]
    if ours != theirs:
        named = sorted(k for k in ours.keys() | theirs if ours.get(k) != theirs.get(k))
        raise InvalidArgument(
            f"the state was saved with another order: {', '.join(named)} differ",
            hint="resume with the dataset and settings that the run began with",
        )


def _is_state(state: object) -> bool:
    if not isinstance(state, Mapping) or not isinstance(state.get("order"), dict):
        return False
    step = state.get("step")
    return isinstance(step, int) and step >= 0


def _record_bytes(samples: Integers) -> int:
    """The memory of a step's record beside its batch: the tuple, its numbers, its samples."""
    return _RECORD_BYTES + samples.nbytes


class BatchRecord(NamedTuple):
    """The batch that was returned last: its samples in the dataset, their eight-byte digest, and
    the digest of their content if that was requested, else 0.
    """

    step: int
    samples: Integers
    digest: int
    content: int = 0


class BatchStream(Protocol):
    """Batches of steps; `step` is the next one, and `reading` the one that is being read ahead."""

    @property
    def order(self) -> Ordered: ...

    @property
    def step(self) -> int: ...

    @property
    def reading(self) -> int: ...

    @property
    def taken(self) -> BatchRecord | None: ...

    def __next__(self) -> Any: ...

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None: ...

    def seek(self, step: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


Engine: TypeAlias = Callable[..., BatchStream]
