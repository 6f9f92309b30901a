"""Steps read into batches: which samples each one has, gathered several steps at once.

The order is evaluated for thousands of samples at a time, and small steps are gathered together;
their batches are then views of one block.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from strata.core.order import Integers, digest, digests
from strata.data.base import Array, Columns
from strata.data.contents import content_of
from strata.data.dataset import Skipped
from strata.data.gather import batches_of
from strata.data.held_bytes import held_bytes
from strata.data.per_lane import LaneMemories, Memories, PerLane, Transform, stateless
from strata.errors import InvalidArgument

_BLOCK_BYTES = 4 << 20
BLOCK_STEPS = 64
_PLANNED_SAMPLES = 8_192  # the order is evaluated for about this many at a time
_RECORD_BYTES = 512

OnSkip = Callable[[Skipped], None]


class Readable(Protocol):
    """What batches are read from: a dataset, or several mixed."""

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
    """What says which samples a step is: an order, or several mixed."""

    @property
    def spec(self) -> msgspec.Struct: ...

    @property
    def lanes(self) -> int: ...

    def epoch_of(self, step: int) -> int: ...

    def positions(self, step: int, stop: int, lanes: Sequence[int] | None = None) -> Integers: ...

    def samples(self, positions: Integers) -> Integers: ...


class Read(NamedTuple):
    """A step that was read: its batch, or why there is none. `size_bytes`: the memory it holds."""

    step: int
    batch: Any
    size_bytes: int
    reusable: bool
    error: BaseException | None = None
    samples: Integers = np.empty(0, np.int64)
    digest: int = 0
    content: int = 0


class Reader:
    """Reads steps; used by one thread at a time. With `contents` it digests what it read."""

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
        self.memories: Memories | None = None
        if isinstance(transform, PerLane):
            self.memories = LaneMemories(transform, stop_step, self._again)
            transform = None
        self._transform = stateless(transform)
        self._step_bytes = 0
        self._plan = _Plan(0, None, np.empty((0, 0), np.int64), [])

    def read(self, step: int, stop: int, lanes: Sequence[int] | None) -> list[Read]:
        """The next few steps; an error is the last of them."""
        plan = self._planned(step, stop, lanes)
        try:
            return self._block(plan)
        except Exception as error:
            if len(plan.samples) == 1:
                return [Read(step, None, 0, False, error)]
        done: list[Read] = []
        for each in range(step, step + len(plan.samples)):
            try:
                done += self._block(plan.cut(each, 1))
            except Exception as error:
                return [*done, Read(each, None, 0, False, error)]
        return done

    def patch(
        self, step: int, lanes: Sequence[int] | None, old: Columns, old_lanes: Sequence[int] | None
    ) -> list[Read]:
        """A step that was read for other lanes: rows that stay are kept, the rest is read."""
        wanted = self.order.positions(step, step + 1, lanes)[0]
        have = self.order.positions(step, step + 1, old_lanes)[0]
        at = np.searchsorted(have, wanted)
        stays = np.isin(wanted, have)
        missing = self.order.samples(wanted[~stays])
        try:
            fresh, skipped = self._dataset.gather(missing, self._columns, self.on_skip)
        except Exception as error:
            return [Read(step, None, 0, False, error)]
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
            Read(
                step,
                batch,
                held_bytes(batch) + _record_bytes(samples),
                skipped is None,
                samples=samples,
                digest=digest(wanted, samples),
                content=content_of(batch) if self.contents else 0,
            )
        ]

    def _planned(self, step: int, stop: int, lanes: Sequence[int] | None) -> "_Plan":
        """As many steps as are read at once; the first time that is one, to learn its size."""
        plan = self._plan
        if plan.lanes is not lanes or not plan.first <= step < plan.first + len(plan.samples):
            width = max(1, self.order.positions(step, step + 1, lanes).size)
            steps = max(1, _PLANNED_SAMPLES // width) if self._step_bytes else 1
            positions = self.order.positions(step, min(stop, step + steps), lanes)
            samples = self.order.samples(positions.ravel()).reshape(positions.shape)
            proofs = digests(positions, samples).tolist()
            plan = self._plan = _Plan(step, lanes, samples, proofs)
        count = _BLOCK_BYTES // self._step_bytes if self._step_bytes else 1
        return plan.cut(step, max(1, min(count, BLOCK_STEPS, stop - step)))

    def _block(self, plan: "_Plan") -> list[Read]:
        samples = plan.samples
        steps, width = samples.shape
        columns, kept = self._dataset.gather(samples.ravel(), self._columns, self.on_skip)
        sizes = [width] * steps if kept is None else kept.reshape(steps, width).sum(1).tolist()
        plain = self._transform is None and self.memories is None
        shell = held_bytes({name: values[:0] for name, values in columns.items()})
        # Without what Python adds: a block of 4 MiB or more is copied by several threads into huge
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
            done.append(Read(plan.first + at, ready, held, plain and kept is None, None, *proof))
        self._step_bytes = max(1, largest)
        return done

    def _transformed(
        self, step: int, lanes: Sequence[int] | None, batch: Columns, kept: Array | None
    ) -> Any:
        if self.memories is not None:
            chosen = range(self.order.lanes) if lanes is None else sorted(lanes)
            owners = self._owners(step, chosen, kept)
            return self.memories.apply(step, chosen, batch, owners)
        return batch if self._transform is None else self._transform(batch)

    def _owners(self, step: int, lanes: Sequence[int], kept: Array | None) -> Integers:
        """Of which lane each row of a step is."""
        owners: Integers = self.order.positions(step, step + 1, lanes)[0] % self.order.lanes
        return owners if kept is None else owners[kept]

    def _again(self, step: int, lanes: Sequence[int]) -> tuple[Columns, Integers]:
        """Rows of an earlier step; those that are left out were told of when it was its turn."""
        samples = self.order.samples(self.order.positions(step, step + 1, lanes)[0])
        on_skip = None if self.on_skip is None else lambda skipped: None
        rows, kept = self._dataset.gather(samples, self._columns, on_skip)
        return rows, self._owners(step, lanes, kept)


class _Plan(NamedTuple):
    """The samples of some steps from `first` on, a row a step, and the digest of each row."""

    first: int
    lanes: Sequence[int] | None
    samples: Integers
    proofs: list[int]

    def cut(self, step: int, count: int) -> "_Plan":
        """Up to so many of the steps, from one of them on."""
        rows = slice(step - self.first, step - self.first + count)
        return _Plan(step, self.lanes, self.samples[rows], self.proofs[rows])


def require_same_order(order: Ordered, state: Mapping[str, Any]) -> None:
    """Refuses a state that was taken with another order, and says what differs."""
    if not _is_state(state):
        raise InvalidArgument(
            f"this is no state of batches: {state!r:.80}", hint="give what state_dict gave"
        )
    ours, theirs = msgspec.to_builtins(order.spec), state["order"]
    if ours != theirs:
        named = sorted(k for k in ours.keys() | theirs if ours.get(k) != theirs.get(k))
        raise InvalidArgument(
            f"the state was taken with another order: {', '.join(named)} differ",
            hint="resume with the dataset and settings that the run began with",
        )


def _is_state(state: object) -> bool:
    if not isinstance(state, Mapping) or not isinstance(state.get("order"), dict):
        return False
    step = state.get("step")
    return isinstance(step, int) and step >= 0


def _record_bytes(samples: Integers) -> int:
    """What the record of a step holds beside its batch: the tuple, its numbers, its samples."""
    return _RECORD_BYTES + samples.nbytes
