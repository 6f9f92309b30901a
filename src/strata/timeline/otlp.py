"""A run as OpenTelemetry: operations as spans, facts as log records, sent by OTLP over HTTP.

Each task is one trace. Workers' operations and steps are spans of it, children of a span for the
worker's incarnation; the coordinator's facts are log records. The messages are those of the
OpenTelemetry protocol, encoded as protobuf, in requests of bounded size.
"""

import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

import msgspec
from msgspec import Struct
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from strata.core.events import COORDINATOR
from strata.core.worker_facts import StepFinished
from strata.errors import InvalidArgument, Unavailable
from strata.timeline.operations import Operation, Pairing
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.timeline import Timeline
from strata.timeline.words import sentence

ITEMS = 512
TIMEOUT_S = 10.0


class Sent(Struct, frozen=True):
    """How much went out."""

    spans: int
    logs: int


def send(timeline: Timeline, endpoint: str, from_ns: int, to_ns: int) -> Sent:
    """Sends a window of the run to an OTLP/HTTP receiver such as http://127.0.0.1:4318."""
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidArgument(f"{endpoint!r} is not an address", hint="as in http://127.0.0.1:4318")
    spans = logs = 0
    found = _walk(timeline, timeline.records(from_ns, to_ns))
    while items := list(islice(found, ITEMS)):
        traced = [item for item in items if isinstance(item[1], Span)]
        logged = [item for item in items if isinstance(item[1], LogRecord)]
        if traced:
            _post(f"{endpoint.rstrip('/')}/v1/traces", _traces(traced))
        if logged:
            _post(f"{endpoint.rstrip('/')}/v1/logs", _logs(logged))
        spans, logs = spans + len(traced), logs + len(logged)
    return Sent(spans, logs)


def _walk(timeline: Timeline, records: Iterable[Record]) -> Iterator[tuple[str, Span | LogRecord]]:
    """Each record that is a fact, ends an operation, or is a step, with its node."""
    pairing = Pairing()
    tasks: dict[str, str] = {}
    for record in records:
        if record.kind == "RunStarted":
            tasks[record.node] = record.text("task")
        task = record.text("task") or tasks.get(record.node, timeline.name)
        if record.node == COORDINATOR:
            yield record.node, _log(record, task)
            continue
        ended = pairing.feed(record)
        if ended is not None and ended.start is not None:
            yield record.node, _operation(ended, task)
        elif isinstance(record.event.body, StepFinished):
            yield record.node, _step(record, record.event.body, task)
    for operation in pairing.open.values():
        if operation.start is not None:
            yield operation.node, _operation(operation, tasks.get(operation.node, timeline.name))


def _log(record: Record, task: str) -> LogRecord:
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
        trace_id=_id(task, 16),
    )


def _operation(operation: Operation, task: str) -> Span:
    start, end = operation.start, operation.end
    assert start is not None
    failed = operation.ok is False
    return Span(
        trace_id=_id(task, 16),
        span_id=_id(start.ref, 8),
        name=operation.text,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start.at_ns,
        end_time_unix_nano=max(end.at_ns, start.at_ns) if end is not None else start.at_ns,
        attributes=_attributes({"strata.ref": start.ref, "strata.open": end is None}),
        status=Status(
            code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET,
            message=end.text("error") if failed and end is not None else "",
        ),
    )


def _step(record: Record, body: StepFinished, task: str) -> Span:
    took_s = body.data_s + body.compute_s + body.communication_s + body.wait_s
    told = msgspec.structs.asdict(body)
    return Span(
        trace_id=_id(task, 16),
        span_id=_id(record.ref, 8),
        name=f"step {body.step}",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=record.at_ns - int(took_s * SECOND_NS),
        end_time_unix_nano=record.at_ns,
        attributes=_attributes(
            {f"strata.{name}": value for name, value in told.items() if value is not None}
        ),
    )


def _traces(items: list[tuple[str, Span | LogRecord]]) -> bytes:
    request = ExportTraceServiceRequest()
    for node in dict.fromkeys(node for node, _ in items):
        group = request.resource_spans.add(resource=_resource(node))
        spans = [item for name, item in items if name == node and isinstance(item, Span)]
        group.scope_spans.add().spans.extend(spans)
    return request.SerializeToString()


def _logs(items: list[tuple[str, Span | LogRecord]]) -> bytes:
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
            f"{url} does not take OTLP: {error}", hint="check the receiver's address and port"
        ) from error
