"""Registering with the coordinator, and registering again.

The nonce is this process's secret: it proves to the coordinator who is speaking (`wire.proof`). A
registration whose answer was lost is asked again with the same nonce and is then the same
registration. A worker that was declared lost registers anew; its nonce then names the incarnation
that is over, so that this, too, may be asked any number of times.
"""

import math
import os
import platform
import secrets
import socket
from hashlib import blake2b

import msgspec
import psutil

from strata import __version__
from strata.config import Settings, load_process
from strata.core.worker_facts import RunStarted
from strata.errors import InvalidArgument, SettingError
from strata.sdk.channel import Connection, build, persist
from strata.sdk.events import Recorder
from strata.sdk.hello import Identity
from strata.sdk.request_log import Moment, record_registration
from strata.wire.v1 import coordinator_pb2 as pb

CONNECT_TIMEOUT_S = 10.0
MAX_TEXT_CHARACTERS = 200
MAX_METADATA = 64


def settings_for(**given: object) -> Settings:
    """The settings of a worker; what is given here wins over the environment."""
    settings = load_process(given)
    if not settings.coordinator_addr:
        raise SettingError(
            "no coordinator is named",
            hint="run the script with `strata run`, or set COORDINATOR_ADDR=host:port; "
            "`strata up` starts a coordinator",
        )
    return settings


def connect(settings: Settings) -> Connection:
    """The way to the coordinator that the settings name."""
    return Connection(settings.coordinator_addr, token=settings.token, ca_file=settings.tls_cert)


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
) -> pb.RegisterWorkerRequest:
    """What to register with; refuses what cannot be sent."""
    worker_id = settings.worker_id if worker_id is None else worker_id
    if not worker_id and settings.rank is not None:
        worker_id = f"rank-{settings.rank}"
    _check_texts(worker_id=worker_id, hostname=hostname, **(labels or {}))
    if len(labels or {}) > MAX_METADATA:
        raise InvalidArgument("there is too much metadata", hint=f"at most {MAX_METADATA} entries")
    if weight == 0:  # on the wire it would stand for none given
        raise InvalidArgument("weight is 0", hint="it must be at least 1")
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
    )


def _check_texts(**texts: str) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > MAX_TEXT_CHARACTERS or not _printable(text):
            raise InvalidArgument(
                f"{name[:80]} is {text!r:.80}",
                hint=f"use a printable text of at most {MAX_TEXT_CHARACTERS} characters",
            )


def _printable(text: str) -> bool:
    return text.isprintable() and text == text.encode("utf-8", "ignore").decode("utf-8")


def enrol(
    settings: Settings, request: pb.RegisterWorkerRequest, patience_s: float | None
) -> tuple["Enrolment", pb.RegisterWorkerResponse]:
    """Connects and registers; closes what it opened when that fails.

    An agent was told to start this process, so there is a coordinator to wait for.
    """
    if patience_s is None:
        patience_s = math.inf if settings.start else CONNECT_TIMEOUT_S
    enrolled = Enrolment(connect(settings), request)
    try:
        return enrolled, enrolled.register(patience_s)
    except BaseException:
        enrolled.connection.close()
        raise


class Enrolment:
    """Registers one worker, as often as it takes."""

    def __init__(self, connection: Connection, request: pb.RegisterWorkerRequest) -> None:
        self.connection = connection
        self._request = request
        self._secret = secrets.token_hex(16)
        self._asked: Moment | None = None
        self._span: tuple[Moment, Moment] | None = None

    def register(self, patience_s: float, after: int = 0) -> pb.RegisterWorkerResponse:
        """Registers; `after` is the incarnation that is over, if there was one."""
        request = self._request
        request.nonce = f"{self._secret}-{after}"
        method, kind = "RegisterWorker", pb.RegisterWorkerResponse
        self._asked = self._asked or Moment.now()
        answer = persist(
            lambda timeout_s: self.connection.call(method, request, kind, timeout_s), patience_s
        )
        self._span, self._asked = (self._asked, Moment.now()), None
        request.worker_id = answer.assigned_id
        request.task_id = answer.task_id  # a later incarnation belongs to the same task
        return answer

    def identity(self, answer: pb.RegisterWorkerResponse) -> Identity:
        """As whom the coordinator has let us in."""
        return Identity(answer.assigned_id, answer.incarnation, self._request.nonce)

    def record(self, recorder: Recorder, answer: pb.RegisterWorkerResponse) -> None:
        """Record the registration and the start, as the first facts of the new incarnation."""
        assert self._span is not None, "it has registered"
        record_registration(recorder, *self._span)
        recorder.emit(self.started(answer))

    def started(self, answer: pb.RegisterWorkerResponse, role: str = "worker") -> RunStarted:
        """The fact that this process joined."""
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
        return RunStarted(
            answer.task_id,
            answer.assigned_id,
            answer.incarnation,
            role,
            self._request.hostname,
            os.getpid(),
            __version__,
            platform.python_version(),
            parameters,
            blake2b(encoded, digest_size=8).hexdigest(),
        )
