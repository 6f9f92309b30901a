"""The single writer of facts, without I/O except for the store: decide and append.

A *turn* is a batch of commands and signals. `decide` processes them in order, in memory: commands
run the rules, signals (heartbeats, broken connections) update the liveness of workers and agents.
Workers that leave or register in the same turn are processed together after all others, so that a
task changes its generation once. At the end of the turn the kernel decides which workers and agents
have passed their deadlines, so a message that arrived in time counts. `commit` writes the facts of
the turn to disk in one transaction. Only then may answers be sent and facts be published; `durable`
is the position up to which facts are on disk. If the write fails, the state in memory is ahead of
the log; it is discarded and folded again from the stored facts.

The engine runs a kernel in an event loop.

At a restart the newest snapshot is loaded and the facts after it are folded in. A snapshot is taken
every `snapshot_every` facts, unless the log grew by less than half of the compressed size of the
last snapshot: so snapshots are not much larger than the log, and reading any moment folds a bounded
number of facts. If a snapshot cannot be stored, the next restart only takes longer.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct, field, structs

from strata.coordinator.engine.turn_timings import Timings
from strata.coordinator.sessions.id_holders import away_holder
from strata.core.cluster import (
    Outcome,
    StartCoordinator,
    decide,
    decide_departures,
    departs,
    fold,
)
from strata.core.events import Command, Event, Now, position_id
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.record import snapshot_versions
from strata.core.rule_settings import Rules, Timeouts
from strata.core.state import Cluster
from strata.core.workers.heartbeats import (
    AgentBeat,
    AgentDisconnected,
    Signal,
    WorkerBeat,
    WorkerDisconnected,
)
from strata.core.workers.host_agents import ReportExit
from strata.core.workers.liveness import Watch
from strata.core.workers.worker_lifecycle import (
    AdmitWorkers,
    DeregisterWorker,
    RegisterWorker,
    ReportState,
    WorkerRegistered,
)
from strata.errors import Conflict, Fenced, NotLeading, StrataError, Unavailable
from strata.store.event_store import Batch, EventStore, Snapshot
from strata.store.snapshots import newest_state, require_known

log = logging.getLogger(__name__)

KernelInput: TypeAlias = Command | Signal

BYTES_PER_FACT = 16
"""Approximate compressed size of a fact in the log."""

COMPRESSED = 25
"""Approximate compression ratio of a snapshot (measured: 6.9 MB to 0.28 MB)."""


class Turn(Struct):
    """An outcome for each command and signal of a turn, in order, and all facts of the turn."""

    outcomes: list[Outcome] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Kernel:
    """The state of the cluster and its liveness watch."""

    def __init__(
        self,
        store: EventStore,
        clock: Callable[[], Now],
        timeouts: Timeouts | None = None,
        snapshot_every: int = 4_000,
    ) -> None:
        self.store = store
        self.clock = clock
        self.timeouts = timeouts or Timeouts()
        self.snapshot_every = snapshot_every
        self.timings = Timings()
        self._snapshot_bytes = 0
        self.load()

    def load(self) -> None:
        """Fold the state from the stored facts; all workers get time to reconnect."""
        found = newest_state(self.store)
        self._snapshot_at = found.position
        state = fold(found, self.store.read(found.position))
        require_known(state)
        watch = Watch(self.timeouts)
        watch.adopt(state, self.clock().mono_ns)
        self.state, self.watch = state, watch
        self.durable = state.position
        self.outdated = False

    def start(self, cluster: str, release: str, rules: Rules | None = None) -> Turn:
        """Record the start of this coordinator: raises the coordinator's incarnation."""
        command = StartCoordinator(
            cluster=cluster,
            release=release,
            rules=rules or Rules(),
            timeouts=structs.asdict(self.timeouts),
        )
        turn = self.decide([command])
        self.commit(turn)
        return turn

    def decide(self, asked: Sequence[KernelInput], check_deadlines: bool = True) -> Turn:
        """Decide commands and signals; the state in memory advances.

        `check_deadlines` is false while messages are queued that may be heartbeats.
        """
        began_ns = self.clock().mono_ns
        turn = self._decide_turn(asked, check_deadlines)
        if asked or turn.events:
            self.timings.note_decision(turn.events, began_ns, self.clock().mono_ns)
        return turn

    def _decide_turn(self, asked: Sequence[KernelInput], check_deadlines: bool) -> Turn:
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
        if check_deadlines:
            for verdict in self.watch.overdue(self.state, self.clock().mono_ns):
                turn.events += self._decide(verdict).events
        return turn

    def commit(self, turn: Turn) -> None:
        """Write a turn to disk; afterwards its answers may be sent. Blocks on the disk."""
        began_ns = self.clock().mono_ns
        if turn.events:
            self._append(turn.events)
        self.durable = self.state.position
        if self.durable - self._snapshot_at >= self.snapshot_every:
            self._snapshot()
        self.timings.append_s.add((self.clock().mono_ns - began_ns) / SECOND_NS)

    def ingest(self, batches: Sequence[Batch]) -> list[StrataError | None]:
        """Store workers' batches of events; returns an error or None for each of them."""
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
            if len(batches) == 1 or isinstance(error, Unavailable):
                return [error] * len(batches)
            return [refusal for batch in batches for refusal in self.ingest([batch])]
        return [None] * len(batches)

    def _take(self, asked: KernelInput) -> Outcome:
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
        """Decide the departures of a turn together; keys are their places in the turn."""
        outcomes = decide_departures(self.state, list(leaving.values()), self.clock())
        for place, outcome in zip(leaving, outcomes, strict=True):
            turn.outcomes[place] = outcome
            turn.events += self._followed(outcome).events

    def _admit(self, turn: Turn) -> None:
        """Admit the workers that registered in a turn to their tasks."""
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

    def _beat(self, signal: WorkerBeat) -> Outcome:
        """Process a heartbeat of a live incarnation; record the worker's state if it changed."""
        worker = self.state.workers.get(signal.worker)
        now_ns = self.clock().mono_ns
        known = self.watch.beat(signal.worker, signal.incarnation, signal.beat, now_ns)
        if known and worker is not None and signal.state in (None, worker.state):
            return Outcome()
        return self._decide(
            ReportState(
                worker=signal.worker,
                incarnation=signal.incarnation,
                state=signal.state or "idle",
                step=signal.beat.step,
            )
        )

    def _agent_beat(self, signal: AgentBeat) -> Outcome:
        if self.watch.agent_beat(signal.agent, signal.incarnation, self.clock().mono_ns):
            return Outcome()
        refusal = Fenced(
            f"agent {signal.agent!r} has a newer incarnation than {signal.incarnation}, so its "
            "heartbeat was rejected",
            hint="register the agent again",
        )
        return Outcome(refusal=refusal)

    def _register(self, command: RegisterWorker) -> Outcome:
        """Register a worker, unless its id belongs to a disconnected worker that may reconnect."""
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
            self.outdated = True
            if isinstance(error, NotLeading):
                raise
            self.load()
            if isinstance(error, Conflict) or list(self.store.read(expected)) != events:
                raise
            log.warning("the facts are stored, although the append failed with: %s", error)

    def _snapshot(self) -> None:
        grown_bytes = (self.durable - self._snapshot_at) * BYTES_PER_FACT
        if grown_bytes < self._snapshot_bytes / COMPRESSED / 2:
            return
        encoded = snapshot_versions.encode(self.state)
        snapshot = Snapshot(
            position=self.durable,
            wall_ns=self.clock().wall_ns,
            schema=snapshot_versions.SCHEMA,
            state=encoded,
        )
        try:
            self.store.save_snapshot(snapshot)
        except StrataError as error:
            log.warning("a snapshot could not be stored; the next restart takes longer: %s", error)
        self._snapshot_at = self.durable
        self._snapshot_bytes = len(encoded)


def state_at(store: EventStore, position: int | None) -> Cluster:
    """The state after the first `position` facts, or after all facts."""
    state = newest_state(store, position)
    return fold(state, store.read(state.position, position))
