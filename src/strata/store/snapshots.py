"""Snapshots of the state: which to keep, and which to start from.

All are kept, up to `KEPT`. Above that, the one whose two neighbours are closest together is dropped
each time. So the gaps stay even: any position of a log of n facts is within about 2n / KEPT of the
snapshot before it. The oldest and the newest are always kept. The schema does not count: a release
may load what earlier releases wrote.

Folding starts from the newest snapshot that this release can load. A snapshot that is damaged, or
that another release wrote in a form unknown here, is skipped: an older one, or the beginning of the
log, leads to the same state.
"""

from collections.abc import Sequence

from strata.core.record.snapshot_versions import SCHEMA, decode
from strata.core.state import Cluster
from strata.errors import Corrupt, InvalidArgument, LimitExceeded, UnknownKind
from strata.store.event_store import EventReader, Snapshot

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
    """Refuse a snapshot of a position that the log does not have, or one too large to keep."""
    if not 0 <= snapshot.position <= position:
        raise InvalidArgument(f"a snapshot at {snapshot.position} does not fit {position} facts")
    if len(snapshot.state) > MAX_STATE_BYTES:
        raise LimitExceeded(
            f"a snapshot of {len(snapshot.state)} bytes is too large to keep",
            hint=f"at most {MAX_STATE_BYTES} bytes",
        )


def require_known(state: Cluster) -> None:
    """Refuse a state that ends before a lost fact and was not salvaged."""
    if state.unknown_from is not None:
        raise Corrupt(
            f"the state after position {state.unknown_from} is not known: the facts from there on "
            "were lost, and so is the snapshot behind them",
            hint="start with `strata up --salvage` to continue from the last known state",
        )


def newest_state(reader: EventReader, at: int | None = None) -> Cluster:
    """The state of the newest snapshot at or before a position; an empty state if there is none."""
    while (snapshot := reader.load_snapshot(at, SCHEMA)) is not None:
        try:
            return decode(snapshot.schema, snapshot.state)
        except (UnknownKind, Corrupt):
            at = snapshot.position - 1
    return Cluster()
