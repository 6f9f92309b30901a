"""What `run.batches` and `run.loader` give a script to loop over."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from strata.sdk.position import Position

PEEK_HINT = "to look at a batch without training it, call peek() of what run.batches returned"


class PastIteration(Iterator[Any]):
    """A `for` loop that the run had left before this process began: it has no batches."""

    def __init__(self, place: Position) -> None:
        self._place = place

    def __next__(self) -> Any:
        # A `for` loop ends here; `next` in a script shows the message.
        raise StopIteration(
            f"loop {self._place.key} of this script was over when this process resumed the run; "
            f"{PEEK_HINT}"
        )


class Loader:
    """What a script loops over. Made by `run.batches` and `run.loader`.

    Each `for` loop over it is a loop of the run, so one loader can serve every epoch. A loop that
    the run had left before this process began has no batches. `len` is how many steps a loop has.
    """

    def __init__(
        self,
        open_loop: Callable[[], Iterable[Any] | Position],
        length: Callable[[], int],
        first: Callable[[], Any],
    ) -> None:
        self._open_loop, self._length, self._first = open_loop, length, first
        self._current: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        opened = self._open_loop()
        return PastIteration(opened) if isinstance(opened, Position) else iter(opened)

    def peek(self) -> Any:
        """This worker's first batch of the dataset, to look at its shapes and types.

        No loop is opened, no step is counted, and the batch is trained later all the same.
        """
        return self._first()

    def __next__(self) -> Any:
        if self._current is None:
            self._current = iter(self)
        return next(self._current)

    def __len__(self) -> int:
        return self._length()
