"""Which snapshots to keep.

All of them, up to `KEPT`. Beyond that, first those of another schema than the newest go, oldest
first: this release cannot read them. Then, each time, the one whose two neighbours are closest
together. So the gaps stay alike: any position of a log of n facts is within about 2n / KEPT of
the snapshot before it. The oldest and the newest of the current schema always stay.
"""

from collections.abc import Sequence

from strata.errors import InvalidArgument, LimitExceeded
from strata.store.base import Snapshot

KEPT = 256
MAX_STATE_BYTES = 900_000_000  # SQLite's limit on one value is 1,000,000,000


def surplus(snapshots: Sequence[tuple[int, str]], kept: int = KEPT) -> list[int]:
    """The positions to drop of snapshots given as (position, schema) in ascending order."""
    too_many = len(snapshots) - kept
    if too_many <= 0:
        return []
    current = snapshots[-1][1]
    dropped = [position for position, schema in snapshots if schema != current][:too_many]
    left = [position for position, _ in snapshots if position not in set(dropped)]
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
