"""The record of what a worker asks of the coordinator: submitted, and completed with the outcome.

Every request has a number; the facts of one request carry the same `op`. A request that was
answered is not always one that went well: a barrier that failed and a checkpoint that was not
committed are answered, too, and are recorded as failures with their reason.

The registration is request 0 of an incarnation. Its facts are recorded when it has been answered,
with the times at which it was asked and answered: before that there is no incarnation whose log
they could belong to.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from strata.core.events import Fact
from strata.core.worker_facts import RequestCompleted, RequestSubmitted
from strata.errors import StrataError
from strata.sdk.events import Recorder
from strata.sdk.outbox import Request
from strata.wire.v1 import coordinator_pb2 as pb

REGISTRATION = 0
LAST_KINDS = (RequestSubmitted, RequestCompleted)
"""What is still recorded when the run has ended: leaving is a request, too."""

MAX_ERROR_CHARACTERS = 500

Emit = Callable[[Fact, str], None]


class Moment(Struct, frozen=True):
    """A point in time by both clocks."""

    wall_ns: int
    mono_ns: int

    @classmethod
    def now(cls) -> "Moment":
        """This moment."""
        return cls(time.time_ns(), time.monotonic_ns())


class RequestLog:
    """Numbers requests and records them. Any thread may call."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = REGISTRATION
        self._lock = threading.Lock()

    def submitted(self, kind: str, barrier: str = "") -> int:
        """Record that something is asked; the number of the request."""
        with self._lock:
            self._last += 1
            number = self._last
        self._emit(RequestSubmitted(number, kind, barrier), _op(number))
        return number

    def settled(self, request: Request, failure: str) -> None:
        """Record how a request of the session ended; an empty failure means that it went well."""
        self._completed(request.message.request, request.kind, failure, request.barrier)

    @contextmanager
    def call(self, method: str, barrier: str = "") -> Iterator[None]:
        """Record one unary call, from its first attempt to its answer; heartbeats are not."""
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
        self._emit(RequestCompleted(number, kind, not error, error, barrier), _op(number))


def record_registration(recorder: Recorder, asked: Moment, answered: Moment) -> None:
    """Record a registration in the log of the incarnation that it began."""
    submitted = RequestSubmitted(REGISTRATION, "register")
    completed = RequestCompleted(REGISTRATION, "register", True)
    recorder.emit_at(asked.wall_ns, asked.mono_ns, submitted, _op(REGISTRATION))
    recorder.emit_at(answered.wall_ns, answered.mono_ns, completed, _op(REGISTRATION))


def error_text(error: BaseException) -> str:
    """An error as it is recorded: its code, or its class, and its message."""
    if isinstance(error, StrataError):
        return f"{error.code}: {error.message}"[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]


def failure_in(answer: pb.CoordinatorMessage) -> str:
    """Why the thing that was asked for did not come about, although it was answered; or empty."""
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
