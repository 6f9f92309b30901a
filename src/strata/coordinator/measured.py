"""A kernel that measures itself: what deciding and storing a turn cost.

Each command is decided at its own moment, which its facts carry. So how long one took is the
difference to the next one's, and needs no further clock reads.
"""

from collections import deque
from collections.abc import Callable, Sequence

from strata.coordinator.kernel import Asked, Kernel, Turn
from strata.core.datasets import AssignmentChanged
from strata.core.events import Now
from strata.core.liveness import Patience
from strata.core.windows import LATENCY_BOUNDS_S, SECOND_NS, Histogram
from strata.store.base import EventStore

NEWEST_ASSIGNMENTS = 256


class Timings:
    """What the turns of a kernel took, in seconds."""

    def __init__(self) -> None:
        self.decide_s = Histogram(LATENCY_BOUNDS_S)
        self.append_s = Histogram(LATENCY_BOUNDS_S)
        self.assignment_s = Histogram(LATENCY_BOUNDS_S)
        self._newest_assignments: deque[float] = deque(maxlen=NEWEST_ASSIGNMENTS)

    def note_assignment(self, took_s: float) -> None:
        """A command moved lanes or shards between workers."""
        self.assignment_s.add(took_s)
        self._newest_assignments.append(took_s)

    @property
    def assignment_ms(self) -> float | None:
        """The mean of the newest commands that moved lanes or shards."""
        newest = self._newest_assignments
        return sum(newest) / len(newest) * 1e3 if newest else None


class MeasuredKernel(Kernel):
    """Decides and stores as a kernel does, and keeps the time of both."""

    def __init__(
        self,
        store: EventStore,
        clock: Callable[[], Now],
        patience: Patience | None = None,
        snapshot_every: int = 4_000,
    ) -> None:
        self.timings = Timings()
        super().__init__(store, clock, patience, snapshot_every)

    def decide(self, asked: Sequence[Asked], judge: bool = True) -> Turn:
        began_ns = self.clock().mono_ns
        turn = super().decide(asked, judge)
        if not asked and not turn.events:
            return turn  # a look at the clock
        ended_ns = self.clock().mono_ns
        self.timings.decide_s.add((ended_ns - began_ns) / SECOND_NS)
        if AssignmentChanged in {type(event.body) for event in turn.events}:
            self._note_assignments(turn, ended_ns)
        return turn

    def _note_assignments(self, turn: Turn, ended_ns: int) -> None:
        """A command that recorded nothing counts to the one before it: it has no moment."""
        moved: dict[int, bool] = {}
        for event in turn.events:
            moved[event.mono_ns] = moved.get(event.mono_ns, False) or isinstance(
                event.body, AssignmentChanged
            )
        for began_ns in reversed(moved):
            if moved[began_ns]:
                self.timings.note_assignment((ended_ns - began_ns) / SECOND_NS)
            ended_ns = began_ns

    def commit(self, turn: Turn) -> None:
        began_ns = self.clock().mono_ns
        super().commit(turn)
        self.timings.append_s.add((self.clock().mono_ns - began_ns) / SECOND_NS)
