"""The coordinator in the simulation: the real kernel, driven by virtual time, able to crash.

It can crash before its facts are stored, after they are stored but before anyone is answered, or
between turns. Whatever was not stored is lost; whatever was answered is not.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol, TypeAlias

from strata.coordinator.kernel import Kernel, Turn
from strata.core.catalogue import CODEC
from strata.core.checkpoints import CheckpointDeleted, CheckpointSealed
from strata.core.cluster import Outcome
from strata.core.events import Command, Event
from strata.core.liveness import Patience
from strata.core.saving import ConfirmCheckpoint
from strata.core.signals import Beat
from strata.core.standing import Standing, duties, standing, told
from strata.core.state import Cluster
from strata.sim.disk import DiskRefused, Model, SimDisk, Storage
from strata.sim.network import Network
from strata.sim.world import SECOND_NS, World
from strata.store.base import Batch

if TYPE_CHECKING:
    from strata.sim.worker import SimWorker

TURN_S = 0.0005
MANIFEST_S = 0.05


class Peer(Protocol):
    """Whoever holds a session with the coordinator."""

    host: str
    name: str

    def broken(self, session: int) -> None:
        """The connection is gone."""

    def hear(self, session: int, message: object) -> None:
        """The coordinator says something."""


Reply: TypeAlias = Callable[[Outcome], None]
Asked: TypeAlias = tuple[Command, Peer | None, int, Reply | None]


class SimCoordinator:
    """Takes commands over the network, turns them into facts, tells who has to know."""

    def __init__(self, world: World, network: Network, patience: Patience) -> None:
        self.world = world
        self.network = network
        self.patience = patience
        self.disk = SimDisk(CODEC)
        self.storage = Storage({}, {})
        self.kernel: Kernel | None = None
        self.crash_at: str = ""
        self.crashes = 0
        self.turns = 0
        self.on_turn: list[Callable[[Cluster, list[Event]], None]] = []
        self.on_beat: list[Callable[[str, int, Beat], None]] = []
        self._inbox: list[Asked] = []
        self._sessions: dict[str, tuple[Peer, int, int]] = {}
        self._turn_due = False
        self._look_ns = -1

    def start(self) -> None:
        """Begins, or begins again, from what is on disk."""
        kernel = Kernel(self.disk, self.world.clock, self.patience, snapshot_every=5_000)
        try:
            turn = kernel.start("sim", "sim")
        except DiskRefused:
            return self.world.after(1.0, self.start)
        self.kernel = kernel
        self._publish(turn)
        for task in kernel.state.tasks.values():
            for checkpoint in task.checkpoints.values():
                if checkpoint.state == "sealing":
                    self._seal(task.id, checkpoint.id)
        self._look_again()

    def crash(self, unanswered: Sequence[Asked] = ()) -> None:
        """Loses everything that is not on disk; every connection breaks."""
        if self.kernel is None:
            return
        self.kernel = None
        self.crashes += 1
        self.crash_at = ""
        asked = [*unanswered, *self._inbox]
        asking = [(peer, session) for _, peer, session, _ in asked if peer is not None]
        attached = [(peer, session) for peer, session, _ in self._sessions.values()]
        self._inbox = []
        self._sessions = {}
        for peer, session in asking + attached:
            self.network.send(peer.host, False, peer.broken, session)
        self.world.after(self.world.random.uniform(1, 60), self.start)

    def receive(
        self, peer: Peer | None, session: int, command: Command, reply: Reply | None
    ) -> None:
        """A command arrives."""
        if self.kernel is None:
            if peer is not None:
                self.network.send(peer.host, False, peer.broken, session)
            return
        self._inbox.append((command, peer, session, reply))
        self._turn_soon()

    def attach(self, peer: Peer, session: int, incarnation: int) -> None:
        """A session is open: its peer is told its standing, now and after every change."""
        self._sessions[peer.name] = (peer, session, incarnation)
        self._tell_worker(peer.name)
        self._tell_agent(peer.name)

    def reset(self, peer: Peer) -> None:
        """A connection breaks, and both sides notice."""
        found = self._sessions.get(peer.name)
        if found is None or found[0] is not peer or self.kernel is None:
            return
        _, session, incarnation = self._sessions.pop(peer.name)
        self.kernel.watch.disconnected(peer.name, incarnation, self.world.now_ns)
        self._look_again()
        self.network.send(peer.host, False, peer.broken, session)

    def beat(self, peer: Peer, session: int, incarnation: int, beat: Beat | None) -> None:
        """A sign of life; one that does not count breaks the connection."""
        if self.kernel is None:
            self.network.send(peer.host, False, peer.broken, session)
            return
        watch, now_ns = self.kernel.watch, self.world.now_ns
        if beat is None:
            heard = watch.agent_beat(peer.name, incarnation, now_ns)
        else:
            heard = watch.beat(peer.name, incarnation, beat, now_ns)
            for observe in self.on_beat if heard else ():
                observe(peer.name, incarnation, beat)
        if heard:
            self._look_again()
        else:
            self.network.send(peer.host, False, peer.broken, session)

    def take_events(self, peer: "SimWorker", batch: Batch) -> None:
        """A worker's own events arrive; whether they were stored is told, unless it crashes."""
        if self.kernel is not None:
            (refusal,) = self.kernel.ingest([batch])
            if refusal is None:
                self.network.send(peer.host, False, peer.witness.stored, batch)

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.world.after(TURN_S, self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due = False
        kernel = self.kernel
        if kernel is None:
            return
        inbox, self._inbox = self._inbox, []
        turn = kernel.decide([command for command, _, _, _ in inbox])
        if inbox or turn.events:
            if self.crash_at == "before":
                return self.crash(inbox)
            try:
                kernel.commit(turn)
            except DiskRefused as refusal:
                for _, peer, session, reply in inbox:
                    self._answer(peer, session, reply, Outcome(refusal=refusal))
                return self._look_again()
            self._publish(turn)
            if self.crash_at == "after":
                return self.crash(inbox)
            for (_, peer, session, reply), outcome in zip(inbox, turn.outcomes, strict=True):
                self._answer(peer, session, reply, outcome)
        self._look_again()

    def _answer(
        self, peer: Peer | None, session: int, reply: Reply | None, outcome: Outcome
    ) -> None:
        if peer is not None and reply is not None:
            # A copy: what is on its way does not change with the state.
            sent = Outcome(answer=copy(outcome.answer), refusal=outcome.refusal)
            self.network.send(peer.host, False, reply, sent)

    def _publish(self, turn: Turn) -> None:
        assert self.kernel is not None
        state = self.kernel.state
        self.turns += 1
        for observe in self.on_turn:
            observe(state, turn.events)
        workers: dict[str, None] = {}
        agents: dict[str, None] = {}
        for event in turn.events:
            whose = told(state, event)
            workers.update(dict.fromkeys(whose.workers))
            agents.update(dict.fromkeys(whose.agents))
            body = event.body
            if isinstance(body, CheckpointSealed):
                self._seal(body.task, body.checkpoint)
            elif isinstance(body, CheckpointDeleted):
                self.storage.manifests.pop((body.task, body.checkpoint), None)
        for name in workers:
            self._tell_worker(name)
        for name in agents:
            self._tell_agent(name)

    def _tell_worker(self, name: str) -> None:
        assert self.kernel is not None
        if name in self._sessions and name in self.kernel.state.workers:
            message: Standing = standing(self.kernel.state, name)
            peer, session, _ = self._sessions[name]
            self.network.send(peer.host, False, peer.hear, session, message)

    def _tell_agent(self, name: str) -> None:
        assert self.kernel is not None
        if name in self._sessions and name in self.kernel.state.agents:
            peer, session, _ = self._sessions[name]
            self.network.send(peer.host, False, peer.hear, session, duties(self.kernel.state, name))

    def _seal(self, task: str, checkpoint: str) -> None:
        self.world.after(self.world.about(MANIFEST_S), self._write_manifest, task, checkpoint)

    def _write_manifest(self, task: str, checkpoint: str) -> None:
        """Writes a manifest once; a coordinator that crashed meanwhile finds it and confirms."""
        if self.kernel is None:
            return
        parts = self.kernel.state.tasks[task].checkpoints[checkpoint].parts
        models = [self.storage.parts[task, checkpoint, rank] for rank in parts]
        manifest: Model = models[0]
        self.storage.manifests.setdefault((task, checkpoint), manifest)
        command = ConfirmCheckpoint(task=task, checkpoint=checkpoint, path=f"sim://{checkpoint}")
        self.receive(None, 0, command, None)

    def _look_again(self) -> None:
        """Wakes up when silence has to be looked at."""
        kernel = self.kernel
        next_ns = kernel.watch.next_ns() if kernel is not None else None
        if next_ns is None:
            return
        next_ns = max(next_ns, self.world.now_ns)
        if self.world.now_ns <= self._look_ns <= next_ns:
            return
        self._look_ns = next_ns
        self.world.after((next_ns - self.world.now_ns) / SECOND_NS, self._look, next_ns)

    def _look(self, when_ns: int) -> None:
        if when_ns == self._look_ns:
            self._look_ns = -1
            self._take_turn()
