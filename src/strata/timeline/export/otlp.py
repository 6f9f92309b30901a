"""Export to OpenTelemetry: operations as spans, facts as log records, by OTLP over HTTP.

Each task is one trace. A worker's operations, steps and messages are spans, children of a span for
the worker's incarnation; the arrival of a message is linked to its send. The coordinator's facts
are log records. Requests are OTLP protobuf messages of bounded size.
"""

import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import TypeAlias

import msgspec
from msgspec import Struct
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from strata.core.events import COORDINATOR
from strata.core.workers.exchange_facts import MessageReceived, MessageRejected, MessageSent
from strata.core.workers.worker_facts import StepFinished
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.errors import InvalidArgument, Unavailable
from strata.timeline.read.operations import Operation, Pairing, step_parts
from strata.timeline.read.records import SECOND_NS, Record, parse_ref
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import sentence

ITEMS = 512
TIMEOUT_S = 10.0
MESSAGES = (MessageSent, MessageReceived, MessageRejected)

Item: TypeAlias = tuple[str, Span | LogRecord]
"""A span or a log record, with its node."""


class Sent(Struct, frozen=True):
    """The number of exported spans and log records."""

    spans: int
    logs: int


def send(timeline: Timeline, endpoint: str, from_ns: int, to_ns: int) -> Sent:
    """Send a window of the run to an OTLP/HTTP receiver such as http://127.0.0.1:4318."""
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"{endpoint!r} is not a URL", hint="for example http://127.0.0.1:4318"
        )
    spans = logs = 0
    found = _Walk(timeline).items(timeline.records(from_ns, to_ns))
    while items := list(islice(found, ITEMS)):
        traced = [item for item in items if isinstance(item[1], Span)]
        logged = [item for item in items if isinstance(item[1], LogRecord)]
        if traced:
            _post(f"{endpoint.rstrip('/')}/v1/traces", _traces(traced))
        if logged:
            _post(f"{endpoint.rstrip('/')}/v1/logs", _logs(logged))
        spans, logs = spans + len(traced), logs + len(logged)
    return Sent(spans, logs)


class _Incarnation(Struct):
    """A worker's incarnation: its trace, and the time of its events."""

    node: str
    incarnation: int
    trace: bytes
    from_ns: int
    to_ns: int

    @property
    def span(self) -> bytes:
        """The id of its span, the parent of all its other spans."""
        return _id(f"{self.node}/{self.incarnation}", 8)


class _Walk:
    """Converts the records of a run to spans and log records, in one pass."""

    def __init__(self, timeline: Timeline) -> None:
        self._name = timeline.name
        self._pairing = Pairing()
        self._lives: dict[tuple[str, int], _Incarnation] = {}
        registered = timeline.records(node=COORDINATOR, kinds={WorkerRegistered.__name__})
        self._tasks = {
            (body.worker, body.incarnation): body.task
            for record in registered
            if isinstance(body := record.event.body, WorkerRegistered)
        }

    def items(self, records: Iterable[Record]) -> Iterator[Item]:
        """Facts and ended operations in order, then open operations and the incarnations."""
        for record in records:
            if record.node == COORDINATOR:
                yield record.node, _log(record, _id(record.text("task") or self._name, 16))
            else:
                life = self._life(record)
                yield from ((life.node, span) for span in self._spans(record, life))
                yield from self._unfinished(self._pairing.given_up())
        yield from self._unfinished(self._pairing.open.values())
        for life in self._lives.values():
            yield life.node, _whole(life)

    def _life(self, record: Record) -> _Incarnation:
        stream = (record.node, record.incarnation)
        life = self._lives.get(stream)
        if life is None:
            trace = _id(self._tasks.get(stream) or self._name, 16)
            life = self._lives[stream] = _Incarnation(
                node=record.node,
                incarnation=record.incarnation,
                trace=trace,
                from_ns=record.at_ns,
                to_ns=record.at_ns,
            )
        life.to_ns = max(life.to_ns, record.at_ns)
        return life

    def _spans(self, record: Record, life: _Incarnation) -> Iterator[Span]:
        body = record.event.body
        ended = self._pairing.feed(record)
        if ended is not None and ended.start is not None:
            yield _operation(ended, ended.start, life)
        elif isinstance(body, StepFinished):
            yield _step(record, body, life)
        elif isinstance(body, MESSAGES):
            yield _message(record, life)

    def _unfinished(self, operations: Iterable[Operation]) -> Iterator[Item]:
        for operation in operations:
            if operation.start is not None:
                life = self._life(operation.start)
                yield life.node, _operation(operation, operation.start, life)


def _log(record: Record, trace: bytes) -> LogRecord:
    return LogRecord(
        time_unix_nano=record.at_ns,
        observed_time_unix_nano=record.at_ns,
        severity_text="INFO",
        severity_number=SeverityNumber.SEVERITY_NUMBER_INFO,
        body=AnyValue(string_value=sentence(record)),
        attributes=[
            *_attributes({"event.name": record.kind, "strata.ref": record.ref}),
            *_attributes({f"strata.{tag}": value for tag, value in record.tags().items()}),
        ],
        trace_id=trace,
    )


def _whole(life: _Incarnation) -> Span:
    """The span of an incarnation, around all its other spans."""
    return Span(
        trace_id=life.trace,
        span_id=life.span,
        name=f"{life.node}, incarnation {life.incarnation}",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=life.from_ns,
        end_time_unix_nano=life.to_ns,
    )


def _operation(operation: Operation, start: Record, life: _Incarnation) -> Span:
    end = operation.end
    span = _within(life, start, operation.text, start.at_ns, end.at_ns if end else start.at_ns)
    span.attributes.extend(_attributes({"strata.open": end is None}))
    if end is not None and operation.ok is False:
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=end.text("error")))
    return span


def _step(record: Record, body: StepFinished, life: _Incarnation) -> Span:
    took_s = sum(step_parts(body).values())
    start_ns = record.at_ns - int(took_s * SECOND_NS)
    life.from_ns = min(life.from_ns, start_ns)
    span = _within(life, record, f"step {body.step}", start_ns, record.at_ns)
    fields = msgspec.structs.asdict(body)
    span.attributes.extend(
        _attributes(
            {f"strata.{name}": value for name, value in fields.items() if value is not None}
        )
    )
    return span


def _message(record: Record, life: _Incarnation) -> Span:
    """A send or an arrival of a message; an arrival is linked to its send."""
    sent = isinstance(record.event.body, MessageSent)
    span = _within(life, record, record.kind, record.at_ns, record.at_ns)
    span.kind = Span.SPAN_KIND_PRODUCER if sent else Span.SPAN_KIND_CONSUMER
    span.attributes.extend(
        _attributes({f"strata.{tag}": value for tag, value in record.tags().items()})
    )
    return span


def _within(life: _Incarnation, record: Record, name: str, start_ns: int, end_ns: int) -> Span:
    """A span of a worker, linked to its causes on other workers."""
    return Span(
        trace_id=life.trace,
        span_id=_id(record.ref, 8),
        parent_span_id=life.span,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=max(end_ns, start_ns),
        attributes=_attributes({"strata.ref": record.ref}),
        links=[
            Span.Link(trace_id=life.trace, span_id=_id(cause, 8))
            for cause in record.causes
            if parse_ref(cause)[0] != COORDINATOR
        ],
    )


def _traces(items: list[Item]) -> bytes:
    request = ExportTraceServiceRequest()
    for node in dict.fromkeys(node for node, _ in items):
        group = request.resource_spans.add(resource=_resource(node))
        spans = [item for name, item in items if name == node and isinstance(item, Span)]
        group.scope_spans.add().spans.extend(spans)
    return request.SerializeToString()


def _logs(items: list[Item]) -> bytes:
    request = ExportLogsServiceRequest()
    for node in dict.fromkeys(node for node, _ in items):
        group = request.resource_logs.add(resource=_resource(node))
        records = [item for name, item in items if name == node and isinstance(item, LogRecord)]
        group.scope_logs.add().log_records.extend(records)
    return request.SerializeToString()


def _resource(node: str) -> Resource:
    return Resource(attributes=_attributes({"service.name": "strata", "service.instance.id": node}))


def _attributes(values: dict[str, object]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in values.items()]


def _value(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return AnyValue(string_value=text)


def _id(name: str, size: int) -> bytes:
    return blake2b(name.encode(), digest_size=size).digest()


def _post(url: str, body: bytes) -> None:
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/x-protobuf"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            response.read()
    except (urllib.error.URLError, OSError) as error:
        raise Unavailable(
            f"{url} did not accept OTLP: {error}", hint="check the URL of the receiver"
        ) from error
