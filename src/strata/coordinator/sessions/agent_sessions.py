"""Sessions of agents: one gRPC stream per host.

An agent sends heartbeats, exit codes of processes, their output, and the events that they had not
sent. The coordinator sends the complete list of workers that the agent has to run, at the start and
whenever a fact changes it. A broken stream says nothing about the workers, so an agent is lost only
after a heartbeat timeout.

The workers of an agent that gave a token get one for their task alone (`access/worker_tokens`).

The values of a task's environment come from `task_environments`. Its `PWD`, if set, is the working
folder of the workers.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from strata.config import Settings
from strata.coordinator.access.keyring import Identity, Keyring
from strata.coordinator.access.session_tokens import is_held
from strata.coordinator.engine.engine import Engine
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.sessions.backlog import Backlog, SharedBacklog
from strata.coordinator.sessions.intake import PASSING, Intake, Intakes, LineIntake, batch_of
from strata.coordinator.sessions.last_heartbeats import Heartbeats
from strata.coordinator.sessions.stack_requests import report_command, requests_to_agent
from strata.coordinator.sessions.task_environments import Environments, Vault
from strata.core.events import Event
from strata.core.hosts.gpu_exclusion import excluded_keys
from strata.core.hosts.host_exclusion import ReportSelfTest
from strata.core.hosts.host_record import ReportHost
from strata.core.limits import require_text
from strata.core.state import Agent, Cluster, Gpu
from strata.core.task_state import Task
from strata.core.tasks.standing import AFFECTING, Duty, affected, duties_by_agent
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.heartbeats import AgentBeat, AgentDisconnected
from strata.core.workers.host_agents import RegisterAgent
from strata.core.workers.stack_collection import StacksRequested
from strata.errors import InvalidArgument, NotFound, StrataError
from strata.store.event_store import Batch
from strata.wire.grpc.grpc_call import CloseReason
from strata.wire.grpc.grpc_stream import GrpcStream
from strata.wire.http2.hpack import Status
from strata.wire.messages import host_messages, worker_messages
from strata.wire.messages.worker_messages import digest
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

AgentStream: TypeAlias = GrpcStream[pb.AgentMessage, pb.AgentOrder]
MAX_COMPLETED = 100
MAX_MESSAGES = 1_024
"""Messages of one agent that may wait for their answers; all its processes may end at once."""


class AgentSessions:
    """The open sessions by agent."""

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        lines: LineIntake,
        intakes: Intakes,
        vault: Vault,
        metrics: Metrics,
        settings: Settings,
        backlog: SharedBacklog,
    ) -> None:
        self.backlog = backlog
        self.engine = engine
        self.heartbeats = heartbeats
        self.lines = lines
        self.intakes = intakes
        self.environments = Environments(engine, vault, self._tell_agents_of)
        self.metrics = metrics
        self.settings = settings
        self.keyring: Keyring | None = None
        self.open: dict[str, AgentSession] = {}
        self._duties: dict[str, list[Duty]] = {}
        self._duties_of: Cluster | None = None
        self._duties_at = -1
        engine.follow(self._follow, *AFFECTING)
        engine.follow(self._ask_for_stacks, StacksRequested)

    def listen(self, stream: AgentStream) -> "AgentSession":
        """Create the session of a new stream."""
        return AgentSession(self, stream)

    def attach(self, session: "AgentSession") -> None:
        """Register an authenticated session; it replaces an older one of the agent."""
        before = self.open.get(session.agent)
        self.open[session.agent] = session
        if before is not None:
            before.stream.finish(Status.ABORTED, "the agent has opened another session")

    def detach(self, session: "AgentSession") -> None:
        """Remove a closed session; its agent may open another until its heartbeat timeout."""
        if self.open.get(session.agent) is session:
            del self.open[session.agent]
            self.engine.notice(AgentDisconnected(session.agent, session.incarnation))

    def end(self) -> None:
        """Close all sessions because the coordinator stops; this marks no agent disconnected."""
        sessions = list(self.open.values())
        self.open.clear()
        for session in sessions:
            session.stream.finish(Status.UNAVAILABLE, "the coordinator is stopping")

    def tell(self, agents: Iterable[str]) -> None:
        """Send each of these agents that is connected the list of workers that it has to run."""
        state = self.engine.kernel.state
        # After a failed turn a position is used again, but with another state object.
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
                    own[seat.task].worker_token = session.worker_token(seat.task)
                own[seat.task].seats.append(pb.Seat(worker_id=seat.worker, start=seat.start))
            duties = pb.Duties(
                jobs=own.values(),
                heartbeat_interval_ms=int(self.settings.heartbeat_interval_s * 1000),
                completed_task_ids=completed[-MAX_COMPLETED:],
                excluded_gpus=excluded_keys(state, agent),
            )
            session.stream.send(pb.AgentOrder(duties=duties))

    def _ask_for_stacks(self, events: Sequence[Event]) -> None:
        for session in self.open.values():
            session.ask_for_stacks()

    def _job(self, task: Task) -> pb.Job:
        values, blocked = self.environments.of(task)
        return worker_messages.job(task, values, self.settings.stop_grace_s, blocked)

    def _tell_agents_of(self, task_id: str) -> None:
        task = self.engine.kernel.state.tasks.get(task_id)
        if task is not None:
            self.tell({placement.agent: None for placement in task.placements.values()})

    def _follow(self, events: Sequence[Event]) -> None:
        state = self.engine.kernel.state
        self.tell(affected(state, events).agents)
        for event in events:
            task = state.tasks.get(getattr(event.body, "task", ""))
            if isinstance(event.body, TaskStateChanged) and task is not None and task.ended:
                self.environments.discard(task)


class AgentSession:
    """The session of one agent stream."""

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
            "health": self._health,
            "self_test_failed": self._self_test_failed,
            "stacks": self._stacks,
        }

    def on_message(self, message: pb.AgentMessage) -> None:
        """Handle one message; a refused message is answered and the stream stays open."""
        self.sessions.metrics.count_request("grpc")
        if not is_held(self.stream, self.sessions.keyring):
            return
        kind = message.WhichOneof("body")
        try:
            if kind == "hello":
                self._hello(message)
            elif not self.agent:
                raise InvalidArgument(
                    "the first message must be AgentHello", hint="send AgentHello with the agent id"
                )
            elif kind is None:
                raise InvalidArgument("the message is empty", hint="set one of its bodies")
            else:
                self._handlers[kind](message)
        except StrataError as error:
            self._refuse(error)

    def on_half_close(self) -> None:
        """End the session: the agent closed its side of the stream."""
        self.stream.finish()

    def on_close(self, reason: CloseReason) -> None:
        """Clean up after the stream has closed."""
        if self.agent:
            log.debug("session of agent %s closed: %s", self.agent, reason)
            self.sessions.detach(self)

    def worker_token(self, task: str) -> str:
        """The token for the agent's workers of a task; empty if the agent gave none itself."""
        identity, keyring = self.stream.identity, self.sessions.keyring
        if keyring is None or keyring.workers is None or not isinstance(identity, Identity):
            return ""
        return keyring.workers.of(task) if identity.by_token else ""

    def tell_duties(self) -> None:
        """Send the agent the list of workers that it has to run."""
        self.sessions.tell([self.agent])

    def ask_for_stacks(self) -> None:
        """Send the requests for stacks that the agent has not answered."""
        limit_s = self.sessions.settings.hang_report_s
        for asked in requests_to_agent(self.engine.kernel.state, self.agent, limit_s):
            self.stream.send(pb.AgentOrder(collect_stacks=asked))

    def _hello(self, message: pb.AgentMessage) -> None:
        hello = message.hello
        if self.agent:
            raise InvalidArgument("AgentHello was sent twice", hint="open one stream per agent")
        for slot in hello.slot_gpus:
            require_text(**{f"gpu {gpu.index}": gpu.uuid for gpu in slot.gpus})
        command = RegisterAgent(
            agent=hello.agent_id,
            hostname=hello.hostname,
            slots=hello.slots,
            nonce=digest(hello.nonce),
            gpus=[[Gpu(gpu.index, gpu.uuid) for gpu in slot.gpus] for slot in hello.slot_gpus],
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
            self._note_heartbeat()
            self.tell_duties()
            self.ask_for_stacks()

    def _note_heartbeat(self) -> None:
        now = self.engine.kernel.clock()
        self.sessions.heartbeats.agents[self.agent] = now.wall_ns // 1_000_000

    def _beat(self, message: pb.AgentMessage) -> None:
        self._note_heartbeat()
        self.engine.notice(AgentBeat(self.agent, self.incarnation), self._done)

    def _done(self, answer: object, refusal: StrataError | None) -> None:
        if refusal is not None and not isinstance(refusal, PASSING):
            self._refuse(refusal)

    def _health(self, message: pb.AgentMessage) -> None:
        command = ReportHost(
            agent=self.agent,
            incarnation=self.incarnation,
            health=host_messages.host_health(message.health),
        )
        put = partial(self.engine.ask, command)
        self._backlog.submit(message.ByteSize(), put, self._done)

    def _stacks(self, message: pb.AgentMessage) -> None:
        command = report_command(message.stacks, self.agent, "")
        put = partial(self.engine.ask, command)
        self._backlog.submit(message.ByteSize(), put, self._done)

    def _self_test_failed(self, message: pb.AgentMessage) -> None:
        failed = message.self_test_failed
        require_text(task_id=failed.task_id, reason=failed.reason, gpu=failed.gpu)
        command = ReportSelfTest(
            agent=self.agent,
            incarnation=self.incarnation,
            task=failed.task_id,
            reason=failed.reason,
            gpu=failed.gpu,
        )
        put = partial(self.engine.ask, command)
        self._backlog.submit(message.ByteSize(), put, self._done)

    def _exited(self, message: pb.AgentMessage) -> None:
        command = worker_messages.exit_report(message.exited, self.agent, self.incarnation)
        put = partial(self.engine.ask, command)
        settled = partial(self._exit_settled, message.exited)
        self._backlog.submit(message.ByteSize(), put, settled)

    def _exit_settled(
        self, exited: pb.ProcessExited, answer: object, refusal: StrataError | None
    ) -> None:
        """Acknowledge an exit report that was stored or permanently refused."""
        if isinstance(refusal, PASSING):
            self._refuse(refusal)
        else:
            if refusal is not None:
                log.info("an exit report of agent %s was refused: %s", self.agent, refusal)
            stored = pb.ExitStored(
                task_id=exited.task_id, worker_id=exited.worker_id, start=exited.start
            )
            self.stream.send(pb.AgentOrder(exit_stored=stored))

    def _output(self, message: pb.AgentMessage) -> None:
        output = message.output
        taken = self.sessions.lines.take(output.logs, output.task_id, output.worker_id)
        answer = pb.OutputTaken(sender=output.logs.sender, lines=taken)
        self.stream.send(pb.AgentOrder(output_taken=answer))

    def _left(self, message: pb.AgentMessage) -> None:
        """Store events that a dead process had not sent; a permanent refusal settles them too."""
        left = message.left
        try:
            known = self.engine.kernel.state.workers.get(left.worker_id)
            if known is None or not 0 < left.incarnation <= known.incarnation:
                raise NotFound(
                    f"worker {left.worker_id!r} had no incarnation {left.incarnation}",
                    hint="its task was deleted, or it belonged to another cluster",
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
            refused=worker_messages.refusal(error) if error is not None else None,
        )
        self.stream.send(pb.AgentOrder(left_settled=settled))

    def _refuse(self, error: StrataError) -> None:
        self.stream.send(pb.AgentOrder(refused=worker_messages.refusal(error)))
