"""The recorder of a simulated worker: the same facts as the SDK's, in the same batches.

Each worker numbers its events and keeps them until the coordinator has stored them; they travel
with its heartbeats, so a cut delays them and a crash loses the last of them. Its host has clocks of
its own: a wall clock that may be wrong, and a monotonic one with another origin.
"""

import zlib
from typing import TYPE_CHECKING

from strata.core.events import Envelope, Event, Fact, event_id
from strata.core.record.event_codec import CODEC
from strata.core.workers.exchange_facts import MessageReceived, MessageRejected, MessageSent
from strata.core.workers.worker_facts import (
    ClockSampled,
    CoordinatorStateSeen,
    EventsDropped,
    RunStarted,
)
from strata.sdk.record.spool import batch_message
from strata.sim.virtual_time import EPOCH_NS, SECOND_NS
from strata.store.event_batches import pack
from strata.store.event_store import Batch
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.sim_worker import SimWorker

RESULT_BYTES = 4_096
PEER_S = 0.002


class SimRecorder:
    """The recorder of one worker; records nothing unless the scenario asks for events."""

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
        """Start a new incarnation: its numbers start at 0."""
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
                parameters={"heartbeat_interval_s": str(self.sim.scenario.heartbeat_s)},
            )
        )
        if lost:
            self.record(
                EventsDropped(count=lost, reason=f"incarnation {before} was fenced before it sent")
            )

    def record(self, fact: Fact, op: str = "", cause: tuple[str, ...] = ()) -> str:
        """Record an event; return its id."""
        if not self.sim.scenario.events or not self._incarnation:
            return ""
        now_ns = self.sim.world.now_ns
        wall_ns = EPOCH_NS + now_ns + self.sim.wrong_clocks.get(self.worker.host, 0)
        event = Envelope(
            seq=self._next_seq,
            wall_ns=wall_ns,
            mono_ns=now_ns + self._boot_ns,
            body=fact,
            cause=cause,
            op=op,
        )
        self._waiting.append(event)
        self._next_seq += 1
        return event_id(self.worker.name, self._incarnation, event.seq)

    def standing_received(self, standing: pb.Standing) -> None:
        """Record the place that the worker learned."""
        self.record(
            CoordinatorStateSeen(
                task=self.worker.task,
                state=standing.task_state,
                generation=standing.generation,
                phase=standing.phase,
                rank=standing.rank,
                world_size=standing.world_size,
                attempt=standing.attempt,
                committed=standing.committed,
            )
        )

    def begun(self, what: str) -> None:
        """Start a measurement."""
        self.began_ns[what] = self.sim.world.now_ns

    def took_s(self, what: str) -> float:
        """The seconds since a measurement started."""
        now_ns = self.sim.world.now_ns
        return (now_ns - self.began_ns.get(what, now_ns)) / SECOND_NS

    def send(self) -> None:
        """Send new events; they are kept until they are known to be stored."""
        if self._waiting:
            batch = pack(CODEC, self.worker.name, self._incarnation, self._waiting)
            self._waiting = []
            self._unstored.append(batch)
            self._send(batch)

    def resend(self) -> None:
        """Send events that are not known to be stored again, in the same batches."""
        for batch in self._unstored:
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        number = -1 - batch.first_seq
        self.worker.say(pb.WorkerMessage(request=number, events=batch_message(batch)))

    def sampled(self, pulse: pb.Pulse) -> None:
        """Record the clock sample of a heartbeat's answer."""
        now_ns = self.sim.world.now_ns
        round_trip_ns = now_ns - pulse.sent_mono_ns
        own_ns = EPOCH_NS + now_ns + self.sim.wrong_clocks.get(self.worker.host, 0)
        offset_ns = pulse.server_wall_ns - (own_ns - round_trip_ns // 2)
        self.record(
            ClockSampled(
                offset_ns=offset_ns,
                round_trip_ns=round_trip_ns,
                server_mono_ns=pulse.server_mono_ns,
            )
        )

    def lose(self) -> None:
        """Lose the unsent events, as with a failing disk; the gap in the numbers stays."""
        self._waiting.clear()

    def stored(self, seq: int) -> None:
        """Drop events up to `seq`, which the coordinator has stored."""
        self._unstored = [batch for batch in self._unstored if batch.stop_seq - 1 > seq]

    def announce(self, generation: int, step: int) -> None:
        """Tell the next rank that this worker's share of a step is done."""
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
        """Take a peer's message; one of another generation is rejected."""
        if generation != self.worker.generation:
            reason = f"it is of generation {generation}, this is {self.worker.generation}"
            self.record(
                MessageRejected(message=message, reason=reason, type="result", sender=sender),
                cause=(sent,),
            )
        else:
            received = MessageReceived(
                message=message, type="result", size_bytes=RESULT_BYTES, sender=sender
            )
            self.record(received, cause=(sent,))
