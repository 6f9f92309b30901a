"""The single writer without its event loop: decide, append, and nothing else.

A *turn* is a batch of commands. `decide` runs the rules over all of them, in memory; `commit` puts
the facts of the whole turn on disk in one transaction. Only then may answers go out and facts be
published: `durable` is the position up to which that holds. If the disk refuses, the state in
memory has run ahead of the log; it is thrown away and folded again from what is stored.

The engine drives a kernel with an event loop, the simulator with a virtual clock; both run this
same code.

Restart. The newest snapshot is loaded and the facts after it are folded in. A snapshot is taken
after every `snapshot_every` facts, unless the log grew by less than half of what the last one
takes, compressed: so snapshots do not outweigh the log by much, and reading any moment folds a
bounded number of facts.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from strata.core import state_versions
from strata.core.cluster import Outcome, StartCoordinator, decide, fold
from strata.core.events import Command, Event, Now
from strata.core.liveness import Patience, Watch
from strata.core.state import Cluster, Rules
from strata.errors import StrataError
from strata.store.base import Batch, EventStore, Snapshot
from strata.store.states import newest_state

BYTES_PER_FACT = 16
"""About what a fact takes in the log, compressed in its batch: used to pace snapshots."""

COMPRESSED = 25
"""About how many times smaller a snapshot is when stored (measured: 6.9 MB to 0.28 MB)."""


class Turn(Struct):
    """Commands decided together: their outcomes, in order, and the facts to be stored."""

    outcomes: list[Outcome]
    events: list[Event]


class Kernel:
    """Owns the state of the cluster."""

    def __init__(
        self,
        store: EventStore,
        clock: Callable[[], Now],
        patience: Patience | None = None,
        snapshot_every: int = 4_000,
    ) -> None:
        self.store = store
        self.clock = clock
        self.patience = patience or Patience()
        self.snapshot_every = snapshot_every
        self.durable = 0
        self.state = Cluster()
        self.watch = Watch(self.patience)
        self._snapshot_at = 0
        self._snapshot_bytes = 0
        self.load()

    def load(self) -> None:
        """Folds the state anew from what is stored; everyone gets the grace to come back."""
        state = newest_state(self.store)
        self._snapshot_at = state.position
        self.state = fold(state, self.store.read(state.position))
        self.durable = self.state.position
        self.watch = Watch(self.patience)
        self.watch.adopt(self.state, self.clock().mono_ns)

    def start(self, cluster: str, release: str, rules: Rules | None = None) -> Turn:
        """Takes the log over: raises the coordinator's incarnation."""
        command = StartCoordinator(cluster=cluster, release=release, rules=rules or Rules())
        turn = self.decide([command])
        self.commit(turn)
        return turn

    def decide(self, commands: Sequence[Command]) -> Turn:
        """Runs the rules; the state in memory advances."""
        outcomes = [decide(self.state, command, self.clock()) for command in commands]
        events = [event for outcome in outcomes for event in outcome.events]
        for event in events:
            self.watch.follow(event)
        return Turn(outcomes, events)

    def overdue(self) -> list[Command]:
        """What silence has to be answered with."""
        return self.watch.overdue(self.state, self.clock().mono_ns)

    def commit(self, turn: Turn) -> None:
        """Makes a turn durable; afterwards its answers may go out. Blocks on the disk."""
        if turn.events:
            try:
                self.store.append(
                    turn.events,
                    incarnation=self.state.coordinator_incarnation,
                    expected=self.durable,
                )
            except BaseException:
                self.load()
                raise
        self.durable = self.state.position
        if self.durable - self._snapshot_at >= self.snapshot_every:
            self._snapshot()

    def ingest(self, batches: Sequence[Batch]) -> list[StrataError | None]:
        """Stores workers' batches; says of each why it was not. A bad one harms no other."""
        if not batches:
            return []
        try:
            self.store.append(
                (),
                incarnation=self.state.coordinator_incarnation,
                expected=self.durable,
                batches=batches,
            )
        except StrataError as error:
            if len(batches) == 1:
                return [error]
            return [refusal for batch in batches for refusal in self.ingest([batch])]
        return [None] * len(batches)

    def _snapshot(self) -> None:
        grown_bytes = (self.durable - self._snapshot_at) * BYTES_PER_FACT
        if grown_bytes < self._snapshot_bytes / COMPRESSED / 2:
            return
        encoded = state_versions.encode(self.state)
        snapshot = Snapshot(
            position=self.durable,
            wall_ns=self.clock().wall_ns,
            schema=state_versions.SCHEMA,
            state=encoded,
        )
        self.store.save_snapshot(snapshot)
        self._snapshot_at = self.durable
        self._snapshot_bytes = len(encoded)


def state_at(store: EventStore, position: int | None) -> Cluster:
    """The state after the first `position` facts, or after all of them."""
    state = newest_state(store, position)
    return fold(state, store.read(state.position, position))
