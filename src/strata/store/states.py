"""The state to begin folding from: the newest snapshot that this release can load.

A snapshot that cannot be loaded, because it is damaged or because a newer release wrote it, is
passed over: an older one, or the beginning of the log, leads to the same state.
"""

from strata.core.state import Cluster
from strata.core.state_versions import decode, readable
from strata.errors import Corrupt, UnknownKind
from strata.store.base import EventReader


def require_known(state: Cluster) -> None:
    """Refuses a state that ends before a lost fact, which a salvage did not bridge."""
    if state.unknown_from is not None:
        raise Corrupt(
            f"the state after position {state.unknown_from} is not known: the facts from there on "
            "were lost, and so is the snapshot behind them",
            hint="`strata up --salvage` goes on from the last known state",
        )


def newest_state(reader: EventReader, at: int | None = None) -> Cluster:
    """The state of the newest snapshot at or before a position; an empty state if there is none."""
    while (snapshot := reader.load_snapshot(at, *readable())) is not None:
        try:
            return decode(snapshot.schema, snapshot.state)
        except (UnknownKind, Corrupt):
            at = snapshot.position - 1
    return Cluster()
