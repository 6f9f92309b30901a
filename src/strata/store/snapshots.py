"""Which snapshots to keep.

All of them, up to `KEPT`. Beyond that, each time, the one whose two neighbours are closest together
goes. So the gaps stay alike: any position of a log of n facts is within about 2n / KEPT of the
snapshot before it. The oldest and the newest always stay. The schema does not count: a release
loads what earlier releases wrote.
"""

from collections.abc import Sequence

from strata.errors import InvalidArgument, LimitExceeded
from strata.store.base import Snapshot

KEPT = 256
MAX_STATE_BYTES = 900_000_000  # SQLite's limit on one value is 1,000,000,000


def surplus(positions: Sequence[int], kept: int = KEPT) -> list[int]:
    """The positions of the snapshots to drop, of those at ascending positions."""
    dropped: list[int] = []
    left = list(positions)
    while len(left) > max(kept, 2):
        gap = {left[i + 1] - left[i - 1]: i for i in range(len(left) - 2, 0, -1)}
        dropped.append(left.pop(gap[min(gap)]))
    return dropped


def validate(snapshot: Snapshot, position: int) -> None:
    """Refuses a snapshot of a position that the log does not have, or one too large to keep."""
    if not 0 <= snapshot.position <= position:
        raise InvalidArgument(f"a snapshot at {snapshot.position} does not fit {position} facts")
    if len(snapshot.state) > MAX_STATE_BYTES:
        raise LimitExceeded(
            f"a snapshot of {len(snapshot.state)} bytes is too large to keep",
            hint=f"at most {MAX_STATE_BYTES} bytes",
        )
