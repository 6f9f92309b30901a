"""The single writer without its event loop: decide, append, and nothing else.

A *turn* is a batch of commands and signals. `decide` takes them in order, in memory: commands run
the rules, signals (beats, broken connections) change what is known about who is alive. Workers that
leave or register in the same turn are dealt with together after all others, so that a task changes
its generation once. At the end of the turn, after everything that arrived, the kernel decides which
workers and agents are overdue. So a message that arrived in time counts, and the decision is
recorded in the same turn. `commit` puts the facts of
the whole turn on disk in one transaction. Only then may answers go out and facts be published:
`durable` is the position up to which that holds. If the disk refuses, the state in memory has run
ahead of the log; it is thrown away and folded again from what is stored.

The engine drives a kernel with an event loop.

Restart. The newest snapshot is loaded and the facts after it are folded in. A snapshot is taken
after every `snapshot_every` facts, unless the log grew by less than half of what the last one
takes, compressed: so snapshots do not outweigh the log by much, and reading any moment folds a
bounded number of facts. A snapshot that the disk refuses is only a slower restart.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct, field, structs

from strata.coordinator.holders import away_holder
from strata.core import state_versions
from strata.core.agents import ReportExit
from strata.core.cluster import (
    Outcome,
    StartCoordinator,
    decide,
    decide_departures,
    departs,
    fold,
)
from strata.core.events import Command, Event, Now, position_id
from strata.core.liveness import Patience, Watch
from strata.core.signals import (
    AgentBeat,
    AgentDisconnected,
    Signal,
    WorkerBeat,
    WorkerDisconnected,
)
from strata.core.state import Cluster, Rules
from strata.core.workers import (
    AdmitWorkers,
    DeregisterWorker,
    RegisterWorker,
    ReportState,
    WorkerRegistered,
)
from strata.errors import Conflict, Fenced, StrataError
from strata.store.base import Batch, EventStore, Snapshot
from strata.store.states import newest_state, require_known

log = logging.getLogger(__name__)

Asked: TypeAlias = Command | Signal

BYTES_PER_FACT = 16
"""About what a fact takes in the log, compressed in its batch: used to pace snapshots."""

COMPRESSED = 25
"""About how many times smaller a snapshot is when stored (measured: 6.9 MB to 0.28 MB)."""


class Turn(Struct):
    """Decided together: an outcome for each command and signal, in order, and all the facts."""

    outcomes: list[Outcome] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


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
        self._snapshot_bytes = 0
        self.load()

    def load(self) -> None:
        """Folds the state anew from what is stored; everyone gets the grace to come back."""
        found = newest_state(self.store)
        self._snapshot_at = found.position
        state = fold(found, self.store.read(found.position))
        require_known(state)
        watch = Watch(self.patience)
        watch.adopt(state, self.clock().mono_ns)
        self.state, self.watch = state, watch
        self.durable = state.position

    def start(self, cluster: str, release: str, rules: Rules | None = None) -> Turn:
        """Takes the log over: raises the coordinator's incarnation."""
        command = StartCoordinator(
            cluster=cluster,
            release=release,
            rules=rules or Rules(),
            timeouts=structs.asdict(self.patience),
        )
        turn = self.decide([command])
        self.commit(turn)
        return turn

    def decide(self, asked: Sequence[Asked], judge: bool = True) -> Turn:
        """Decides what was asked and noticed; the state in memory advances.

        `judge` is false while more waits to be heard, which may be a sign of life.
        """
        turn = Turn()
        leaving: dict[int, DeregisterWorker | ReportExit] = {}
        several = sum(isinstance(each, RegisterWorker) for each in asked) > 1
        for place, each in enumerate(asked):
            if departs(each, self.state):
                leaving[place] = each
                turn.outcomes.append(Outcome())
                continue
            later = several and isinstance(each, RegisterWorker)
            outcome = self._take(structs.replace(each, admit=False) if later else each)
            turn.outcomes.append(outcome)
            turn.events += outcome.events
        if leaving:
            self._depart(turn, leaving)
        if several:
            self._admit(turn)
        if judge:
            for verdict in self.watch.overdue(self.state, self.clock().mono_ns):
                turn.events += self._decide(verdict).events
        return turn

    def commit(self, turn: Turn) -> None:
        """Makes a turn durable; afterwards its answers may go out. Blocks on the disk."""
        if turn.events:
            self._append(turn.events)
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

    def _take(self, asked: Asked) -> Outcome:
        if isinstance(asked, WorkerBeat):
            return self._beat(asked)
        if isinstance(asked, AgentBeat):
            return self._agent_beat(asked)
        if isinstance(asked, WorkerDisconnected):
            now_ns = self.clock().mono_ns
            self.watch.disconnected(asked.worker, asked.incarnation, now_ns)
            return Outcome()
        if isinstance(asked, AgentDisconnected):
            now_ns = self.clock().mono_ns
            self.watch.agent_disconnected(asked.agent, asked.incarnation, now_ns)
            return Outcome()
        assert isinstance(asked, Command)
        if isinstance(asked, RegisterWorker):
            return self._register(asked)
        return self._decide(asked)

    def _depart(self, turn: Turn, leaving: dict[int, DeregisterWorker | ReportExit]) -> None:
        """Lets workers leave together; their commands have these places in the turn."""
        outcomes = decide_departures(self.state, list(leaving.values()), self.clock())
        for place, outcome in zip(leaving, outcomes, strict=True):
            turn.outcomes[place] = outcome
            turn.events += self._followed(outcome).events

    def _admit(self, turn: Turn) -> None:
        """Takes the workers that registered in a turn into their tasks."""
        newcomers: dict[str, list[tuple[str, str]]] = {}
        for event in turn.events:
            if isinstance(event.body, WorkerRegistered):
                newcomer = (event.body.worker, position_id(event.seq))
                newcomers.setdefault(event.body.task, []).append(newcomer)
        for task, found in newcomers.items():
            workers, facts = zip(*found, strict=True)
            turn.events += self._decide(AdmitWorkers(task, list(workers), cause=facts)).events

    def _decide(self, command: Command) -> Outcome:
        return self._followed(decide(self.state, command, self.clock()))

    def _followed(self, outcome: Outcome) -> Outcome:
        for event in outcome.events:
            self.watch.follow(event)
        return outcome

    def _beat(self, heard: WorkerBeat) -> Outcome:
        """A beat counts if its incarnation does; what the worker is doing is recorded when that
        changed."""
        worker = self.state.workers.get(heard.worker)
        now_ns = self.clock().mono_ns
        known = self.watch.beat(heard.worker, heard.incarnation, heard.beat, now_ns)
        if known and worker is not None and heard.state in (None, worker.state):
            return Outcome()
        return self._decide(
            ReportState(
                worker=heard.worker,
                incarnation=heard.incarnation,
                state=heard.state or "idle",
                step=heard.beat.step,
            )
        )

    def _agent_beat(self, heard: AgentBeat) -> Outcome:
        if self.watch.agent_beat(heard.agent, heard.incarnation, self.clock().mono_ns):
            return Outcome()
        refusal = Fenced(
            f"incarnation {heard.incarnation} of agent {heard.agent!r} no longer counts",
            hint="register the agent again",
        )
        return Outcome(refusal=refusal)

    def _register(self, command: RegisterWorker) -> Outcome:
        """Lets a worker in, unless its id belongs to one that is away and may come back."""
        away = away_holder(self.state, self.watch, command, self.clock().mono_ns)
        if isinstance(away, StrataError):
            return Outcome(refusal=away)
        lost = self._decide(away).events if away is not None else []
        registered = self._decide(command)
        return Outcome(lost + registered.events, registered.answer, registered.refusal)

    def _append(self, events: list[Event]) -> None:
        expected = self.durable
        try:
            self.store.append(
                events, incarnation=self.state.coordinator_incarnation, expected=expected
            )
        except BaseException as error:
            self.load()
            if isinstance(error, Conflict) or list(self.store.read(expected)) != events:
                raise
            log.warning("the facts are stored, although the disk reported: %s", error)

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
        try:
            self.store.save_snapshot(snapshot)
        except StrataError as error:
            log.warning("a snapshot could not be stored, so a restart takes longer: %s", error)
        self._snapshot_at = self.durable
        self._snapshot_bytes = len(encoded)


def state_at(store: EventStore, position: int | None) -> Cluster:
    """The state after the first `position` facts, or after all of them."""
    state = newest_state(store, position)
    return fold(state, store.read(state.position, position))
