"""Agents' sessions: one stream per host, for as long as its agent lives.

Into it go beats, how processes ended, what they wrote, and the events that they left; out of it
comes everything that the agent has to keep running, whole, whenever a fact changes it and once at
the start. A stream that breaks says nothing about the workers, so it is only the agent's silence
that counts.

The values of a task's environment come from the vault. Its `PWD`, if it has one, is the folder in
which the workers start.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from strata.config import Settings
from strata.coordinator.engine import Engine
from strata.coordinator.intake import PASSING, Intake, Intakes, batch_of
from strata.coordinator.lines import LineIntake
from strata.coordinator.logs import Line
from strata.coordinator.metrics import Metrics
from strata.coordinator.vault import Vault
from strata.core.agents import Agent, RegisterAgent
from strata.core.events import Event
from strata.core.signals import AgentBeat, AgentDisconnected
from strata.core.standing import TELLING, duties, told_of_turn
from strata.errors import InvalidArgument, NotFound, StrataError
from strata.store.base import Batch
from strata.wire import convert
from strata.wire.grpc_call import CloseReason
from strata.wire.grpc_stream import Stream
from strata.wire.hpack import Status
from strata.wire.proof import digest
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

AgentStream: TypeAlias = Stream[pb.AgentMessage, pb.AgentOrder]
MAX_COMPLETED = 100


class AgentSessions:
    """Every open session, by agent."""

    def __init__(
        self,
        engine: Engine,
        lines: LineIntake,
        intakes: Intakes,
        vault: Vault,
        metrics: Metrics,
        settings: Settings,
    ) -> None:
        self.engine = engine
        self.lines = lines
        self.intakes = intakes
        self.vault = vault
        self.metrics = metrics
        self.settings = settings
        self.open: dict[str, AgentSession] = {}
        engine.follow(self._follow, *TELLING)

    def listen(self, stream: AgentStream) -> "AgentSession":
        """An agent opens a stream."""
        return AgentSession(self, stream)

    def attach(self, session: "AgentSession") -> None:
        """A session has said who it is and was believed; it takes the place of an older one."""
        before = self.open.get(session.agent)
        self.open[session.agent] = session
        if before is not None:
            before.stream.finish(Status.ABORTED, "the agent has opened another session")

    def detach(self, session: "AgentSession") -> None:
        """A session is over; its agent may open another until it counts as silent."""
        if self.open.get(session.agent) is session:
            del self.open[session.agent]
            self.engine.notice(AgentDisconnected(session.agent, session.incarnation))

    def duties_of(self, agent: str) -> pb.Duties:
        """All that an agent has to keep running, task by task."""
        state = self.engine.kernel.state
        jobs: dict[str, pb.Job] = {}
        for duty in duties(state, agent):
            if duty.task not in jobs:
                task = state.tasks[duty.task]
                environment = self._environment(task.id, task.spec.env_key)
                jobs[duty.task] = convert.job(task, environment, self.settings.stop_grace_s)
            jobs[duty.task].seats.append(pb.Seat(worker_id=duty.worker, start=duty.start))
        beat_ms = int(self.settings.heartbeat_interval_s * 1000)
        completed = [task.id for task in state.tasks.values() if task.state == "completed"]
        return pb.Duties(
            jobs=jobs.values(),
            heartbeat_interval_ms=beat_ms,
            completed_task_ids=completed[-MAX_COMPLETED:],
        )

    def _environment(self, task: str, key: str) -> dict[str, str]:
        try:
            return self.vault.get(key)
        except NotFound as error:
            self.lines.logs.append(Line("error", error.message, "coordinator", task))
            return {}

    def _follow(self, events: Sequence[Event]) -> None:
        state = self.engine.kernel.state
        for agent in told_of_turn(state, events).agents:
            session = self.open.get(agent)
            if session is not None:
                session.tell_duties()


class AgentSession:
    """One stream: a listener of its messages."""

    def __init__(self, sessions: AgentSessions, stream: AgentStream) -> None:
        self.sessions = sessions
        self.engine = sessions.engine
        self.stream = stream
        self.agent = ""
        self.incarnation = 0
        self._handlers: dict[str, Callable[[pb.AgentMessage], None]] = {
            "beat": self._beat,
            "exited": self._exited,
            "output": self._output,
            "left": self._left,
        }

    def on_message(self, message: pb.AgentMessage) -> None:
        """Acts on one message; a refusal answers it and leaves the stream open."""
        self.sessions.metrics.count_request("grpc")
        kind = message.WhichOneof("body")
        try:
            if kind == "hello":
                self._hello(message.hello)
            elif not self.agent:
                raise InvalidArgument("the first message must be AgentHello", hint="say who it is")
            elif kind is None:
                raise InvalidArgument("the message is empty", hint="set one of its bodies")
            else:
                self._handlers[kind](message)
        except StrataError as error:
            self._refuse(error)

    def on_half_close(self) -> None:
        """The agent will say no more: the session is over."""
        self.stream.finish()

    def on_close(self, reason: CloseReason) -> None:
        """The stream is over."""
        if self.agent:
            log.debug("session of agent %s closed: %s", self.agent, reason)
            self.sessions.detach(self)

    def end(self) -> None:
        """The coordinator stops; the agent will find it again."""
        self.stream.finish(Status.UNAVAILABLE, "the coordinator is stopping")

    def tell_duties(self) -> None:
        """Sends the agent all that it has to keep running."""
        self.stream.send(pb.AgentOrder(duties=self.sessions.duties_of(self.agent)))

    def _hello(self, hello: pb.AgentHello) -> None:
        if self.agent:
            raise InvalidArgument("AgentHello was said before", hint="open one stream per agent")
        command = RegisterAgent(
            agent=hello.agent_id,
            hostname=hello.hostname,
            slots=hello.slots,
            nonce=digest(hello.nonce),
        )
        self.engine.ask(command, self._registered)

    def _registered(self, agent: object, refusal: StrataError | None) -> None:
        if refusal is not None:
            self._refuse(refusal)
        elif not self.stream.closed:
            assert isinstance(agent, Agent)
            self.agent, self.incarnation = agent.id, agent.incarnation
            self.sessions.attach(self)
            self.engine.notice(AgentBeat(self.agent, self.incarnation))
            self.tell_duties()

    def _beat(self, message: pb.AgentMessage) -> None:
        self.engine.notice(AgentBeat(self.agent, self.incarnation), self._heard)

    def _heard(self, answer: object, refusal: StrataError | None) -> None:
        if refusal is not None and not isinstance(refusal, PASSING):
            self._refuse(refusal)

    def _exited(self, message: pb.AgentMessage) -> None:
        command = convert.exit_report(message.exited, self.agent, self.incarnation)
        self.engine.ask(command, partial(self._exit_settled, message.exited))

    def _exit_settled(
        self, exited: pb.ProcessExited, answer: object, refusal: StrataError | None
    ) -> None:
        """Stored, or refused for good: either way the agent need not say it again."""
        if isinstance(refusal, PASSING):
            self._refuse(refusal)
        else:
            if refusal is not None:
                log.info("an exit told by agent %s was not taken in: %s", self.agent, refusal)
            stored = pb.ExitStored(
                task_id=exited.task_id, worker_id=exited.worker_id, start=exited.start
            )
            self.stream.send(pb.AgentOrder(exit_stored=stored))

    def _output(self, message: pb.AgentMessage) -> None:
        output = message.output
        taken = self.sessions.lines.take(output.logs, output.task_id, output.worker_id)
        told = pb.OutputTaken(sender=output.logs.sender, lines=taken)
        self.stream.send(pb.AgentOrder(output_taken=told))

    def _left(self, message: pb.AgentMessage) -> None:
        """Events of a process that has ended; a refusal settles them, too, unless it passes."""
        left = message.left
        try:
            known = self.engine.kernel.state.workers.get(left.worker_id)
            if known is None or not 0 < left.incarnation <= known.incarnation:
                raise NotFound(
                    f"worker {left.worker_id!r} had no incarnation {left.incarnation}",
                    hint="its task was forgotten, or it was of another cluster",
                )
            batch = batch_of(left.events, left.worker_id, left.incarnation)
            intake = self.sessions.intakes.of(left.worker_id, left.incarnation)
            if intake.take(batch):
                with intake.owing(batch):
                    self.engine.ingest(batch, partial(self._left_stored, left, intake, batch))
                return
        except StrataError as error:
            self._settle_left(left, error)
        else:
            self._settle_left(left, None)

    def _left_stored(
        self,
        left: pb.LeftEvents,
        intake: Intake,
        batch: Batch,
        answer: object,
        refusal: StrataError | None,
    ) -> None:
        if refusal is None:
            intake.stored(batch)
        elif isinstance(refusal, PASSING):
            intake.owe(batch)
        self._settle_left(left, refusal)

    def _settle_left(self, left: pb.LeftEvents, error: StrataError | None) -> None:
        if isinstance(error, PASSING):
            self._refuse(error)
            return
        settled = pb.LeftSettled(
            worker_id=left.worker_id,
            incarnation=left.incarnation,
            first_seq=left.events.first_seq,
            refused=convert.refusal(error) if error is not None else None,
        )
        self.stream.send(pb.AgentOrder(left_settled=settled))

    def _refuse(self, error: StrataError) -> None:
        self.stream.send(pb.AgentOrder(refused=convert.refusal(error)))
