"""What a simulated worker records about itself: the same facts as the SDK's, in the same batches.

Each worker numbers its events and keeps them until the coordinator has stored them; they travel
with its beats over the same links, so a cut delays them and a crash loses the last of them. Its
host has clocks of its own: a wall clock that may be wrong, a monotonic one that began elsewhere.
"""

import zlib
from typing import TYPE_CHECKING

from strata.core.catalogue import CODEC
from strata.core.events import Envelope, Event, Fact, event_id
from strata.core.worker_facts import (
    ClockSampled,
    CoordinatorStateSeen,
    EventsDropped,
    MessageReceived,
    MessageRejected,
    MessageSent,
    RunStarted,
)
from strata.sdk.spool import batch_message
from strata.sim.world import EPOCH_NS, SECOND_NS
from strata.store.base import Batch
from strata.store.batches import pack
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.worker import SimWorker

RESULT_BYTES = 4_096
PEER_S = 0.002


class Witness:
    """The recorder of one worker; silent unless the scenario asks for workers' events."""

    def __init__(self, worker: "SimWorker") -> None:
        self.worker = worker
        self.sim = worker.sim
        self.began_ns: dict[str, int] = {}
        self._waiting: list[Event] = []
        self._unstored: list[Batch] = []
        self._incarnation = 0
        self._next_seq = 0
        self._boot_ns = zlib.crc32(worker.host.encode()) * 1_000

    def begin(self) -> None:
        """A new incarnation: its numbers start at 0."""
        worker, before = self.worker, self._incarnation
        lost = len(self._waiting) + sum(batch.count for batch in self._unstored)
        self._incarnation, self._next_seq = worker.incarnation, 0
        self._waiting, self._unstored = [], []
        self.record(
            RunStarted(
                task=worker.task,
                worker=worker.name,
                incarnation=worker.incarnation,
                role=worker.role,
                hostname=worker.host,
            )
        )
        if lost:
            self.record(EventsDropped(lost, f"incarnation {before} was fenced before it sent"))

    def record(self, fact: Fact, op: str = "", cause: tuple[str, ...] = ()) -> str:
        """Adds an event; how it is called."""
        if not self.sim.scenario.events or not self._incarnation:
            return ""
        now_ns = self.sim.world.now_ns
        wall_ns = EPOCH_NS + now_ns + self.sim.wrong_clocks.get(self.worker.host, 0)
        event = Envelope(self._next_seq, wall_ns, now_ns + self._boot_ns, fact, cause, op)
        self._waiting.append(event)
        self._next_seq += 1
        return event_id(self.worker.name, self._incarnation, event.seq)

    def told(self, standing: pb.Standing) -> None:
        """The worker learned its place."""
        self.record(
            CoordinatorStateSeen(
                self.worker.task,
                standing.task_state,
                standing.generation,
                standing.phase,
                standing.rank,
                standing.world_size,
                standing.attempt,
                standing.committed,
            )
        )

    def begun(self, what: str) -> None:
        """Something starts that will be measured."""
        self.began_ns[what] = self.sim.world.now_ns

    def took_s(self, what: str) -> float:
        """How long it took."""
        now_ns = self.sim.world.now_ns
        return (now_ns - self.began_ns.get(what, now_ns)) / SECOND_NS

    def send(self) -> None:
        """Sends what has gathered; it is kept until it is known to be stored."""
        if self._waiting:
            batch = pack(CODEC, self.worker.name, self._incarnation, self._waiting)
            self._waiting = []
            self._unstored.append(batch)
            self._send(batch)

    def resend(self) -> None:
        """Sends again what is not known to be stored, in the same batches."""
        for batch in self._unstored:
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        number = -1 - batch.first_seq
        self.worker.say(pb.WorkerMessage(request=number, events=batch_message(batch)))

    def sampled(self, pulse: pb.Pulse) -> None:
        """The answer to a beat is here."""
        now_ns = self.sim.world.now_ns
        round_trip_ns = now_ns - pulse.sent_mono_ns
        own_ns = EPOCH_NS + now_ns + self.sim.wrong_clocks.get(self.worker.host, 0)
        offset_ns = pulse.server_wall_ns - (own_ns - round_trip_ns // 2)
        self.record(ClockSampled(offset_ns, round_trip_ns, pulse.server_mono_ns))

    def lose(self) -> None:
        """What waits is lost, as with a disk that fails; the gap in the numbers stays."""
        self._waiting.clear()

    def stored(self, seq: int) -> None:
        """The coordinator has everything up to `seq`."""
        self._unstored = [batch for batch in self._unstored if batch.stop_seq - 1 > seq]

    def announce(self, generation: int, step: int) -> None:
        """Tells the next rank that this one's share of a step is done."""
        peer = self.sim.next_rank(self.worker) if self.sim.scenario.events else None
        if peer is None:
            return
        message = f"{self.worker.name}:{generation}:{step}"
        sent = self.record(
            MessageSent(
                message=message,
                type="result",
                size_bytes=RESULT_BYTES,
                to=[peer.name],
                author=self.worker.name,
                step=step,
            )
        )
        self.sim.carry(self.worker, peer, message, generation, sent)

    def deliver(self, message: str, sender: str, generation: int, sent: str) -> None:
        """A peer's word arrives; one of another generation is not taken."""
        if generation != self.worker.generation:
            reason = f"it is of generation {generation}, this is {self.worker.generation}"
            self.record(MessageRejected(message, reason, "result", sender), cause=(sent,))
        else:
            received = MessageReceived(message, "result", RESULT_BYTES, sender)
            self.record(received, cause=(sent,))
