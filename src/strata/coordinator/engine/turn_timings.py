"""Time that the kernel spends on deciding and storing its turns.

Each command is decided at its own moment, which its facts carry. The duration of a command is
therefore the difference to the moment of the next one, and needs no further clock reads.
"""

from collections import deque
from collections.abc import Sequence

from strata.core.datasets.dataset_rules import AssignmentChanged
from strata.core.events import Event
from strata.core.metrics.sliding_windows import LATENCY_BOUNDS_S, SECOND_NS, Histogram

ASSIGNMENTS_IN_MEAN = 256


class Timings:
    """Durations of the turns of a kernel, in seconds."""

    def __init__(self) -> None:
        self.decide_s = Histogram(LATENCY_BOUNDS_S)
        self.append_s = Histogram(LATENCY_BOUNDS_S)
        self.assignment_s = Histogram(LATENCY_BOUNDS_S)
        self._last_assignments: deque[float] = deque(maxlen=ASSIGNMENTS_IN_MEAN)

    @property
    def assignment_ms(self) -> float | None:
        """Mean duration of the last commands that moved lanes or shards; None before the first."""
        last = self._last_assignments
        return sum(last) / len(last) * 1e3 if last else None

    def note_assignment(self, took_s: float) -> None:
        """Record the duration of a command that moved lanes or shards."""
        self.assignment_s.add(took_s)
        self._last_assignments.append(took_s)

    def note_decision(self, events: Sequence[Event], began_ns: int, ended_ns: int) -> None:
        """Record how long a turn took to decide, and each of its commands that moved lanes."""
        self.decide_s.add((ended_ns - began_ns) / SECOND_NS)
        if AssignmentChanged in {type(event.body) for event in events}:
            self._note_assignments(events, ended_ns)

    def _note_assignments(self, events: Sequence[Event], ended_ns: int) -> None:
        """The time of a command without facts is added to the command before it."""
        moved: dict[int, bool] = {}
        for event in events:
            moved[event.mono_ns] = moved.get(event.mono_ns, False) or isinstance(
                event.body, AssignmentChanged
            )
        for began_ns in reversed(moved):
            if moved[began_ns]:
                self.note_assignment((ended_ns - began_ns) / SECOND_NS)
            ended_ns = began_ns
