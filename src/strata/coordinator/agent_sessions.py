"""Agents' sessions: one stream per host, for as long as its agent lives.

Into it go beats, how processes ended, what they wrote, and the events that they left; out of it
comes everything that the agent has to keep running, whole, whenever a fact changes it and once at
the start. A stream that breaks says nothing about the workers, so it is only the agent's silence
that counts.

The values of a task's environment come from `environments`. Its `PWD`, if it has one, is the folder
in which the workers start.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from strata.config import Settings
from strata.coordinator.backlog import Backlog, SharedBacklog
from strata.coordinator.engine import Engine
from strata.coordinator.environments import Environments
from strata.coordinator.intake import PASSING, Intake, Intakes, batch_of
from strata.coordinator.lines import LineIntake
from strata.coordinator.metrics import Metrics
from strata.coordinator.vault import Vault
from strata.core.agents import Agent, RegisterAgent
from strata.core.events import Event
from strata.core.signals import AgentBeat, AgentDisconnected
from strata.core.standing import TELLING, Duty, duties_by_agent, told
from strata.core.state import Cluster
from strata.core.tasks import Task, TaskStateChanged
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
MAX_MESSAGES = 1_024
"""So many messages of an agent may wait for their answers; all its processes may end at once."""


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
        backlog: SharedBacklog,
    ) -> None:
        self.backlog = backlog
        self.engine = engine
        self.lines = lines
        self.intakes = intakes
        self.environments = Environments(engine, vault, self._tell_agents_of)
        self.metrics = metrics
        self.settings = settings
        self.open: dict[str, AgentSession] = {}
        self._duties: dict[str, list[Duty]] = {}
        self._duties_of: Cluster | None = None
        self._duties_at = -1
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

    def end(self) -> None:
        """The coordinator stops: agents will find it again, so their hosts are not in doubt."""
        sessions = list(self.open.values())
        self.open.clear()
        for session in sessions:
            session.stream.finish(Status.UNAVAILABLE, "the coordinator is stopping")

    def tell(self, agents: Iterable[str]) -> None:
        """Send these agents, where they are connected, all that each has to keep running."""
        state = self.engine.kernel.state
        # Positions are used again when a turn was not stored; the state is another one then.
        if state is not self._duties_of or state.position != self._duties_at:
            self._duties_of, self._duties_at = state, state.position
            self._duties = duties_by_agent(state)
        completed = [task.id for task in state.tasks.values() if task.state == "completed"]
        jobs: dict[str, pb.Job] = {}
        for agent in agents:
            session = self.open.get(agent)
            if session is None:
                continue
            own: dict[str, pb.Job] = {}
            for seat in self._duties.get(agent, ()):
                if seat.task not in jobs:
                    jobs[seat.task] = self._job(state.tasks[seat.task])
                if seat.task not in own:
                    own[seat.task] = pb.Job()
                    own[seat.task].CopyFrom(jobs[seat.task])
                own[seat.task].seats.append(pb.Seat(worker_id=seat.worker, start=seat.start))
            duties = pb.Duties(
                jobs=own.values(),
                heartbeat_interval_ms=int(self.settings.heartbeat_interval_s * 1000),
                completed_task_ids=completed[-MAX_COMPLETED:],
            )
            session.stream.send(pb.AgentOrder(duties=duties))

    def _job(self, task: Task) -> pb.Job:
        values, blocked = self.environments.of(task)
        return convert.job(task, values, self.settings.stop_grace_s, blocked)

    def _tell_agents_of(self, task_id: str) -> None:
        task = self.engine.kernel.state.tasks.get(task_id)
        if task is not None:
            self.tell({placement.agent: None for placement in task.placements.values()})

    def _follow(self, events: Sequence[Event]) -> None:
        state = self.engine.kernel.state
        self.tell(told(state, events).agents)
        for event in events:
            task = state.tasks.get(getattr(event.body, "task", ""))
            if isinstance(event.body, TaskStateChanged) and task is not None and task.ended:
                self.environments.discard(task)


class AgentSession:
    """One stream: a listener of its messages."""

    def __init__(self, sessions: AgentSessions, stream: AgentStream) -> None:
        self.sessions = sessions
        self.engine = sessions.engine
        self.stream = stream
        self.agent = ""
        self.incarnation = 0
        self._backlog = Backlog(sessions.backlog, MAX_MESSAGES)
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
                self._hello(message)
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

    def tell_duties(self) -> None:
        """Sends the agent all that it has to keep running."""
        self.sessions.tell([self.agent])

    def _hello(self, message: pb.AgentMessage) -> None:
        hello = message.hello
        if self.agent:
            raise InvalidArgument("AgentHello was said before", hint="open one stream per agent")
        command = RegisterAgent(
            agent=hello.agent_id,
            hostname=hello.hostname,
            slots=hello.slots,
            nonce=digest(hello.nonce),
        )
        put = partial(self.engine.ask, command)
        self._backlog.submit(message.ByteSize(), put, self._registered)

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
        put = partial(self.engine.ask, command)
        settled = partial(self._exit_settled, message.exited)
        self._backlog.submit(message.ByteSize(), put, settled)

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
                    stored = partial(self._left_stored, left, intake, batch)
                    put = partial(self.engine.ingest, batch)
                    self._backlog.submit(message.ByteSize(), put, stored)
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
