"""Which of a worker's events are here: so that a resend is recognised before it costs anything.

A worker numbers its events densely and sends them in batches, again after a break. A batch is new,
or fills a gap, or is known; one that is known in part is refused: to keep only its new part the
store would have to look into bytes that nobody has checked.
"""

from strata.errors import InvalidArgument
from strata.store.base import Batch, EventStore, Range


class Intake:
    """What was taken of one worker's incarnation. `stored_seq` is the highest that is on disk."""

    def __init__(self, store: EventStore, worker: str, incarnation: int) -> None:
        last = store.last_seq(worker, incarnation)
        self.stored_seq = -1 if last is None else last
        self._taken_seq = self.stored_seq
        self._gaps: list[Range] = store.gaps(worker, incarnation)

    def take(self, batch: Batch) -> bool:
        """Whether a batch has to be stored; it counts as taken from now on."""
        first, stop = batch.first_seq, batch.stop_seq
        if first > self._taken_seq:
            if first > self._taken_seq + 1:
                self._gaps.append((self._taken_seq + 1, first))
            self._taken_seq = stop - 1
            return True
        for gap in self._gaps:
            if gap[0] <= first and stop <= gap[1]:
                self._fill(gap, first, stop)
                return True
        if stop - 1 <= self._taken_seq and all(stop <= a or b <= first for a, b in self._gaps):
            return False
        raise InvalidArgument(
            f"events {first} to {stop - 1} are known in part",
            hint="send batches again as they were, or from the next event on",
        )

    def stored(self, batch: Batch) -> None:
        """A batch is on disk."""
        self.stored_seq = max(self.stored_seq, batch.stop_seq - 1)

    def _fill(self, gap: Range, first: int, stop: int) -> None:
        self._gaps.remove(gap)
        self._gaps += [part for part in ((gap[0], first), (stop, gap[1])) if part[0] < part[1]]
