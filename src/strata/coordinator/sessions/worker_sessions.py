"""Sessions of workers: one gRPC stream per worker.

A worker sends heartbeats, events, log lines and requests. The coordinator sends answers, and the
complete standing of the worker (its duties) at the start and whenever a fact changes it. A broken
stream may mean that the worker is dead; the same worker may open another one within the grace
period and continue.

Requests are answered when their facts are on disk, in any order; answers carry the request number.
Heartbeats are not written to disk.

Every message is decided in a turn of the engine, including Hello: so a worker receives only what is
on disk, and every command of a session is fenced there (see `core/workers/fencing`).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from strata.coordinator.access.keyring import Keyring
from strata.coordinator.access.session_tokens import is_held
from strata.coordinator.access.task_bounds import bind
from strata.coordinator.engine.engine import Engine
from strata.coordinator.engine.inbox import Reply
from strata.coordinator.engine.waiters import BarrierEnd, BarrierWaiters, SaveWaiters
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.sessions.backlog import Backlog, Postponed, SharedBacklog
from strata.coordinator.sessions.intake import PASSING, Intake, Intakes, LineIntake, batch_of
from strata.coordinator.sessions.last_heartbeats import Heartbeats, LastHeartbeat
from strata.coordinator.sessions.preview_store import Previews
from strata.coordinator.sessions.stack_requests import report_command, request_to_worker
from strata.coordinator.sessions.standing_messages import PeerTokens, StandingMessages
from strata.coordinator.sessions.watched_tasks import WatchedTasks
from strata.core.checkpoints.checkpoint_commits import AckPart, BeginCheckpoint
from strata.core.events import Event
from strata.core.state import Worker
from strata.core.task_state import Barrier, Checkpoint
from strata.core.tasks.standing import AFFECTING, affected
from strata.core.workers.fencing import WorkerCommand
from strata.core.workers.heartbeats import WorkerBeat, WorkerDisconnected
from strata.core.workers.stack_collection import StacksRequested
from strata.core.workers.worker_lifecycle import ReattachWorker, WorkerRegistered
from strata.errors import InvalidArgument, Overloaded, StrataError
from strata.store.event_store import Batch
from strata.wire.grpc.grpc_call import CloseReason
from strata.wire.grpc.grpc_stream import GrpcStream
from strata.wire.http2.hpack import Status
from strata.wire.messages import (
    checkpoint_messages,
    dataset_messages,
    host_messages,
    worker_messages,
)
from strata.wire.messages.worker_messages import require_proof
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

WorkerStream: TypeAlias = GrpcStream[pb.WorkerMessage, pb.CoordinatorMessage]
MANY_LINES = 256
"""A message with this many lines is acknowledged at once; otherwise with the next answer."""

REPORTS: dict[str, Callable[[str, int, Any], WorkerCommand]] = {
    "enter": worker_messages.entry,
    "leave": worker_messages.departure,
    "broken_exchange": worker_messages.broken_exchange,
}
FEEDING = ("attach", "acquire_lease", "return_lease")


class WorkerSessions:
    """The open sessions by worker."""

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        barriers: BarrierWaiters,
        metrics: Metrics,
        lines: LineIntake,
        intakes: Intakes,
        tokens: PeerTokens,
    ) -> None:
        self.engine = engine
        self.heartbeats = heartbeats
        self.barriers = barriers
        self.metrics = metrics
        self.lines = lines
        self.intakes = intakes
        self.standings = StandingMessages(tokens)
        self.saves = SaveWaiters(engine)
        self.previews = Previews()
        self.watched = WatchedTasks()
        self.backlog = SharedBacklog()
        self.open: dict[str, WorkerSession] = {}
        self._new: set[int] = set()
        self._ended = False
        self.keyring: Keyring | None = None
        # First, so that a worker receives its generation before the messages that follow from it.
        engine.follow(self._follow, *AFFECTING, first=True)
        engine.follow(self._ask_for_stacks, StacksRequested)

    def listen(self, stream: WorkerStream) -> "WorkerSession":
        """Create the session of a new stream."""
        return WorkerSession(self, stream)

    def attach(self, session: "WorkerSession") -> None:
        """Register an authenticated session; it replaces an older one of the worker."""
        before = self.open.get(session.worker)
        self.open[session.worker] = session
        if before is not None:
            before.stream.finish(Status.ABORTED, "the worker has opened another session")

    def detach(self, session: "WorkerSession") -> None:
        """Remove a closed session; unless it was replaced, its worker may be dead."""
        if self.open.get(session.worker) is session:
            del self.open[session.worker]
            self.previews.forget(session.worker)
            self.disconnected(session.worker, session.incarnation)

    def end(self) -> None:
        """Close all sessions because the coordinator stops; this marks no worker disconnected."""
        self._ended = True
        for session in list(self.open.values()):
            session.stream.finish(Status.UNAVAILABLE, "the coordinator is stopping")

    def disconnected(self, worker: str, incarnation: int) -> None:
        """Report to the engine that a worker's stream closed."""
        if not self._ended:
            self.engine.notice(WorkerDisconnected(worker, incarnation))

    def is_new(self, incarnation: int) -> bool:
        """Whether this is the first session of an incarnation since it registered here."""
        found = incarnation in self._new
        self._new.discard(incarnation)
        return found

    def _follow(self, events: Sequence[Event]) -> None:
        state = self.engine.kernel.state
        self.heartbeats.follow(events, state.workers)
        for event in events:
            if isinstance(event.body, WorkerRegistered):
                self._new.add(event.body.incarnation)
        for worker in affected(state, events).workers:
            session = self.open.get(worker)
            if session is not None:
                session.tell_standing()

    def _ask_for_stacks(self, events: Sequence[Event]) -> None:
        for event in events:
            for worker in getattr(event.body, "workers", ()):
                if worker in self.open:
                    self.open[worker].ask_for_stacks()


class WorkerSession:
    """The session of one worker stream."""

    def __init__(self, sessions: WorkerSessions, stream: WorkerStream) -> None:
        self.sessions = sessions
        self.engine = sessions.engine
        self.stream = stream
        self.worker = ""
        self.incarnation = 0
        self.task = ""
        self._backlog = Backlog(sessions.backlog)
        self._size_bytes: Callable[[], int] = int
        self._lines_taken = 0
        self.intake: Intake | None = None
        self._greeted = False
        self._claimed = ("", 0)
        self._early: Postponed[pb.WorkerMessage] = Postponed(self._backlog)
        self._handlers: dict[str, Callable[[int, pb.WorkerMessage], None]] = {
            "beat": self._beat,
            "events": self._events,
            "logs": self._logs,
            "arrive": self._arrive,
            **dict.fromkeys(FEEDING, self._feed),
            **dict.fromkeys(checkpoint_messages.BODIES, self._save),
            "preview": self._preview,
            "stacks": self._stacks,
            **{kind: partial(self._report, kind) for kind in REPORTS},
            **dict.fromkeys(worker_messages.KINDS, self._decide),
        }

    def on_message(self, message: pb.WorkerMessage) -> None:
        """Handle one message; a refused message is answered and the stream stays open."""
        self.sessions.metrics.count_request("grpc")
        if not is_held(self.stream, self.sessions.keyring):
            return
        kind = message.WhichOneof("body")
        self._size_bytes = message.ByteSize
        try:
            if kind == "hello":
                self._hello(message.request, message.hello)
            elif not self._greeted:
                raise InvalidArgument(
                    "the first message must be Hello", hint="send Hello with the worker id"
                )
            elif not self.worker:
                self._keep_early(message)
            elif kind is None:
                raise InvalidArgument("the message is empty", hint="set one of its bodies")
            else:
                self._handlers[kind](message.request, message)
        except StrataError as error:
            self._refuse(message.request, error)

    def on_half_close(self) -> None:
        """End the session: the worker closed its side of the stream."""
        self.stream.finish()

    def on_close(self, reason: CloseReason) -> None:
        """Clean up after the stream has closed."""
        self._early.take()
        if self.worker:
            log.debug("session of %s closed: %s", self.worker, reason)
            self.sessions.detach(self)
        elif self._greeted and self._claimed[0] not in self.sessions.open:
            # Its Hello is not decided yet; this signal must precede the Hello of its next stream.
            self.sessions.disconnected(*self._claimed)

    def tell_standing(self) -> None:
        """Send the worker its standing."""
        state = self.engine.kernel.state
        if self.worker in state.workers:
            stored_seq = self.intake.stored_seq if self.intake else -1
            self.stream.send_raw(self.sessions.standings.framed(state, self.worker, stored_seq))

    def ask_for_stacks(self) -> None:
        """Ask the worker for its stacks, if its report is missing."""
        kernel = self.engine.kernel
        asked = request_to_worker(kernel.state, self.worker, kernel.timeouts.hang_report_s)
        if asked is not None:
            self.stream.send(pb.CoordinatorMessage(collect_stacks=asked))

    def _hello(self, request: int, hello: pb.Hello) -> None:
        if self._greeted:
            raise InvalidArgument("Hello was sent twice", hint="open one stream per worker")
        bind(self.stream.identity, hello, self.engine.kernel.state)
        known = self.engine.kernel.state.workers.get(hello.worker_id)
        if known is not None:
            require_proof(known, hello.incarnation, hello.nonce)
        self._greeted = True
        self._claimed = (hello.worker_id, hello.incarnation)
        command = ReattachWorker(
            worker=hello.worker_id,
            incarnation=hello.incarnation,
            first=self.sessions.is_new(hello.incarnation),
            left=worker_messages.left_barriers(hello),
        )
        self._ask(request, command, self._welcome)

    def _welcome(self, answer: object) -> None:
        assert isinstance(answer, Worker)
        if self.stream.closed:
            return
        self.worker, self.incarnation, self.task = answer.id, answer.incarnation, answer.task
        self.intake = self.sessions.intakes.of(self.worker, self.incarnation)
        self.sessions.attach(self)
        self.tell_standing()
        self.ask_for_stacks()
        self._handle_early()

    def _keep_early(self, message: pb.WorkerMessage) -> None:
        """Keep a message that arrived before Hello was decided; fail the stream if there are too
        many, because refusing only some events would leave a gap."""
        try:
            self._early.keep(message, message.ByteSize())
        except Overloaded as error:
            self.stream.fail(error)

    def _handle_early(self) -> None:
        """Handle the messages that arrived before Hello was decided."""
        for message in self._early.take():
            self.on_message(message)

    def _beat(self, request: int, message: pb.WorkerMessage) -> None:
        """Answer a heartbeat at once, so that the worker can align its clock; whether the worker is
        fenced is decided in the turn that processes it."""
        beat, now = message.beat, self.engine.kernel.clock()
        progress = worker_messages.beat(beat)
        heartbeat = LastHeartbeat(
            incarnation=self.incarnation,
            last_heartbeat_ms=now.wall_ns // 1_000_000,
            step=max(beat.step, 0),
            epoch=beat.epoch,
            resources=worker_messages.resources(beat.resources)
            if beat.HasField("resources")
            else None,
            saving=checkpoint_messages.saving(beat),
            loss=beat.loss if beat.HasField("loss") else None,
            beat=progress,
        )
        state = worker_messages.STATES.get(beat.state)
        signal = WorkerBeat(
            worker=self.worker,
            incarnation=self.incarnation,
            beat=progress,
            state=state,
        )
        self.engine.notice(signal, partial(self._beat_decided, request, heartbeat))
        if beat.HasField("host"):
            command = host_messages.host_report(self.worker, self.incarnation, beat.host)
            self._ask(request, command, lambda _: None)
        watched_s = self.sessions.watched.seconds(self.engine.kernel.state, self.worker)
        pulse = worker_messages.pulse(beat, now, self._lines_taken, watched_s)
        self.stream.send(pb.CoordinatorMessage(request=request, pulse=pulse))

    def _beat_decided(
        self, request: int, heartbeat: LastHeartbeat, answer: object, refusal: StrataError | None
    ) -> None:
        if refusal is None:
            self.sessions.heartbeats.note(self.worker, heartbeat)
        elif not isinstance(refusal, PASSING):
            self._refuse(request, refusal)

    def _events(self, request: int, message: pb.WorkerMessage) -> None:
        batch = batch_of(message.events, self.worker, self.incarnation)
        assert self.intake is not None, "a session that was welcomed takes events in"
        if self.intake.take(batch):
            with self.intake.owing(batch):
                put = partial(self.engine.ingest, batch)
                self._submit(put, partial(self._ingested, request, batch))
        else:
            self._tell_stored()

    def _ingested(
        self, request: int, batch: Batch, answer: object, refusal: StrataError | None
    ) -> None:
        assert self.intake is not None
        if isinstance(refusal, PASSING):
            self.intake.owe(batch)
        self._answered(request, partial(self._stored, batch), answer, refusal)

    def _stored(self, batch: Batch, answer: object) -> None:
        assert self.intake is not None
        self.intake.stored(batch)
        self._tell_stored()

    def _tell_stored(self) -> None:
        assert self.intake is not None, "a session that was welcomed takes events in"
        stored = pb.Stored(seq=self.intake.stored_seq, lines=self._lines_taken)
        self.stream.send(pb.CoordinatorMessage(stored=stored))

    def _logs(self, request: int, message: pb.WorkerMessage) -> None:
        self._lines_taken = self.sessions.lines.take(message.logs, self.task, self.worker)
        if len(message.logs.lines) >= MANY_LINES:
            self._tell_stored()

    def _arrive(self, request: int, message: pb.WorkerMessage) -> None:
        command = worker_messages.arrival(self.worker, self.incarnation, message.arrive)
        early = command.generation > 0
        then = partial(self._arrived, request, message.arrive.arrival, early)
        self._ask(request, command, then, early)

    def _arrived(self, request: int, arrival: int, early: bool, answer: object) -> None:
        assert isinstance(answer, Barrier)
        tell = partial(self._tell_barrier, request, arrival)
        self.sessions.barriers.wait(self.task, answer, self.worker, tell, early)

    def _tell_barrier(self, request: int, arrival: int, ended: BarrierEnd, order: int) -> None:
        self.stream.send(ended.message(request, arrival, order))

    def _decide(self, request: int, message: pb.WorkerMessage) -> None:
        command = worker_messages.agreement_command(self.worker, self.incarnation, message)
        self._ask(request, command, partial(self._decided, request))

    def _decided(self, request: int, answer: object) -> None:
        self.stream.send(worker_messages.agreement_answer(request, answer))

    def _report(self, kind: str, request: int, message: pb.WorkerMessage) -> None:
        """Submit a command whose answer is only that it was recorded."""
        command = REPORTS[kind](self.worker, self.incarnation, getattr(message, kind))
        self._ask(request, command, partial(self._done, request))

    def _feed(self, request: int, message: pb.WorkerMessage) -> None:
        command = dataset_messages.command(self.task, self.worker, self.incarnation, message)
        self._ask(request, command, partial(self._fed, message))

    def _fed(self, message: pb.WorkerMessage, answer: object) -> None:
        state = self.engine.kernel.state
        self.stream.send(dataset_messages.answer(state, self.task, message, answer))

    def _preview(self, request: int, message: pb.WorkerMessage) -> None:
        preview = message.preview
        self.sessions.previews.note(preview.dataset_id, self.worker, preview.samples)

    def _stacks(self, request: int, message: pb.WorkerMessage) -> None:
        put = partial(self.engine.ask, report_command(message.stacks, "", self.worker))
        self._submit(put, partial(self._answered, request, lambda _: None))

    def _save(self, request: int, message: pb.WorkerMessage) -> None:
        command = checkpoint_messages.command(self.task, self.worker, self.incarnation, message)
        then = {BeginCheckpoint: self._tell_checkpoint, AckPart: self._acked}
        self._ask(request, command, partial(then.get(type(command), self._done), request))

    def _acked(self, request: int, answer: object) -> None:
        """Answer an acknowledged part when the checkpoint is committed or failed."""
        assert isinstance(answer, Checkpoint)
        tell = partial(self._tell_checkpoint, request)
        self.sessions.saves.wait(self.task, answer, self.worker, tell)

    def _tell_checkpoint(self, request: int, answer: object) -> None:
        assert isinstance(answer, Checkpoint)
        opened = pb.CheckpointOpened(checkpoint=checkpoint_messages.message(answer))
        self.stream.send(pb.CoordinatorMessage(request=request, checkpoint=opened))

    def _done(self, request: int, answer: object) -> None:
        self.stream.send(pb.CoordinatorMessage(request=request, done=pb.Done()))

    def _ask(
        self,
        request: int,
        command: WorkerCommand,
        then: Callable[[object], None],
        early: bool = False,
    ) -> None:
        put = partial(self.engine.ask, command, early=early)
        self._submit(put, partial(self._answered, request, then))

    def _submit(self, put: Callable[[Reply], None], reply: Reply) -> None:
        self._backlog.submit(self._size_bytes(), put, reply)

    def _answered(
        self,
        request: int,
        then: Callable[[object], None],
        answer: object,
        refusal: StrataError | None,
    ) -> None:
        try:
            if refusal is None:
                then(answer)
                return
            self._refuse(request, refusal)
            if not self.worker:
                self._greeted = False
                self._handle_early()
        except Exception as error:
            self.stream.fail(error)

    def _refuse(self, request: int, error: StrataError) -> None:
        self.stream.send(
            pb.CoordinatorMessage(request=request, refused=worker_messages.refusal(error))
        )
