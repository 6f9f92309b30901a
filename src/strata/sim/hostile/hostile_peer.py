"""A hostile process: a worker or agent of its own that sends any message at any time.

It registers as a worker of a task of its own, and as an agent whose host an operator excludes, so
that no work is sent to it. Over both streams, and
by unary calls, it then sends random messages that name the workers, tasks, generations and
incarnations of others. It repeats messages, answers before it is asked or long after, opens streams
that it never uses, and breaks its connections. It does not know the secrets of others, so nothing
that it sends may change their tasks.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from strata.core.hosts.host_exclusion import ExcludeHost
from strata.core.state import Cluster
from strata.sim.coordinator_checks import FORGED, HOSTILE
from strata.sim.hostile.random_messages import Known, fill
from strata.sim.sim_coordinator import AGENT_SESSION, SESSION
from strata.sim.sim_process import Process
from strata.sim.virtual_streams import Line, Reply
from strata.wire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.sim.simulation import Simulation

HOST = f"{HOSTILE}-host"
AGENT = f"{HOSTILE}-agent"
MESSAGES = 60
PAUSE_S = (0.0, 0.001, 0.05, 0.5, 3.0)
MOST_LINES = 8
MOST_KEPT = 16
CALLS: dict[str, Any] = {
    method.name: getattr(pb, method.input_type.name)
    for method in pb.DESCRIPTOR.services_by_name["Coordinator"].methods
    if not method.client_streaming and method.name != "ReadWorkdir"  # of the whole server
}


class HostilePeer(Process):
    """One hostile process; it sends a number of messages and then ends."""

    def __init__(self, sim: "Simulation", name: str) -> None:
        super().__init__(sim, HOST, name)
        self.sent = 0
        self._lines: list[Line] = []
        self._kept: list[tuple[str, bytes]] = []

    def begin(self) -> None:
        """Register as an agent and as a worker, then send messages."""
        agent = self._opened(AGENT_SESSION)
        self._send(agent, self._greeting(AGENT_SESSION))
        excluded = ExcludeHost(host=AGENT, reason="it is hostile")
        self.sim.world.after(0.01, self.sim.coordinator.order, excluded)
        claim = pb.RegisterWorkerRequest(worker_id=self.name, hostname=HOST, nonce=self.name)
        self.call("RegisterWorker", claim, self._registered)
        self.later(0.1, self._strike)

    def _registered(self, reply: Reply) -> None:
        if reply.error is None:
            self.incarnation = pb.RegisterWorkerResponse.FromString(reply.payload).incarnation

    def _strike(self) -> None:
        """Do one hostile thing, and go on until enough messages were sent."""
        dice = self.sim.world.random
        doing = dice.choice(
            (self._speak, self._speak, self._speak, self._ask, self._open, self._cut)
        )
        doing()
        self.sent += 1
        if self.sent < MESSAGES:
            self.later(dice.choice(PAUSE_S), self._strike)
        else:
            self._end()

    def _end(self) -> None:
        """End without a word: its connections break."""
        self.alive = False
        for line in self._lines:
            self._lose(line)
        self._lines.clear()

    def _open(self) -> None:
        """Open a stream; mostly greet as itself, else with what it invents."""
        dice = self.sim.world.random
        path = dice.choice((SESSION, SESSION, AGENT_SESSION))
        line = self._opened(path)
        greeting: Any = self._greeting(path)
        if dice.random() < 0.3 and path == SESSION:
            self._aim(greeting.hello)
        if dice.random() < 0.8:
            self._send(line, greeting)

    def _opened(self, path: str) -> Line:
        line = Line(self.sim.network, self, path, 0)  # its signs of life are not judged
        self.sim.network.send(self.host, True, self.sim.coordinator.open, line)
        self._lines.append(line)
        if len(self._lines) > MOST_LINES:
            self._lose(self._lines.pop(0))
        return line

    def _greeting(self, path: str) -> Message:
        if path == AGENT_SESSION:
            hello = pb.AgentHello(agent_id=AGENT, hostname=HOST, slots=1, nonce=AGENT)
            return pb.AgentMessage(hello=hello)
        greeting = pb.Hello(worker_id=self.name, incarnation=self.incarnation, nonce=self.name)
        return pb.WorkerMessage(hello=greeting)

    def _cut(self) -> None:
        """Break a connection."""
        if self._lines:
            self._lose(self._lines.pop(self.sim.world.random.randrange(len(self._lines))))

    def _lose(self, line: Line) -> None:
        self.sim.network.send(self.host, True, self.sim.coordinator.lost, line)

    def _speak(self) -> None:
        """Send a message over a stream: a new one, or one that was sent before."""
        if not self._lines:
            return self._open()
        dice = self.sim.world.random
        line = dice.choice(self._lines)
        earlier = [payload for path, payload in self._kept if path == line.path]
        if earlier and dice.random() < 0.2:
            return self._carry(line, dice.choice(earlier))
        message = pb.AgentMessage() if line.path == AGENT_SESSION else pb.WorkerMessage()
        self._fill_body(message)
        self._send(line, message)

    def _fill_body(self, message: Any) -> None:
        """Choose one body evenly, so that all of them occur."""
        dice, known = self.sim.world.random, self._known()
        bodies = message.DESCRIPTOR.oneofs_by_name["body"].fields
        chosen = dice.choice(bodies)
        body = getattr(message, chosen.name)
        body.SetInParent()
        fill(dice, body, known)
        self._aim(body)
        if isinstance(message, pb.WorkerMessage):
            message.request = dice.choice((0, 1, 2, -1, 2**62, self.sent))
        if isinstance(body, pb.AgentHello):
            body.agent_id = AGENT  # another one would get work

    def _aim(self, message: Any) -> None:
        """Often let a message name one worker and its numbers, as only that worker knows them all.

        The worker is itself, so that its message is accepted, or another one, whose secret it does
        not know.
        """
        dice, kernel = self.sim.world.random, self.sim.coordinator.kernel
        if kernel is None or dice.random() < 0.4:
            return
        others = sorted(name for name, worker in self.sim.workers.items() if worker.alive)
        worker = kernel.state.workers.get(dice.choice([*others, *[self.name] * 4]))
        if worker is None:
            return
        task = kernel.state.tasks[worker.task]
        placement = task.placements.get(worker.id)
        aimed = {
            "worker_id": worker.id,
            "task_id": task.id,
            "incarnation": dice.choice((0, worker.incarnation, worker.incarnation - 1)),
            "generation": task.generation,
            "attempt": task.attempt,
            "start": placement.start if placement is not None else 0,
        }
        for name, value in aimed.items():
            if name in message.DESCRIPTOR.fields_by_name:
                setattr(message, name, value)

    def _send(self, line: Line, message: Message) -> None:
        payload = message.SerializeToString()
        self._kept = [*self._kept[-MOST_KEPT:], (line.path, payload)]
        self._carry(line, payload)

    def _carry(self, line: Line, payload: bytes) -> None:
        self.sim.network.send(self.host, True, self.sim.coordinator.say, line, payload, None)

    def _ask(self) -> None:
        """Make a unary call with a random request."""
        dice = self.sim.world.random
        name = dice.choice(sorted(CALLS))
        request = CALLS[name]()
        fill(dice, request, self._known())
        self._aim(request)
        if isinstance(request, pb.RegisterWorkerRequest):
            request.worker_id = dice.choice((self.name, f"{self.name}-other", "", "\x00"))
            request.task_id = dice.choice(("", "nobody-9"))
        if isinstance(request, pb.RegisterDatasetRequest):
            request.dataset_id = dice.choice((f"data-{dice.randrange(4)}", "", "\x00"))
        payload = request.SerializeToString()
        self.sim.coordinator.call(self.host, name, payload, lambda reply: None)

    def _known(self) -> Known:
        """Ids and numbers of others; without a coordinator none."""
        kernel = self.sim.coordinator.kernel
        if kernel is None:
            return Known(texts=(self.name,))
        state = kernel.state
        texts, numbers = sorted({self.name, *_texts(state)}), sorted(set(_numbers(state)))
        return Known(texts=[FORGED] * len(texts) + texts, numbers=numbers)

    def hear(self, line: Line, payload: bytes) -> None:
        """Ignore what the coordinator says."""

    def hung_up(self, line: Line) -> None:
        """Forget a stream that ended; a message on it may still be on its way."""
        if line in self._lines and self.sim.world.random.random() < 0.7:
            self._lines.remove(line)

    def connect(self) -> None:
        """Connect as any process: it does not wait to be greeted."""
        self._open()

    def heard(self, payload: bytes) -> None:
        """Ignore a message of the coordinator."""


def _texts(state: Cluster) -> Iterator[str]:
    yield from state.workers
    yield from state.agents
    yield from state.datasets
    for task in state.tasks.values():
        yield task.id
        yield from task.checkpoints
        yield from task.barriers


def _numbers(state: Cluster) -> Iterator[int]:
    for worker in state.workers.values():
        yield worker.incarnation
    for task in state.tasks.values():
        yield from (task.generation, task.attempt, task.committed, task.last_round)
        yield from (placement.start for placement in task.placements.values())
