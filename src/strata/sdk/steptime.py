"""Where a step's time went.

A region is named with `with run.timing("data")`; time in a region inside it counts for the inner
one only. What no region names is computing. For the training thread only.
"""

import time
from types import TracebackType
from typing import Literal, TypeAlias

Part: TypeAlias = Literal["data", "communication", "wait"]

PARTS: tuple[Part, ...] = ("data", "communication", "wait")


class StepTime:
    """Adds up the regions of the present step."""

    def __init__(self) -> None:
        self.spent_ns: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self.named_ns = 0
        self._begun_ns = time.perf_counter_ns()

    @property
    def busy_s(self) -> float:
        """Seconds of the present step so far, without what went to the others."""
        others_ns = self.spent_ns["communication"] + self.spent_ns["wait"]
        return max(time.perf_counter_ns() - self._begun_ns - others_ns, 0) / 1e9

    def finish(self) -> tuple[float, float, float, float]:
        """Ends a step: seconds of data, compute, communication and wait; the next one begins."""
        now_ns = time.perf_counter_ns()
        whole_ns, self._begun_ns = now_ns - self._begun_ns, now_ns
        if not self.named_ns:
            return 0.0, whole_ns / 1e9, 0.0, 0.0
        spent = self.spent_ns
        compute_ns = max(whole_ns - self.named_ns, 0)
        self.spent_ns = dict.fromkeys(PARTS, 0)
        self.named_ns = 0
        return (
            spent["data"] / 1e9,
            compute_ns / 1e9,
            spent["communication"] / 1e9,
            spent["wait"] / 1e9,
        )


class Timing:
    """A region; entered as a context manager."""

    __slots__ = ("_begun_ns", "_named_ns", "_part", "_times")

    def __init__(self, times: StepTime, part: Part) -> None:
        self._times = times
        self._part = part
        self._begun_ns = self._named_ns = 0

    def __enter__(self) -> None:
        self._begun_ns, self._named_ns = time.perf_counter_ns(), self._times.named_ns

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        times = self._times
        inner_ns = max(times.named_ns - self._named_ns, 0)
        own_ns = time.perf_counter_ns() - self._begun_ns - inner_ns
        times.spent_ns[self._part] += own_ns
        times.named_ns += own_ns
