"""The long-lived session of one worker: beats, events, log lines and requests in, standing out.

Two threads. The *reader* holds the connection: it says Hello, hears everything the coordinator
says, and when the connection breaks makes a new one, after delays that grow and vary, for ever
unless told otherwise. The *pulse* beats and sends what has gathered (see `pulse`). A training
thread never touches the network: it leaves a message and, if it wants the answer, waits on `news`.
So a blocked barrier never stops the beats, and a slow network never stops training.

A new connection continues the same incarnation: requests that were not answered are asked again
(each is harmless twice) and events that are not known to be stored are sent again. So are requests
that the coordinator cannot take now (its disk is full, say), and unary calls. If this incarnation
was declared lost, everything asked so far has failed, and the owner registers as a new incarnation,
for which the session goes on.

Waits are on a condition with a short timeout, so that Ctrl-C works in all of them.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from google.protobuf.message import Message
from msgspec import structs

from strata.core.worker_facts import ConnectionChanged
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
from strata.sdk import forks
from strata.sdk.channel import (
    PASSING,
    SAY_EVERY_S,
    UNREACHABLE_HINT,
    Answer,
    Connection,
    Stream,
    delays_s,
    error_of,
    until_answered,
)
from strata.sdk.events import Recorder
from strata.sdk.hello import Identity, LeftBarriers
from strata.sdk.lines import LineBuffer
from strata.sdk.outbox import Outbox, Request
from strata.sdk.pulse import Pulse, Source
from strata.sdk.request_log import RequestLog, error_text, failure_in
from strata.wire.grpc_library import grpc
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

WAIT_SLICE_S = 0.5
MAX_UNHEARD = 100
MAX_REQUESTS = 1_024
CLOSING_S = 2.0

OVER = (Fenced, NotFound)
"""Refusals that mean: this incarnation is over, register again."""

HOPELESS = (Unauthenticated, PermissionDenied, InvalidArgument)
"""Refusals of a Hello that the next one would get as well."""


class Owner(Source, Protocol):
    """Whom a session serves. Its methods are called from the session's threads."""

    def told(self, standing: pb.Standing) -> None:
        """Our standing changed, or is told again after a connect. Called with `news` held."""

    def rejoin(self, error: StrataError) -> Identity:
        """This incarnation is over: registers as a new one. May take its time."""


class Session:
    """A worker's session. Open it with `start`, end it with `close`.

    `news` tells about every change: an answer, a standing, a connection. `error` is why the session
    is over for good, if it is. `forked` is set in a child, where it is of no use.
    """

    def __init__(
        self,
        connection: Connection,
        owner: Owner,
        identity: Identity,
        interval_s: float,
        *,
        recorder: Recorder | None = None,
        lines: LineBuffer | None = None,
        give_up_after_s: float | None = None,
    ) -> None:
        self.news = threading.Condition()
        self.identity = identity
        self.left = LeftBarriers()
        self.generation = 0
        self.attached = False
        self.error: StrataError | None = None
        self.pulse = Pulse(owner, interval_s, recorder, lines)
        self._connection = connection
        self._owner = owner
        self._give_up_after_s = give_up_after_s
        self._requests: dict[int, Request] = {}
        self._unheard: dict[int, Request] = {}
        self.requests = RequestLog(self.pulse.emit)
        self._outbox = Outbox()
        self._stream: Stream | None = None
        self._closing = threading.Event()
        self.forked = False
        self._leaving = False
        self._reader = threading.Thread(target=self._read, name="strata-reader", daemon=True)
        forks.tell(self)

    def start(self) -> None:
        """Connects, in the background."""
        self._reader.start()
        self.pulse.start()

    def ask(self, kind: str, body: Message, barrier: str = "") -> Request:
        """Sends a request, now or when there is a connection; `answer` waits for its answer."""
        self.require_usable()
        with self.news:
            self._leaving = self._leaving or kind == "leave"
            if len(self._requests) >= MAX_REQUESTS:
                raise Overloaded(f"{MAX_REQUESTS} requests wait for an answer")
            number = self.requests.submitted(kind, barrier)
            message = pb.WorkerMessage(request=number)
            getattr(message, kind).CopyFrom(body)
            request = self._requests[number] = Request(message, kind, barrier)
            if self.attached:
                self._outbox.put(message)
        return request

    def tell(self, body: pb.WorkerMessage) -> None:
        """Sends what wants no answer, if there is a connection."""
        with self.news:
            if self.attached:
                self._outbox.put(body)

    def answer(self, request: Request, timeout_s: float | None = None) -> pb.CoordinatorMessage:
        """Waits for the answer to a request; raises its refusal."""
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
        """The answer to a unary call, asked again for as long as the coordinator is away."""
        attempt = partial(self._connection.call, method, request, answer)
        with self.requests.call(method):
            return until_answered(attempt, self.require_usable, self._closing.wait, method)

    def leave(self, body: pb.Leave, timeout_s: float | None = None) -> None:
        """Leave for good: wait for the answer, and deliver its record, but not for long."""
        self.answer(self.ask("leave", body), timeout_s)
        self.pulse.send_last()
        self.wait_for(lambda: self.pulse.flushed or not self.attached, CLOSING_S)

    def forget(self, request: Request) -> None:
        """Stop waiting for the answer; should it come, that is still recorded."""
        with self.news:
            if self._requests.pop(request.message.request, None) is not None:
                self._unheard[request.message.request] = request
                for oldest in list(self._unheard)[:-MAX_UNHEARD]:
                    del self._unheard[oldest]

    def wait_for(
        self,
        happened: Callable[[], bool],
        timeout_s: float | None = None,
        what: Callable[[], str] | None = None,
    ) -> bool:
        """Waits for something that `news` tells about; False when the time is over.

        A long wait says now and then in the log `what` it is for.
        """
        began_s = time.monotonic()
        deadline_s = None if timeout_s is None else began_s + timeout_s
        say_at_s = began_s + SAY_EVERY_S
        with self.news:
            while not happened():
                self.require_usable()
                now_s = time.monotonic()
                left_s = WAIT_SLICE_S if deadline_s is None else deadline_s - now_s
                if left_s <= 0:
                    return False
                if what is not None and now_s >= say_at_s:
                    say_at_s = now_s + SAY_EVERY_S
                    log.warning("waiting for %.0f s now: %s", now_s - began_s, what())
                self.news.wait(min(left_s, WAIT_SLICE_S))
        return True

    def flush(self, timeout_s: float) -> bool:
        """Waits until every event is stored and every line is sent, but not for ever."""
        self.pulse.flush_soon()
        return self.wait_for(lambda: self.pulse.flushed, timeout_s)

    def close(self) -> None:
        """Ends the session and its threads; harmless when repeated, and in a forked child."""
        if self.forked or self._closing.is_set():
            return
        self._closing.set()
        with self.news:
            stream = self._stream
            self._outbox.close()
            self.news.notify_all()
        if stream is not None:
            stream.cancel()
        self.pulse.close()
        if self._reader.is_alive() and self._reader is not threading.current_thread():
            self._reader.join(CLOSING_S)

    def became_child(self) -> None:
        """In a forked child there are no threads, and the connection is the parent's."""
        self.forked = True
        self.attached = False
        self.news = threading.Condition()
        self._requests = {}
        self.pulse.became_child()

    def require_usable(self) -> None:
        """Raise if the session is closed, over, or of a forked parent."""
        if self.forked:
            raise NotAllowedNow(forks.INERT, hint=forks.INERT_HINT)
        if self._closing.is_set():
            raise NotAllowedNow("the session is closed", hint="join again")
        if self.error is not None:
            raise self.error

    def _read(self) -> None:
        """The reader thread: one connection after the other."""
        delays, away_since_s = delays_s(), time.monotonic()
        while not self._closing.is_set():
            error, was_attached = self._converse()
            if self._closing.is_set():
                return
            if was_attached:
                delays, away_since_s = delays_s(), time.monotonic()
                self._say_disconnected(error)
            try:
                self._carry_on(error, time.monotonic() - away_since_s)
            except Unavailable as unreachable:
                log.debug("not yet: %s", unreachable)
            except StrataError as final:
                self._end(final)
                return
            self._closing.wait(next(delays))

    def _converse(self) -> tuple[StrataError, bool]:
        """One connection, from Hello to its end: why it ended, and whether we were attached."""
        outbox = Outbox()
        hello = pb.Hello(**structs.asdict(self.identity), left=self.left.all())
        outbox.put(pb.WorkerMessage(hello=hello))
        stream = self._connection.session(iter(outbox))
        with self.news:
            self._outbox, self._stream = outbox, stream
        error: StrataError = Unavailable("the coordinator ended the session", hint=UNREACHABLE_HINT)
        try:
            for message in stream:
                self._hear(message)
        except grpc.RpcError as broken:
            error = self._connection.error_from(broken)
            # It is the stream itself, and its traceback would keep it until the interpreter ends:
            # its finalizer would then wait for a lock of gRPC's threads, which run no more.
            broken.__traceback__ = None
        except StrataError as refusal:
            error = refusal
        finally:
            self.pulse.detach()
            with self.news:
                was_attached, self.attached = self.attached, False
                self._stream = None
                self.news.notify_all()
            outbox.close()
            stream.cancel()
        return error, was_attached

    def _carry_on(self, error: StrataError, away_s: float) -> None:
        """After a connection ended: as whom to go on, if there is any hope."""
        if isinstance(error, OVER):
            with self.news:
                given_up, self._requests = self._requests, {}
                for request in given_up.values():
                    request.error = error
                    self.requests.settled(request, error_text(error))
                self.news.notify_all()
            if self._leaving:
                raise error  # it has left, whether or not the answer came
            self.identity = self._owner.rejoin(error)
            self.left = LeftBarriers()
        elif isinstance(error, HOPELESS):
            raise error  # only a Hello's refusal ends a connection this way
        elif self._give_up_after_s is not None and away_s > self._give_up_after_s:
            raise DeadlineExceeded(
                f"the coordinator was away for {away_s:.0f} s: {error.message}", hint=error.hint
            )

    def _end(self, error: StrataError) -> None:
        level = logging.DEBUG if self._leaving else logging.WARNING
        log.log(level, "the session with the coordinator is over: %s", error)
        self.error = error
        self._tell_news()

    def _say_disconnected(self, error: StrataError) -> None:
        log.info("the connection to the coordinator broke: %s", error.message)
        target = self._connection.address.target
        self.pulse.emit(ConnectionChanged(target, "disconnected", error.message[:200]))

    def _hear(self, message: pb.CoordinatorMessage) -> None:
        kind = message.WhichOneof("body")
        if kind == "standing":
            self._stand(message.standing)
        elif kind == "pulse":
            self.pulse.heard(message.pulse)
            self._tell_news()
        elif kind == "stored":
            self._note_stored(message.stored.seq, message.stored.lines)
        elif kind == "refused":
            refused = message.refused
            error = error_of(refused.code, "", refused.message, refused.hint)
            if isinstance(error, PASSING) and self._ask_later(message.request, error):
                return
            self._settle(message, error)
            if isinstance(error, Fenced) or not self.attached:
                raise error
            if message.request < 0:
                self.pulse.refused(message.request, error)
        elif kind is not None:
            self._settle(message, None)

    def _ask_later(self, number: int, error: StrataError) -> bool:
        """Asks again what the coordinator cannot take now; False if nobody waits for it."""
        with self.news:
            request = self._requests.get(number) if self.attached else None
        if request is not None:
            log.debug("%s is asked again: %s", request.kind, error)
            again = threading.Timer(next(request.delays), self._ask_again, [request])
            again.daemon = True
            again.start()
        return request is not None

    def _ask_again(self, request: Request) -> None:
        with self.news:
            if self.attached and request.message.request in self._requests:
                self._outbox.put(request.message)

    def _stand(self, standing: pb.Standing) -> None:
        if standing.incarnation != self.identity.incarnation:
            return
        with self.news:
            first, self.attached = not self.attached, True
            self.generation = standing.generation
            self._owner.told(standing)
            if first:
                for request in self._requests.values():
                    self._outbox.put(request.message)
            self.news.notify_all()
        if first:
            self.pulse.emit(ConnectionChanged(self._connection.address.target, "direct"))
            self.pulse.attach(self._outbox, standing.stored_seq)
        else:
            self._note_stored(standing.stored_seq)

    def _note_stored(self, seq: int, lines: int = 0) -> None:
        self.pulse.stored(seq, lines)
        self._tell_news()

    def _tell_news(self) -> None:
        with self.news:
            self.news.notify_all()

    def _settle(self, message: pb.CoordinatorMessage, error: StrataError | None) -> None:
        with self.news:
            waiting = self._requests.pop(message.request, None)
            request = waiting or self._unheard.pop(message.request, None)
            if request is None:
                return
            if error is None:
                request.answer = message
            else:
                request.error = error
            self.news.notify_all()
        failure = failure_in(message) if error is None else error_text(error)
        self.requests.settled(request, failure)
