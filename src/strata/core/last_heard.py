"""When a worker or an agent was last heard, what it said, and until when it may be silent."""

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from strata.core.liveness import Patience

SECOND_NS = 1_000_000_000


class LastHeard(Struct):
    """Of one incarnation; `absent` until it is heard for the first time since a restart."""

    incarnation: int
    beat_ns: int
    patience_ns: int
    look_ns: int
    absent: bool = False
    broken_ns: int = 0
    attempt: int = 0
    generation: int = 0
    step: int = -1
    step_ns: int = 0
    step_mean_ns: float = 0.0
    steps_seen: int = 0
    hangable: bool = False
    request: int = 0

    @property
    def deadline_ns(self) -> int:
        """When it is lost, unless it is heard before."""
        return self.beat_ns + self.patience_ns

    def is_doubtful(self, now_ns: int) -> bool:
        """Whether its connection is broken, or a quarter of its time passed without a heartbeat."""
        return self.broken_ns > 0 or now_ns - self.beat_ns >= self.patience_ns // 4

    def is_nearly_lost(self, now_ns: int) -> bool:
        """Whether half of the time until its deadline has passed without a heartbeat."""
        return self.patience_ns // 2 <= now_ns - self.beat_ns < self.patience_ns

    def hang_limit_ns(self, patience: "Patience") -> int:
        """How long a step may take, 0 if the worker is not computing.

        The first steps of a worker may compile or warm up, so they get more.
        """
        if not self.hangable:
            return 0
        if self.steps_seen < 3:
            return int(patience.hang_unlearned_s * SECOND_NS)
        floor_ns = int(patience.hang_floor_s * SECOND_NS)
        return max(floor_ns, int(self.step_mean_ns * patience.hang_factor))
