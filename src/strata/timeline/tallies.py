"""How often each sample was applied."""

from typing import Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.core.order import Integers
from strata.data.steps import Ordered

Counts: TypeAlias = NDArray[np.uint32]


class EpochAudit(Struct, frozen=True):
    """How often the samples of an epoch were applied; `due` of them should have been by now.

    A mixture has no epochs of its own; its row has the number -1 and is about one dataset of it,
    all its epochs together. There every application is counted, against those that are due.
    """

    epoch: int
    due: int
    once: int
    missing: int
    twice: int
    part: int = 0


class Tally(Protocol):
    """Counts samples."""

    def add(self, positions: Integers, samples: Integers) -> None:
        """These samples were applied at these positions, which ascend."""

    def counted_before(self, position: int) -> None:
        """No earlier position will come."""

    def epochs(self) -> list[EpochAudit]:
        """What was found."""


class EpochTally:
    """One dataset, of whose positions `begin` up to `stop` should have been applied.

    Holds a byte a sample for each epoch that is being counted, and lets it go when it is through.
    It grows with the sample numbers seen: a stream is registered with more samples than it has.
    """

    def __init__(self, samples: int, begin: int, stop: int) -> None:
        self._samples, self._begin, self._stop = samples, begin, stop
        self._counts: dict[int, NDArray[np.uint8]] = {}
        self._done: dict[int, EpochAudit] = {}

    def add(self, positions: Integers, samples: Integers) -> None:
        """Counts in the epochs that the positions belong to."""
        epochs = positions // self._samples
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1) if epochs.size else ():
            here = samples[epochs == epoch]
            if here.size:
                np.add.at(self._room(epoch, int(here.max()) + 1), here, 1)

    def _room(self, epoch: int, size: int) -> NDArray[np.uint8]:
        """The counts of an epoch, for at least so many samples."""
        counts = self._counts.get(epoch, np.zeros(0, np.uint8))
        if counts.size < size:
            more = min(max(size, 2 * counts.size), self._samples) - counts.size
            counts = self._counts[epoch] = np.concatenate([counts, np.zeros(more, np.uint8)])
        return counts

    def counted_before(self, position: int) -> None:
        """Sums up the epochs that end there or before."""
        for epoch in [each for each in self._counts if (each + 1) * self._samples <= position]:
            self._done[epoch] = self._summed(epoch)

    def epochs(self) -> list[EpochAudit]:
        """Each epoch that any position belongs to."""
        if self._stop <= self._begin:
            return []
        every = range(self._begin // self._samples, (self._stop - 1) // self._samples + 1)
        return [self._done.get(epoch) or self._summed(epoch) for epoch in every]

    def _summed(self, epoch: int) -> EpochAudit:
        first, last = epoch * self._samples, (epoch + 1) * self._samples
        due = min(last, self._stop) - max(first, self._begin)
        counts = self._counts.pop(epoch, np.zeros(0, np.uint8))
        once, twice = int((counts == 1).sum()), int((counts > 1).sum())
        return EpochAudit(epoch, due, once, due - once - twice, twice)


class MixtureTally:
    """Several datasets, numbered through: each sample as often as the order says by now."""

    def __init__(self, order: Ordered, sizes: list[int], begin: int) -> None:
        self._order, self._sizes, self._until = order, sizes, begin
        self._due = np.zeros(sum(sizes), np.uint32)
        self._applied = np.zeros(sum(sizes), np.uint32)

    def add(self, positions: Integers, samples: Integers) -> None:
        """Counts them all together."""
        np.add.at(self._applied, samples, 1)

    def counted_before(self, position: int) -> None:
        """What should have been applied at the positions up to there."""
        due = self._order.samples(np.arange(self._until, position, dtype=np.int64))
        np.add.at(self._due, due, 1)
        self._until = position

    def epochs(self) -> list[EpochAudit]:
        """A row for each dataset."""
        cuts = np.cumsum(self._sizes)[:-1]
        pairs = zip(np.split(self._due, cuts), np.split(self._applied, cuts), strict=True)
        return [_compared(part, due, applied) for part, (due, applied) in enumerate(pairs)]


def _compared(part: int, due: Counts, applied: Counts) -> EpochAudit:
    once = np.minimum(due, applied)
    missing, more = int((due - once).sum()), int((applied - once).sum())
    return EpochAudit(-1, int(due.sum()), int(once.sum()), missing, more, part)
