"""The long-lived session of one worker: sends heartbeats, events, log lines and requests.

It has two threads. The *reader* owns the connection: it sends Hello, handles all messages of the
coordinator, and reconnects with growing, jittered delays (without a limit by default). The
*heartbeat* thread sends heartbeats and collected events (see `heartbeat_thread`). A training thread
never touches the network: it queues a message and waits on `updated`. So a blocked barrier never
stops the heartbeats, and a slow network never stops training.

A new connection continues the same incarnation: unanswered requests (all are idempotent) and events
that may not be stored are sent again. Requests that the coordinator cannot take now (its disk is
full, for example) and unary calls are retried too. If this incarnation was declared lost, all open
requests fail, and the session continues with a new incarnation.

All waits use a condition with a short timeout, so that Ctrl-C works.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
from google.protobuf.message import Message
from msgspec import structs

from strata.core.workers.exchange_facts import ConnectionChanged
from strata.core.workers.stack_reports import StackReport, bounded
from strata.errors import (
    DeadlineExceeded,
    Fenced,
    InvalidArgument,
    NotAllowedNow,
    NotFound,
    Overloaded,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.sdk.record.line_buffer import LineBuffer
from strata.sdk.record.recorder import Recorder
from strata.sdk.session import channel
from strata.sdk.session.channel import (
    LOG_INTERVAL_S,
    TRANSIENT,
    UNREACHABLE_HINT,
    Answer,
    CoordinatorConnection,
    SessionStream,
    delays_s,
    error_of,
    until_answered,
)
from strata.sdk.session.heartbeat_thread import Heartbeat, HeartbeatSource
from strata.sdk.session.registration import LeftBarriers, WorkerIdentity
from strata.sdk.session.requests import Outbox, RequestLog, SessionRequest, error_text, failure_in
from strata.wire.grpc_library import grpc
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

WAIT_SLICE_S = 0.5
MAX_FORGOTTEN = 100
MAX_REQUESTS = 1_024
CLOSING_S = 2.0

SILENT_INTERVALS = 2
SILENT_S = 3.0
"""Another address is tried when nothing arrived for two heartbeat intervals, and this long."""

OVER = (Fenced, NotFound)
"""Errors that mean: this incarnation was declared lost, register again."""

PERMANENT = (Unauthenticated, PermissionDenied, InvalidArgument)
"""Errors of a Hello that a retry would get too."""


class SessionOwner(HeartbeatSource, Protocol):
    """The worker that a session serves. Its methods are called from the session's threads."""

    def stack_report(self, waits_for: list[str]) -> StackReport:
        """The stacks of this process, and what it waits for."""

    def apply_standing(self, standing: pb.Standing) -> None:
        """Handle a standing, new or repeated after a connect. Called with `updated` held."""

    def rejoin(self, error: StrataError) -> WorkerIdentity:
        """Register as a new incarnation; may block."""


class WorkerSession:
    """A worker's session. Open it with `start`, end it with `close`.

    `updated` is notified of every change: an answer, a standing, a connection. `error` is why the
    session has ended, if it has. `forked` is set in a forked child, which cannot use it.
    """

    def __init__(
        self,
        connection: CoordinatorConnection,
        owner: SessionOwner,
        identity: WorkerIdentity,
        interval_s: float,
        *,
        recorder: Recorder | None = None,
        lines: LineBuffer | None = None,
        give_up_after_s: float | None = None,
    ) -> None:
        self.updated = threading.Condition()
        self.identity = identity
        self.left = LeftBarriers()
        self.generation = 0
        self.attached = False
        self.error: StrataError | None = None
        self.heartbeat = Heartbeat(owner, interval_s, recorder, lines)
        self._connection = connection
        self._owner = owner
        self._give_up_after_s = give_up_after_s
        self._requests: dict[int, SessionRequest] = {}
        self._forgotten: dict[int, SessionRequest] = {}
        self.requests = RequestLog(self.heartbeat.emit)
        self._outbox = Outbox()
        self._stream: SessionStream | None = None
        self._heard_s = time.monotonic()
        self._silent: SessionStream | None = None
        self._closing = threading.Event()
        self.forked = False
        self._leaving = False
        self._reader = threading.Thread(target=self._read, name="strata-reader", daemon=True)
        channel.register(self)

    def start(self) -> None:
        """Connect, in the background."""
        self._reader.start()
        self.heartbeat.on_tick = self._leave_silent
        self.heartbeat.start()

    def ask(self, kind: str, body: Message, barrier: str = "") -> SessionRequest:
        """Send a request, now or when connected; `answer` waits for its answer."""
        self.require_usable()
        with self.updated:
            self._leaving = self._leaving or kind == "leave"
            if len(self._requests) >= MAX_REQUESTS:
                raise Overloaded(f"{MAX_REQUESTS} requests are waiting for an answer")
            number = self.requests.submitted(kind, barrier)
            message = pb.WorkerMessage(request=number)
            getattr(message, kind).CopyFrom(body)
            request = self._requests[number] = SessionRequest(message, kind, barrier)
            if self.attached:
                self._outbox.put(message)
        return request

    def tell(self, body: pb.WorkerMessage) -> None:
        """Send a message without an answer, if connected."""
        with self.updated:
            if self.attached:
                self._outbox.put(body)

    def answer(
        self, request: SessionRequest, timeout_s: float | None = None
    ) -> pb.CoordinatorMessage:
        """Wait for the answer to a request; raises the error it was refused with."""
        try:
            if not self.wait_for(lambda: request.done, timeout_s):
                raise DeadlineExceeded(f"no answer to {request.kind} within {timeout_s:g} s")
        finally:
            self.forget(request)
        if request.error is not None:
            raise request.error
        assert request.answer is not None
        return request.answer

    def call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Make a unary call, with retries while the coordinator is unreachable."""
        attempt = partial(self._connection.call, method, request, answer)
        with self.requests.call(method):
            return until_answered(attempt, self.require_usable, self._closing.wait, method)

    def leave(self, body: pb.Leave, timeout_s: float | None = None) -> None:
        """Leave: wait for the answer, then briefly for the delivery of its events."""
        self.answer(self.ask("leave", body), timeout_s)
        self.heartbeat.send_last()
        self.wait_for(lambda: self.heartbeat.flushed or not self.attached, CLOSING_S)

    def forget(self, request: SessionRequest) -> None:
        """Stop waiting for an answer; a late answer is still recorded."""
        with self.updated:
            if self._requests.pop(request.message.request, None) is not None:
                self._forgotten[request.message.request] = request
                for oldest in list(self._forgotten)[:-MAX_FORGOTTEN]:
                    del self._forgotten[oldest]

    def wait_for(
        self,
        happened: Callable[[], bool],
        timeout_s: float | None = None,
        what: Callable[[], str] | None = None,
    ) -> bool:
        """Wait on `updated` until the condition holds; False after the timeout.

        A long wait logs `what` it is for, every `LOG_INTERVAL_S`.
        """
        began_s = time.monotonic()
        deadline_s = None if timeout_s is None else began_s + timeout_s
        say_at_s = began_s + LOG_INTERVAL_S
        with self.updated:
            while not happened():
                self.require_usable()
                now_s = time.monotonic()
                left_s = WAIT_SLICE_S if deadline_s is None else deadline_s - now_s
                if left_s <= 0:
                    return False
                if what is not None and now_s >= say_at_s:
                    say_at_s = now_s + LOG_INTERVAL_S
                    log.warning("%s (%.0f s so far)", what(), now_s - began_s)
                self.updated.wait(min(left_s, WAIT_SLICE_S))
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all events and lines are stored; False after the timeout."""
        self.heartbeat.flush_soon()
        return self.wait_for(lambda: self.heartbeat.flushed, timeout_s)

    def close(self) -> None:
        """End the session and its threads; a no-op when repeated or in a forked child."""
        if self.forked or self._closing.is_set():
            return
        self._closing.set()
        with self.updated:
            stream = self._stream
            self._outbox.close()
            self.updated.notify_all()
        if stream is not None:
            stream.cancel()
        self.heartbeat.close()
        if self._reader.is_alive() and self._reader is not threading.current_thread():
            self._reader.join(CLOSING_S)

    def became_child(self) -> None:
        """Disable the session: a forked child has no threads, and no connection of its own."""
        self.forked = True
        self.attached = False
        self.updated = threading.Condition()
        self._requests = {}
        self.heartbeat.became_child()

    def require_usable(self) -> None:
        """Raise if the session is closed, has ended, or belongs to a forked parent."""
        if self.forked:
            raise NotAllowedNow(channel.INERT, hint=channel.INERT_HINT)
        if self._closing.is_set():
            raise NotAllowedNow("the session is closed", hint="call strata.join again")
        if self.error is not None:
            raise self.error

    def _read(self) -> None:
        """Run the reader thread: one connection after the other."""
        delays, away_since_s = delays_s(), time.monotonic()
        while not self._closing.is_set():
            self._connection.renew()
            used = self._connection.address
            error, was_attached = self._converse()
            if self._closing.is_set():
                return
            if was_attached:
                delays, away_since_s = delays_s(), time.monotonic()
                self._record_disconnected(error)
            try:
                self._carry_on(error, time.monotonic() - away_since_s)
            except Unavailable as unreachable:
                log.debug("cannot connect yet: %s", unreachable)
            except StrataError as final:
                self._end(final)
                return
            if self._connection.address == used or self._connection.tried_all:
                self._closing.wait(next(delays))

    def _converse(self) -> tuple[StrataError, bool]:
        """Run one connection; returns why it ended, and whether Hello was accepted."""
        outbox = Outbox()
        hello = pb.Hello(**structs.asdict(self.identity), left=self.left.all())
        outbox.put(pb.WorkerMessage(hello=hello))
        used = self._connection.address
        stream = self._connection.session(iter(outbox), used)
        with self.updated:
            self._outbox, self._stream = outbox, stream
            self._heard_s = time.monotonic()
        error: StrataError = Unavailable("the coordinator ended the session", hint=UNREACHABLE_HINT)
        try:
            for message in stream:
                self._heard_s = time.monotonic()
                self._handle(message)
        except grpc.RpcError as broken:
            if self._silent is stream:
                error = self._connection.unanswered(used)
            else:
                error = self._connection.error_from(broken, used)
            # The error is the stream itself. Its traceback would keep it until the interpreter
            # ends; its finalizer would then wait for a lock of gRPC's threads, which have ended.
            broken.__traceback__ = None
        except StrataError as refusal:
            error = refusal
        finally:
            self.heartbeat.detach()
            with self.updated:
                was_attached, self.attached = self.attached, False
                self._stream = None
                self.updated.notify_all()
            outbox.close()
            stream.cancel()
        return error, was_attached

    def _leave_silent(self) -> None:
        """End a connection on which nothing arrives any more, if there is another address: the
        coordinator behind it may be stopped, or cut off, while another one leads."""
        stream = self._stream
        expected = self.heartbeat.automatic or not self.attached
        if stream is None or not expected or not self._connection.has_others:
            return
        limit_s = max(SILENT_INTERVALS * self.heartbeat.interval_s, SILENT_S)
        if time.monotonic() - self._heard_s > limit_s:
            self._silent = stream
            stream.cancel()

    def _carry_on(self, error: StrataError, away_s: float) -> None:
        """Decide how to continue after a connection ended; raises if the session is over."""
        if isinstance(error, OVER):
            with self.updated:
                given_up, self._requests = self._requests, {}
                for request in given_up.values():
                    request.error = error
                    self.requests.settled(request, error_text(error))
                self.updated.notify_all()
            if self._leaving:
                raise error  # the worker has left, even if the answer was lost
            self.identity = self._owner.rejoin(error)
            self.left = LeftBarriers()
        elif isinstance(error, PERMANENT):
            raise error  # only a refused Hello ends a connection this way
        elif self._give_up_after_s is not None and away_s > self._give_up_after_s:
            reason = f"the coordinator was unreachable for {away_s:.0f} s: {error.message}"
            raise DeadlineExceeded(reason, hint=error.hint)

    def _end(self, error: StrataError) -> None:
        level = logging.DEBUG if self._leaving else logging.WARNING
        log.log(level, "the session with the coordinator has ended: %s", error)
        self.error = error
        self._notify()

    def _record_disconnected(self, error: StrataError) -> None:
        log.info("the connection to the coordinator broke: %s", error.message)
        target = self._connection.address.target
        self.heartbeat.emit(
            ConnectionChanged(peer=target, path="disconnected", reason=error.message[:200])
        )

    def _handle(self, message: pb.CoordinatorMessage) -> None:
        kind = message.WhichOneof("body")
        if kind == "standing":
            self._stand(message.standing)
        elif kind == "pulse":
            self.heartbeat.answered(message.pulse)
            self._notify()
        elif kind == "collect_stacks":
            self._report_stacks(message.collect_stacks)
        elif kind == "stored":
            self._note_stored(message.stored.seq, message.stored.lines)
        elif kind == "refused":
            refused = message.refused
            error = error_of(refused.code, "", refused.message, refused.hint)
            if isinstance(error, TRANSIENT) and self._retry_later(message.request, error):
                return
            self._settle(message, error)
            if isinstance(error, Fenced) or not self.attached:
                raise error
            if message.request < 0:
                self.heartbeat.refused(message.request, error)
        elif kind is not None:
            self._settle(message, None)

    def _report_stacks(self, asked: pb.CollectStacks) -> None:
        with self.updated:
            waits_for = [request.described for request in self._requests.values()]
        report = bounded(self._owner.stack_report(waits_for), asked.max_bytes)
        stacks = pb.Stacks(
            task_id=asked.task_id,
            collection=asked.collection,
            worker_id=self.identity.worker_id,
            report=msgspec.json.encode(report),
        )
        self.tell(pb.WorkerMessage(stacks=stacks))

    def _retry_later(self, number: int, error: StrataError) -> bool:
        """Schedule a retry of a transiently refused request; False if no caller waits for it."""
        with self.updated:
            request = self._requests.get(number) if self.attached else None
        if request is not None:
            log.debug("retrying %s: %s", request.kind, error)
            again = threading.Timer(next(request.delays), self._send_again, [request])
            again.daemon = True
            again.start()
        return request is not None

    def _send_again(self, request: SessionRequest) -> None:
        with self.updated:
            if self.attached and request.message.request in self._requests:
                self._outbox.put(request.message)

    def _stand(self, standing: pb.Standing) -> None:
        if standing.incarnation != self.identity.incarnation:
            return
        with self.updated:
            first, self.attached = not self.attached, True
            self.generation = standing.generation
            self._owner.apply_standing(standing)
            if first:
                for request in self._requests.values():
                    self._outbox.put(request.message)
            self.updated.notify_all()
        if first:
            self.heartbeat.emit(
                ConnectionChanged(peer=self._connection.address.target, path="direct")
            )
            self.heartbeat.attach(self._outbox, standing.stored_seq)
        else:
            self._note_stored(standing.stored_seq)

    def _note_stored(self, seq: int, lines: int = 0) -> None:
        self.heartbeat.stored(seq, lines)
        self._notify()

    def _notify(self) -> None:
        with self.updated:
            self.updated.notify_all()

    def _settle(self, message: pb.CoordinatorMessage, error: StrataError | None) -> None:
        with self.updated:
            waiting = self._requests.pop(message.request, None)
            request = waiting or self._forgotten.pop(message.request, None)
            if request is None:
                return
            if error is None:
                request.answer = message
            else:
                request.error = error
            self.updated.notify_all()
        failure = failure_in(message) if error is None else error_text(error)
        self.requests.settled(request, failure)
