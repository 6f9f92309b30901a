"""Counters of how often each sample was applied."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.core.order import Integers
from strata.data.reading.step_reader import Ordered
from strata.store.event_store import Range
from strata.timeline.audit.audit_results import EpochAudit

Counts: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]


class SampleCounter(Protocol):
    """A counter of samples."""

    def add(self, positions: Integers, samples: Integers, unproven: Flags) -> None:
        """Count samples that were applied at ascending positions, some of them unproven."""

    def counted(self, begin: int, stop: int) -> None:
        """Tell that all samples due at positions `begin` up to `stop` were added."""

    def epochs(self) -> list[EpochAudit]:
        """The counts as rows of the audit."""


class EpochCounter:
    """Counter for one dataset; `due` has the ranges of positions that should have been applied.

    The ranges in `left` were not trained because a loop was left early. Uses two bytes per sample
    for each epoch in progress, and frees them after the epoch's last position. The arrays grow with
    the sample numbers seen, because a stream is registered with more samples than it has.
    """

    def __init__(self, samples: int, due: Sequence[Range], left: Sequence[Range] = ()) -> None:
        self._samples, self._due, self._left = samples, due, left
        self._ascending = all(a[1] <= b[0] for a, b in pairwise(due))
        self._counts: dict[int, NDArray[np.uint8]] = {}
        self._unproven: dict[int, Flags] = {}
        self._done: dict[int, EpochAudit] = {}

    def add(self, positions: Integers, samples: Integers, unproven: Flags) -> None:
        """Count samples in the epochs of their positions."""
        epochs = positions // self._samples
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1) if epochs.size else ():
            here = epochs == epoch
            if here.any():
                counts, flags = self._room(epoch, int(samples[here].max()) + 1)
                np.add.at(counts, samples[here], 1)
                flags[samples[here & unproven]] = True

    def _room(self, epoch: int, size: int) -> tuple[NDArray[np.uint8], Flags]:
        """The arrays of an epoch, grown to at least `size` samples."""
        counts = self._counts.get(epoch, np.zeros(0, np.uint8))
        if counts.size < size:
            more = min(max(size, 2 * counts.size), self._samples) - counts.size
            flags = self._unproven.get(epoch, np.zeros(0, bool))
            self._counts[epoch] = np.concatenate([counts, np.zeros(more, np.uint8)])
            self._unproven[epoch] = np.concatenate([flags, np.zeros(more, bool)])
        return self._counts[epoch], self._unproven[epoch]

    def counted(self, begin: int, stop: int) -> None:
        """Sum up the epochs that end by `stop`, unless a later step returns to them."""
        for epoch in [each for each in self._counts if (each + 1) * self._samples <= stop]:
            if self._ascending:
                self._done[epoch] = self._summed(epoch)

    def epochs(self) -> list[EpochAudit]:
        """A row per epoch that was due or left, at least in part."""
        every = sorted(
            {
                epoch
                for begin, stop in (*self._due, *self._left)
                if begin < stop
                for epoch in range(begin // self._samples, -(-stop // self._samples))
            }
        )
        return [self._done.get(epoch) or self._summed(epoch) for epoch in every]

    def _summed(self, epoch: int) -> EpochAudit:
        due, left = self._within(epoch, self._due), self._within(epoch, self._left)
        counts = self._counts.pop(epoch, np.zeros(0, np.uint8))
        unproven = int(((counts == 1) & self._unproven.pop(epoch, np.zeros(0, bool))).sum())
        once, twice = int((counts == 1).sum()) - unproven, int((counts > 1).sum())
        return EpochAudit(
            epoch=epoch,
            due=due,
            once=once,
            missing=max(due - once - unproven - twice, 0),
            twice=twice,
            unproven=unproven,
            left=left,
        )

    def _within(self, epoch: int, ranges: Sequence[Range]) -> int:
        first, last = epoch * self._samples, (epoch + 1) * self._samples
        return sum(max(min(last, stop) - max(first, begin), 0) for begin, stop in ranges)


class MixtureCounter:
    """Counter for the datasets of a mixture, numbered consecutively."""

    def __init__(self, order: Ordered, sizes: list[int], left: Sequence[Range] = ()) -> None:
        self._order, self._sizes, self._left = order, sizes, left
        self._due = np.zeros(sum(sizes), np.uint32)
        self._applied = np.zeros(sum(sizes), np.uint32)
        self._unproven = np.zeros(sum(sizes), np.uint32)

    def add(self, positions: Integers, samples: Integers, unproven: Flags) -> None:
        """Count samples, of all epochs together."""
        np.add.at(self._applied, samples, 1)
        np.add.at(self._unproven, samples[unproven], 1)

    def counted(self, begin: int, stop: int) -> None:
        """Count the samples that are due at these positions."""
        np.add.at(self._due, self._samples(begin, stop), 1)

    def epochs(self) -> list[EpochAudit]:
        """A row per dataset."""
        left = np.zeros(sum(self._sizes), np.uint32)
        for begin, stop in self._left:
            np.add.at(left, self._samples(begin, stop), 1)
        cuts = np.cumsum(self._sizes)[:-1]
        counts = (self._due, self._applied, self._unproven, left)
        parts = zip(*(np.split(each, cuts) for each in counts), strict=True)
        return [_compared(part, *each) for part, each in enumerate(parts)]

    def _samples(self, begin: int, stop: int) -> Integers:
        return self._order.samples(np.arange(begin, stop, dtype=np.int64))


def _compared(
    part: int, due: Counts, applied: Counts, unproven: Counts, left: Counts
) -> EpochAudit:
    once = np.minimum(due, applied)
    without_proof = np.minimum(unproven, once)
    return EpochAudit(
        epoch=-1,
        due=int(due.sum()),
        once=int((once - without_proof).sum()),
        missing=int((due - once).sum()),
        twice=int((applied - once).sum()),
        part=part,
        unproven=int(without_proof.sum()),
        left=int(left.sum()),
    )
