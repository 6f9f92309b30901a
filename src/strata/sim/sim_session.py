"""A simulated worker's session: registers, opens the stream, sends requests and repeats them.

It follows the SDK's protocol. Requests have numbers; one that was not answered when the stream
broke is sent again on the next one. A refusal that may be temporary is retried a little later. When
the coordinator says that this incarnation is over, all requests so far have failed, and the process
registers as a new incarnation.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from google.protobuf.message import Message

from strata.core.workers.stack_reports import (
    ProcessStacks,
    StackFrame,
    StackReport,
    ThreadStack,
)
from strata.errors import (
    AlreadyExists,
    Fenced,
    NotFound,
    Overloaded,
    PermissionDenied,
    StrataError,
    Unavailable,
)
from strata.sdk.session.channel import error_of
from strata.sdk.session.registration import LeftBarriers
from strata.sim.coordinator_checks import Broken
from strata.sim.sim_coordinator import SESSION
from strata.sim.sim_process import Process
from strata.sim.virtual_streams import Reply
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation

PASSING = (Unavailable, Overloaded)
OVER = (Fenced, NotFound)

Then: TypeAlias = Callable[[pb.CoordinatorMessage | None, StrataError | None], None]


def stacks_of(asked: pb.CollectStacks, name: str, worker: "SimSession | None") -> pb.Stacks:
    """A report on a simulated process; without one it says that the process has ended."""
    report = StackReport(notes=["the process has ended"])
    if worker is not None:
        frames = [StackFrame(function=worker.place, file="sim.py", line=1)]
        state = "stopped" if worker.paused else "sleeping"
        threads = [ThreadStack(main=True, frames=frames)]
        process = ProcessStacks(pid=1, state=state, source="worker", threads=threads)
        report = StackReport(processes=[process])
    return pb.Stacks(
        task_id=asked.task_id,
        collection=asked.collection,
        worker_id=name,
        report=msgspec.json.encode(report),
    )


class SimSession(Process):
    """A simulated process that is a worker."""

    def __init__(self, sim: "Simulation", host: str, name: str, task: str, start: int) -> None:
        super().__init__(sim, host, name)
        self.task = task
        self.start = start
        self.role = self.leaving = ""
        self.left = LeftBarriers()
        self._secret = f"{sim.world.random.random()}"
        self._over = 0
        self._requests: dict[int, tuple[pb.WorkerMessage, Then]] = {}
        self._last_request = 0

    @property
    def nonce(self) -> str:
        """The secret that authenticates the process; another one for each incarnation."""
        return f"{self._secret}-{self._over}"

    def connect(self) -> None:
        """Register as a new incarnation, or reattach as the present one."""
        if self.incarnation:
            self.open(SESSION)
            hello = pb.Hello(
                worker_id=self.name,
                incarnation=self.incarnation,
                nonce=self.nonce,
                left=self.left.all(),
            )
            self.say(pb.WorkerMessage(hello=hello), sign="hello")
        else:
            self.call("RegisterWorker", self.registration(), self._registered)

    def registration(self) -> pb.RegisterWorkerRequest:
        """The registration request."""
        return pb.RegisterWorkerRequest(
            worker_id=self.name,
            hostname=self.host,
            gpu_count=1,
            task_id=self.task,
            nonce=self.nonce,
            start=self.start,
            syncs=True,
        )

    def _registered(self, reply: Reply) -> None:
        error = reply.error
        if isinstance(error, PASSING):
            self.try_again()
        elif isinstance(error, AlreadyExists):
            self.later(self.sim.world.about(2.0), self.connect)
        elif error is not None:
            self.exit(1 if isinstance(error, Fenced | NotFound) else 0)
        else:
            answer = pb.RegisterWorkerResponse.FromString(reply.payload)
            self.incarnation, self.role = answer.incarnation, answer.role
            self.joined()
            self.connect()

    def heard(self, payload: bytes) -> None:
        """Act on a message."""
        message = pb.CoordinatorMessage.FromString(payload)
        kind = message.WhichOneof("body")
        if kind == "standing":
            self._stand(message.standing)
        elif kind == "pulse":
            self.pulsed(message.pulse)
        elif kind == "stored":
            self.stored(message.stored.seq)
        elif kind == "collect_stacks":
            self.say(pb.WorkerMessage(stacks=stacks_of(message.collect_stacks, self.name, self)))
        elif kind == "refused":
            refused = message.refused
            error = error_of(refused.code, "", refused.message, refused.hint)
            self._refused(message.request, error)
        else:
            self._settle(message.request, message, None)

    def _stand(self, standing: pb.Standing) -> None:
        if standing.incarnation != self.incarnation:
            return
        first = not self.connected
        if first:
            self.attached()
            for message, _ in self._requests.values():
                self.say(message)
        self.stored(standing.stored_seq, again=first)
        self.stands(standing)

    def _refused(self, request: int, error: StrataError) -> None:
        if isinstance(error, Fenced) or (isinstance(error, OVER) and not self.connected):
            self._begin_again()
        elif not self.connected and isinstance(error, PermissionDenied):
            raise Broken(f"{self.name} was rejected although it registered: {error}")
        elif not self.connected or request < 0:
            self.drop()
            self.try_again()
        elif isinstance(error, PASSING) and request in self._requests:
            self.later(self.sim.world.about(1.0), self._repeat, request)
        else:
            self._settle(request, None, error)

    def _repeat(self, request: int) -> None:
        if request in self._requests and self.connected:
            self.say(self._requests[request][0])

    def _settle(
        self, request: int, answer: pb.CoordinatorMessage | None, error: StrataError | None
    ) -> None:
        found = self._requests.pop(request, None)
        if found is not None:
            found[1](answer, error)

    def _begin_again(self) -> None:
        """End this incarnation: its requests have failed; if it was leaving, it has left."""
        self.drop()
        self._requests.clear()
        if self.leaving:
            self.exit(0)
            return
        self._over, self.incarnation = self.incarnation, 0
        self.left = LeftBarriers()
        self.over()
        self.connect()

    def ask(self, kind: str, body: Message, then: Then) -> int:
        """Send a request, now or when there is a stream; return its number."""
        self._last_request += 1
        number = self._last_request
        message = pb.WorkerMessage(request=number)
        getattr(message, kind).CopyFrom(body)
        self._requests[number] = (message, then)
        if self.connected:
            self.say(message)
        return number

    def forget(self, request: int) -> None:
        """Drop a request; its answer is ignored."""
        self._requests.pop(request, None)

    @property
    def place(self) -> str:
        """The function that it is in."""
        raise NotImplementedError

    def exit(self, code: int, signal: int = 0) -> None:
        """End the process; the agent of its host notices."""
        if self.alive:
            self.alive = False
            self.drop()
            self.ended(code, signal)

    def joined(self) -> None:
        """Called when the worker is registered."""
        raise NotImplementedError

    def over(self) -> None:
        """Called when its incarnation is over."""
        raise NotImplementedError

    def stands(self, standing: pb.Standing) -> None:
        """Called when its state was sent."""
        raise NotImplementedError

    def pulsed(self, pulse: pb.Pulse) -> None:
        """Called when a heartbeat was answered."""
        raise NotImplementedError

    def stored(self, seq: int, again: bool = False) -> None:
        """Called when its events up to `seq` are stored; `again` on a new stream."""
        raise NotImplementedError

    def ended(self, code: int, signal: int) -> None:
        """Called when the process has ended."""
        raise NotImplementedError
