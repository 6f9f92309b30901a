"""Sessions: one stream per worker, for as long as it lives.

Into it go beats, events, log lines and requests; out of it come answers and the worker's standing,
whole, whenever a fact changes it and once at the start. A stream that breaks is a sign of death;
the same worker may open another within the grace and go on as if nothing had happened.

Requests are answered when their facts are on disk, in whatever order that happens; the number of
the request says which one it was. Beats touch no disk.

Whatever a worker says is decided in a turn of the engine, its Hello too: so a worker is told only
what is on disk, and every command of a session is fenced there (see `core.fencing`).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from strata.coordinator.backlog import Backlog, Postponed, SharedBacklog
from strata.coordinator.engine import Engine
from strata.coordinator.inbox import Reply
from strata.coordinator.intake import PASSING, Intake, Intakes, batch_of
from strata.coordinator.lines import LineIntake
from strata.coordinator.metrics import Metrics
from strata.coordinator.observed import Observed, Seen
from strata.coordinator.previews import Previews
from strata.coordinator.saves import SaveRoom
from strata.coordinator.standings import StandingMessages
from strata.coordinator.tokens import PeerTokens
from strata.coordinator.waiting import BarrierRoom, Ended
from strata.core.barriers import Barrier
from strata.core.checkpoints import Checkpoint
from strata.core.events import Event
from strata.core.fencing import WorkerCommand
from strata.core.saving import AckPart, BeginCheckpoint
from strata.core.signals import WorkerBeat, WorkerDisconnected
from strata.core.standing import TELLING, told
from strata.core.workers import ReattachWorker, Worker, WorkerRegistered
from strata.errors import InvalidArgument, Overloaded, StrataError
from strata.store.base import Batch
from strata.wire import agreements, checkpoints, convert, datasets
from strata.wire.grpc_call import CloseReason
from strata.wire.grpc_stream import Stream
from strata.wire.hpack import Status
from strata.wire.proof import require_proof
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

WorkerStream: TypeAlias = Stream[pb.WorkerMessage, pb.CoordinatorMessage]
MANY_LINES = 256
"""So many in one message are acknowledged at once; else the next answer does that, too."""

REPORTS: dict[str, Callable[[str, int, Any], WorkerCommand]] = {
    "enter": convert.entry,
    "leave": convert.departure,
    "broken_exchange": convert.broken_exchange,
}
FEEDING = ("attach", "acquire_lease", "return_lease")


class Sessions:
    """Every open session, by worker."""

    def __init__(
        self,
        engine: Engine,
        observed: Observed,
        barriers: BarrierRoom,
        metrics: Metrics,
        lines: LineIntake,
        intakes: Intakes,
        tokens: PeerTokens,
    ) -> None:
        self.engine = engine
        self.observed = observed
        self.barriers = barriers
        self.metrics = metrics
        self.lines = lines
        self.intakes = intakes
        self.standings = StandingMessages(tokens)
        self.saves = SaveRoom(engine)
        self.previews = Previews()
        self.backlog = SharedBacklog()
        self.open: dict[str, Session] = {}
        self._new: set[int] = set()
        self._ended = False
        # First of all, so that a worker knows its generation before it hears what followed from it.
        engine.follow(self._follow, *TELLING, first=True)

    def listen(self, stream: WorkerStream) -> "Session":
        """A worker opens a stream."""
        return Session(self, stream)

    def attach(self, session: "Session") -> None:
        """A session has said who it is and was believed; it takes the place of an older one."""
        before = self.open.get(session.worker)
        self.open[session.worker] = session
        if before is not None:
            before.stream.finish(Status.ABORTED, "the worker has opened another session")

    def detach(self, session: "Session") -> None:
        """A session is over; unless another took its place, its worker may be dead."""
        if self.open.get(session.worker) is session:
            del self.open[session.worker]
            self.previews.forget(session.worker)
            self.disconnected(session.worker, session.incarnation)

    def end(self) -> None:
        """The coordinator stops: workers will find it again, and a stream that closes from now on
        is no sign of a worker's death."""
        self._ended = True
        for session in list(self.open.values()):
            session.stream.finish(Status.UNAVAILABLE, "the coordinator is stopping")

    def disconnected(self, worker: str, incarnation: int) -> None:
        """The stream of a worker closed."""
        if not self._ended:
            self.engine.notice(WorkerDisconnected(worker, incarnation))

    def is_new(self, incarnation: int) -> bool:
        """Whether an incarnation opens its first session since it registered here."""
        found = incarnation in self._new
        self._new.discard(incarnation)
        return found

    def _follow(self, events: Sequence[Event]) -> None:
        state = self.engine.kernel.state
        self.observed.follow(events, state.workers)
        for event in events:
            if isinstance(event.body, WorkerRegistered):
                self._new.add(event.body.incarnation)
        for worker in told(state, events).workers:
            session = self.open.get(worker)
            if session is not None:
                session.tell_standing()


class Session:
    """One stream: a listener of its messages."""

    def __init__(self, sessions: Sessions, stream: WorkerStream) -> None:
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
            **dict.fromkeys(checkpoints.BODIES, self._save),
            "preview": self._preview,
            **{kind: partial(self._report, kind) for kind in REPORTS},
            **dict.fromkeys(agreements.KINDS, self._decide),
        }

    def on_message(self, message: pb.WorkerMessage) -> None:
        """Acts on one message; a refusal answers it and leaves the stream open."""
        self.sessions.metrics.count_request("grpc")
        kind = message.WhichOneof("body")
        self._size_bytes = message.ByteSize
        try:
            if kind == "hello":
                self._hello(message.request, message.hello)
            elif not self._greeted:
                raise InvalidArgument("the first message must be Hello", hint="say who you are")
            elif not self.worker:
                self._keep_early(message)
            elif kind is None:
                raise InvalidArgument("the message is empty", hint="set one of its bodies")
            else:
                self._handlers[kind](message.request, message)
        except StrataError as error:
            self._refuse(message.request, error)

    def on_half_close(self) -> None:
        """The worker will say no more: the session is over."""
        self.stream.finish()

    def on_close(self, reason: CloseReason) -> None:
        """The stream is over."""
        self._early.take()
        if self.worker:
            log.debug("session of %s closed: %s", self.worker, reason)
            self.sessions.detach(self)
        elif self._greeted and self._claimed[0] not in self.sessions.open:
            # Its Hello is still being decided. Noted now, this comes before its next Hello.
            self.sessions.disconnected(*self._claimed)

    def tell_standing(self) -> None:
        """Sends the worker its standing."""
        state = self.engine.kernel.state
        if self.worker in state.workers:
            stored_seq = self.intake.stored_seq if self.intake else -1
            self.stream.send_raw(self.sessions.standings.framed(state, self.worker, stored_seq))

    def _hello(self, request: int, hello: pb.Hello) -> None:
        if self._greeted:
            raise InvalidArgument("Hello was said before", hint="open one stream per worker")
        known = self.engine.kernel.state.workers.get(hello.worker_id)
        if known is not None:
            require_proof(known, hello.incarnation, hello.nonce)
        self._greeted = True
        self._claimed = (hello.worker_id, hello.incarnation)
        command = ReattachWorker(
            worker=hello.worker_id,
            incarnation=hello.incarnation,
            first=self.sessions.is_new(hello.incarnation),
            left=convert.left_barriers(hello),
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
        self._hear_early()

    def _keep_early(self, message: pb.WorkerMessage) -> None:
        """Events that were refused here would be missing before those that are taken later, so
        the stream ends instead: the worker sends everything again on the next."""
        try:
            self._early.keep(message, message.ByteSize())
        except Overloaded as error:
            self.stream.fail(error)

    def _hear_early(self) -> None:
        """Takes up what was said while the Hello was being decided."""
        for message in self._early.take():
            self.on_message(message)

    def _beat(self, request: int, message: pb.WorkerMessage) -> None:
        """Answers at once, so that the worker can align its clock; whether the worker still counts
        is decided in the turn that hears the beat."""
        beat, now = message.beat, self.engine.kernel.clock()
        seen = Seen(
            self.incarnation,
            now.wall_ns // 1_000_000,
            max(beat.step, 0),
            beat.epoch,
            convert.resources(beat.resources) if beat.HasField("resources") else None,
            checkpoints.saving(beat),
            beat.loss if beat.HasField("loss") else None,
        )
        state = convert.STATES.get(beat.state)
        signal = WorkerBeat(self.worker, self.incarnation, convert.beat(beat), state)
        self.engine.notice(signal, partial(self._heard, request, seen))
        pulse = convert.pulse(beat, now, self._lines_taken)
        self.stream.send(pb.CoordinatorMessage(request=request, pulse=pulse))

    def _heard(self, request: int, seen: Seen, answer: object, refusal: StrataError | None) -> None:
        if refusal is None:
            self.sessions.observed.note(self.worker, seen)
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
        command = convert.arrival(self.worker, self.incarnation, message.arrive)
        early = command.generation > 0
        then = partial(self._arrived, request, message.arrive.arrival, early)
        self._ask(request, command, then, early)

    def _arrived(self, request: int, arrival: int, early: bool, answer: object) -> None:
        assert isinstance(answer, Barrier)
        tell = partial(self._tell_barrier, request, arrival)
        self.sessions.barriers.wait(self.task, answer, self.worker, tell, early)

    def _tell_barrier(self, request: int, arrival: int, ended: Ended, order: int) -> None:
        self.stream.send(ended.message(request, arrival, order))

    def _decide(self, request: int, message: pb.WorkerMessage) -> None:
        command = agreements.command(self.worker, self.incarnation, message)
        self._ask(request, command, partial(self._decided, request))

    def _decided(self, request: int, answer: object) -> None:
        self.stream.send(agreements.answer(request, answer))

    def _report(self, kind: str, request: int, message: pb.WorkerMessage) -> None:
        """What is answered by that it was recorded."""
        command = REPORTS[kind](self.worker, self.incarnation, getattr(message, kind))
        self._ask(request, command, partial(self._done, request))

    def _feed(self, request: int, message: pb.WorkerMessage) -> None:
        command = datasets.command(self.task, self.worker, self.incarnation, message)
        self._ask(request, command, partial(self._fed, message))

    def _fed(self, message: pb.WorkerMessage, answer: object) -> None:
        state = self.engine.kernel.state
        self.stream.send(datasets.answer(state, self.task, message, answer))

    def _preview(self, request: int, message: pb.WorkerMessage) -> None:
        preview = message.preview
        self.sessions.previews.note(preview.dataset_id, self.worker, preview.samples)

    def _save(self, request: int, message: pb.WorkerMessage) -> None:
        command = checkpoints.command(self.task, self.worker, self.incarnation, message)
        then = {BeginCheckpoint: self._tell_checkpoint, AckPart: self._acked}
        self._ask(request, command, partial(then.get(type(command), self._done), request))

    def _acked(self, request: int, answer: object) -> None:
        """An acknowledgement is answered when the checkpoint has ended, well or badly."""
        assert isinstance(answer, Checkpoint)
        tell = partial(self._tell_checkpoint, request)
        self.sessions.saves.wait(self.task, answer, self.worker, tell)

    def _tell_checkpoint(self, request: int, answer: object) -> None:
        assert isinstance(answer, Checkpoint)
        opened = pb.CheckpointOpened(checkpoint=checkpoints.message(answer))
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
                self._hear_early()
        except Exception as error:
            self.stream.fail(error)

    def _refuse(self, request: int, error: StrataError) -> None:
        self.stream.send(pb.CoordinatorMessage(request=request, refused=convert.refusal(error)))
