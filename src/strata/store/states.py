"""The state to begin folding from: the newest snapshot that this release can load.

A snapshot that cannot be loaded, because it is damaged or because a newer release wrote it, is
passed over: an older one, or the beginning of the log, leads to the same state.
"""

from strata.core.state import Cluster
from strata.core.state_versions import decode, readable
from strata.errors import Corrupt, UnknownKind
from strata.store.base import EventReader


def newest_state(reader: EventReader, at: int | None = None) -> Cluster:
    """The state of the newest snapshot at or before a position; an empty state if there is none."""
    while (snapshot := reader.load_snapshot(at, *readable())) is not None:
        try:
            return decode(snapshot.schema, snapshot.state)
        except (UnknownKind, Corrupt):
            at = snapshot.position - 1
    return Cluster()
