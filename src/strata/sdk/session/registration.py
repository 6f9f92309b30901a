"""Register a worker with the coordinator, also again after it was declared lost.

The nonce is this process's secret, by which the coordinator recognizes it
(`wire/messages/worker_messages`). A retry with the same nonce is the same registration. A worker
that was declared lost registers with a nonce that contains the lost incarnation, so that this can
be retried too.

A session begins with Hello: the worker's identity, and the barrier rounds it left last. The
coordinator sends a release before it is on disk; if it crashes in between, it learns of the release
from the workers that left (see `core/barriers/barrier_rules`).
"""

import math
import os
import platform
import secrets
import socket
from hashlib import blake2b

import msgspec
import psutil
from msgspec import Struct

from strata import __version__
from strata.config import Settings, load_process
from strata.core.barriers.barrier_rules import MAX_LEFT
from strata.core.workers.worker_facts import RunStarted
from strata.errors import InvalidArgument, SettingError
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.channel import CoordinatorConnection, build, persist
from strata.sdk.session.requests import ClockReading, record_registration
from strata.wire.client_certificates import client_certificates
from strata.wire.v1 import coordinator_pb2 as pb


class WorkerIdentity(Struct, frozen=True):
    """A worker's id and incarnation, and the nonce that proves them."""

    worker_id: str
    incarnation: int
    nonce: str

    def __repr__(self) -> str:
        return f"WorkerIdentity({self.worker_id!r}, {self.incarnation})"


class LeftBarriers:
    """The barrier rounds from which this incarnation was released last."""

    def __init__(self) -> None:
        self._rounds: dict[str, pb.LeftBarrier] = {}

    def note(self, name: str, step: int, outcome: pb.WaitBarrierResponse) -> None:
        """Note a release."""
        self._rounds.pop(name, None)
        self._rounds[name] = pb.LeftBarrier(
            barrier_id=name,
            round=outcome.round,
            generation=outcome.generation,
            participants=outcome.participants,
            step=step,
        )
        if len(self._rounds) > MAX_LEFT:
            del self._rounds[next(iter(self._rounds))]

    def round_of(self, name: str) -> int:
        """The round of a barrier that this worker left last; 0 for none."""
        found = self._rounds.get(name)
        return found.round if found is not None else 0

    def all(self) -> list[pb.LeftBarrier]:
        """All noted rounds."""
        return list(self._rounds.values())


CONNECT_TIMEOUT_S = 10.0
MAX_TEXT_CHARACTERS = 200
MAX_METADATA = 64
UNKNOWN_ROLE = "worker"  # if the coordinator does not send one


def settings_for(**given: object) -> Settings:
    """The settings of a worker; arguments override the environment."""
    settings = load_process(given)
    if not settings.coordinator_addr:
        raise SettingError(
            "no coordinator address is set",
            hint="run the script with `strata run`, or set COORDINATOR_ADDR=host:port; "
            "`strata up` starts a coordinator",
        )
    return settings


def connect(settings: Settings) -> CoordinatorConnection:
    """A connection to the coordinator of the settings."""
    return CoordinatorConnection(
        settings.coordinator_addr, token=settings.token, tls=client_certificates(settings)
    )


def registration(
    settings: Settings,
    *,
    syncs: bool,
    worker_id: str | None = None,
    hostname: str = "",
    port: int = 0,
    gpu_count: int = 0,
    memory_bytes: int = 0,
    weight: int = 1,
    labels: dict[str, str] | None = None,
    **retention: int | str | None,
) -> pb.RegisterWorkerRequest:
    """The registration request, with the fields of `Retention` that are not None; raises if an
    argument is invalid."""
    worker_id = settings.worker_id if worker_id is None else worker_id
    if not worker_id and settings.rank is not None:
        worker_id = f"rank-{settings.rank}"
    _check_texts(worker_id=worker_id, hostname=hostname, **(labels or {}))
    if len(labels or {}) > MAX_METADATA:
        raise InvalidArgument("metadata has too many entries", hint=f"use at most {MAX_METADATA}")
    if weight == 0:  # on the wire 0 means unset
        raise InvalidArgument("the worker's weight is 0", hint="use at least 1")
    return build(
        pb.RegisterWorkerRequest,
        worker_id=worker_id,
        hostname=hostname or socket.gethostname(),
        port=port,
        gpu_count=gpu_count,
        memory_bytes=memory_bytes or psutil.virtual_memory().total,
        metadata=labels or {},
        task_id=settings.task,
        world_size=settings.world_size or 0,
        weight=weight,
        start=settings.start,
        syncs=syncs,
        retention=build(pb.Retention, **retention),
    )


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > MAX_TEXT_CHARACTERS or not _printable(text):
            raise InvalidArgument(
                f"{name[:80]} is {text!r:.80}",
                hint=f"use a printable string of at most {MAX_TEXT_CHARACTERS} characters",
            )


def _printable(text: str) -> bool:
    return text.isprintable() and text == text.encode("utf-8", "ignore").decode("utf-8")


def enrol(
    settings: Settings, request: pb.RegisterWorkerRequest, timeout_s: float | None
) -> tuple["Enrolment", pb.RegisterWorkerResponse]:
    """Connect and register; closes the connection on failure.

    Without a `timeout_s`, a process started by an agent waits for the coordinator without a limit.
    """
    if timeout_s is None:
        timeout_s = math.inf if settings.start else CONNECT_TIMEOUT_S
    enrolled = Enrolment(connect(settings), request)
    try:
        return enrolled, enrolled.register(timeout_s)
    except BaseException:
        enrolled.connection.close()
        raise


class Enrolment:
    """Registers one worker, once per incarnation."""

    def __init__(
        self, connection: CoordinatorConnection, request: pb.RegisterWorkerRequest
    ) -> None:
        self.connection = connection
        self._request = request
        self._secret = secrets.token_hex(16)
        self._asked: ClockReading | None = None
        self._span: tuple[ClockReading, ClockReading] | None = None

    def register(self, timeout_s: float, after: int = 0) -> pb.RegisterWorkerResponse:
        """Register; `after` is the lost incarnation, if any."""
        request = self._request
        request.nonce = f"{self._secret}-{after}"
        method, kind = "RegisterWorker", pb.RegisterWorkerResponse
        self._asked = self._asked or ClockReading.now()
        answer = persist(
            lambda timeout_s: self.connection.call(method, request, kind, timeout_s), timeout_s
        )
        self._span, self._asked = (self._asked, ClockReading.now()), None
        request.worker_id = answer.assigned_id
        request.task_id = answer.task_id  # a later incarnation belongs to the same task
        return answer

    def identity(self, answer: pb.RegisterWorkerResponse) -> WorkerIdentity:
        """The identity that the coordinator assigned."""
        return WorkerIdentity(answer.assigned_id, answer.incarnation, self._request.nonce)

    def record(self, recorder: Recorder, answer: pb.RegisterWorkerResponse) -> None:
        """Record the registration and the start as the first facts of the incarnation."""
        assert self._span is not None, "the worker is registered"
        record_registration(recorder, *self._span)
        recorder.emit(self.started(answer))

    def started(self, answer: pb.RegisterWorkerResponse) -> RunStarted:
        """The `RunStarted` fact of this process."""
        parameters = {
            name: str(value)
            for name, value in (
                ("world_size", self._request.world_size),
                ("gpu_count", self._request.gpu_count),
                ("weight", self._request.weight),
                ("start", self._request.start),
                *self._request.metadata.items(),
            )
        }
        asked = parameters | {"config": answer.config.get("config", ""), "start": ""}
        encoded = msgspec.json.encode(asked, order="deterministic")
        interval_s = answer.heartbeat_interval_ms / 1000
        return RunStarted(
            task=answer.task_id,
            worker=answer.assigned_id,
            incarnation=answer.incarnation,
            role=answer.role or UNKNOWN_ROLE,
            hostname=self._request.hostname,
            pid=os.getpid(),
            release=__version__,
            python=platform.python_version(),
            parameters={**parameters, "heartbeat_interval_s": f"{interval_s:g}"},
            parameters_hash=blake2b(encoded, digest_size=8).hexdigest(),
        )
