"""The send queue of a connection, and requests that wait for an answer.

`Outbox.put` never blocks: gRPC sends from the queue in its own thread. A request is kept until it
is answered, and put into the next connection's outbox if this one breaks; every request of the
protocol is idempotent.

Each request is recorded: submitted, and completed with the outcome. Every request has a number; the
facts of one request have the same `op`. An answered request may still be a failure: a barrier that
failed and a checkpoint that was not committed are recorded as failures with their reason. The
registration is request 0 of an incarnation. Its facts are recorded after the answer, with the times
of the request and the answer, because the incarnation does not exist before.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from msgspec import Struct

from strata.core.events import Fact
from strata.core.workers.worker_facts import RequestCompleted, RequestSubmitted
from strata.errors import StrataError
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.channel import delays_s
from strata.wire.v1 import coordinator_pb2 as pb


class Outbox:
    """The send queue of one connection."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[pb.WorkerMessage | None] = SimpleQueue()

    def put(self, message: pb.WorkerMessage) -> None:
        """Queue a message."""
        self._queue.put(message)

    @property
    def backlog(self) -> int:
        """The number of messages that were not sent yet."""
        return self._queue.qsize()

    def close(self) -> None:
        """End the connection after the queued messages."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[pb.WorkerMessage]:
        while (message := self._queue.get()) is not None:
            yield message


class SessionRequest:
    """A request; exactly one of `answer` and `error` is set when it is done."""

    def __init__(self, message: pb.WorkerMessage, kind: str, barrier: str = "") -> None:
        self.message = message
        self.kind = kind
        self.barrier = barrier
        self.answer: pb.CoordinatorMessage | None = None
        self.error: StrataError | None = None
        self.delays = delays_s(0.1)

    @property
    def described(self) -> str:
        """What is waited for, in words."""
        return f"barrier {self.barrier}" if self.barrier else f"an answer to {self.kind}"

    @property
    def done(self) -> bool:
        """Whether it was answered, refused or cancelled."""
        return self.answer is not None or self.error is not None


REGISTRATION = 0
LAST_KINDS = (RequestSubmitted, RequestCompleted)
"""The facts that are still recorded after `RunEnded`: leaving is a request too."""

MAX_ERROR_CHARACTERS = 500

Emit = Callable[[Fact, str], None]


class ClockReading(Struct, frozen=True):
    """A point in time on the wall clock and the monotonic clock."""

    wall_ns: int
    mono_ns: int

    @classmethod
    def now(cls) -> "ClockReading":
        """Read both clocks."""
        return cls(time.time_ns(), time.monotonic_ns())


class RequestLog:
    """Numbers and records requests. Thread-safe."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = REGISTRATION
        self._lock = threading.Lock()

    def submitted(self, kind: str, barrier: str = "") -> int:
        """Record a new request; returns its number."""
        with self._lock:
            self._last += 1
            number = self._last
        self._emit(RequestSubmitted(request=number, type=kind, barrier=barrier), _op(number))
        return number

    def settled(self, request: SessionRequest, failure: str) -> None:
        """Record the end of a request of the session; an empty failure means success."""
        self._completed(request.message.request, request.kind, failure, request.barrier)

    @contextmanager
    def call(self, method: str, barrier: str = "") -> Iterator[None]:
        """Record a unary call, from its first attempt to its answer; not heartbeats."""
        if method == "Heartbeat":
            yield
            return
        kind = _kind_of(method)
        number = self.submitted(kind, barrier)
        try:
            yield
        except BaseException as error:
            self._completed(number, kind, error_text(error), barrier)
            raise
        self._completed(number, kind, barrier=barrier)

    def _completed(self, number: int, kind: str, error: str = "", barrier: str = "") -> None:
        self._emit(
            RequestCompleted(request=number, type=kind, ok=not error, error=error, barrier=barrier),
            _op(number),
        )


def record_registration(recorder: Recorder, asked: ClockReading, answered: ClockReading) -> None:
    """Record a registration as the first request of its incarnation."""
    submitted = RequestSubmitted(request=REGISTRATION, type="register")
    completed = RequestCompleted(request=REGISTRATION, type="register", ok=True)
    recorder.emit_at(asked.wall_ns, asked.mono_ns, submitted, _op(REGISTRATION))
    recorder.emit_at(answered.wall_ns, answered.mono_ns, completed, _op(REGISTRATION))


def error_text(error: BaseException) -> str:
    """The recorded form of an error: its code or class, and its message."""
    if isinstance(error, StrataError):
        return f"{error.code}: {error.message}"[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]


def failure_in(answer: pb.CoordinatorMessage) -> str:
    """The failure that an answer reports; empty on success."""
    kind = answer.WhichOneof("body")
    failure = ""
    if kind == "barrier" and not answer.barrier.outcome.released:
        outcome = answer.barrier.outcome
        missing = ", ".join(outcome.missing) or "no worker"
        failure = f"barrier failed: {outcome.reason}; missing: {missing}"
    elif kind == "checkpoint" and answer.checkpoint.checkpoint.status == "failed":
        failure = f"checkpoint failed: {answer.checkpoint.checkpoint.reason}"
    return failure[:MAX_ERROR_CHARACTERS]


def _op(number: int) -> str:
    return f"request-{number}"


def _kind_of(method: str) -> str:
    """`register_dataset` for the method `RegisterDataset`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
