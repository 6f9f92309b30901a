"""An operation as facts: started, now and then how far it is, completed or not."""

import itertools
import time
from collections.abc import Callable

from strata.core.events import Fact
from strata.sdk.events import Recorder

_numbers = itertools.count(1)


class Operation:
    """Records one operation; `progress` may be called from any thread, as often as wanted.

    The recorded `op` is `op` and a number, since the same thing may be done again: a blob of the
    same content is downloaded again when a round is repeated.
    """

    def __init__(
        self,
        recorder: Recorder,
        op: str,
        started: Fact,
        progress: Callable[[int], Fact],
        completed: Callable[[bool, str], Fact],
    ) -> None:
        self.done_bytes = 0
        self._recorder, self._op = recorder, f"{op}-{next(_numbers)}"
        self._progress, self._completed = progress, completed
        self._next_s = time.monotonic() + recorder.progress_interval_s
        recorder.emit(started, op=self._op)

    def progress(self, done_bytes: int) -> None:
        """So much is done."""
        self.done_bytes = done_bytes
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._recorder.progress_interval_s
            self._recorder.emit(self._progress(done_bytes), op=self._op)

    def end(self, error: BaseException | None = None) -> None:
        """It went well, or not."""
        why = "" if error is None else f"{type(error).__name__}: {error}"[:500]
        self._recorder.emit(self._completed(error is None, why), op=self._op)
