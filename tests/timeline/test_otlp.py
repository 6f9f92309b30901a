"""Guards the OTLP export: a real collector accepts the run and forwards the same data.

The collector is Rotel. It decodes what it receives and exports it again, here to a receiver that
keeps it, so every assertion is about data that passed through an independent program.
"""

import gzip
import importlib.util
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from strata.errors import InvalidArgument, Unavailable
from strata.timeline.export import otlp
from strata.timeline.read.operations import operations
from tests.storage.server import free_ports

READY_S = 30.0
ARRIVED_S = 30.0


class Receiver(ThreadingHTTPServer):
    """Keeps what the collector exports, decoded with the protocol's own messages."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans, self.logs, self.instances = [], [], set()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self):
        thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.spans += [s for scope in group.scope_spans for s in scope.spans]
                self.server.instances.add(attributes(group.resource)["service.instance.id"])
        else:
            for group in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.server.logs += [r for scope in group.scope_logs for r in scope.log_records]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def collector(exports_to: str, folder: Path):
    """A collector on a free port of loopback; yields its address."""
    package = importlib.util.find_spec("rotel")
    assert package is not None, "pip install rotel brings the collector"
    program = Path(package.origin).with_name("rotel-agent")
    http, grpc = free_ports(2)
    flags = {
        "--otlp-http-endpoint": f"127.0.0.1:{http}",
        "--otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
        "--exporter": "otlp",
        "--otlp-exporter-protocol": "http",
        "--otlp-exporter-endpoint": exports_to,
        "--pid-file": str(folder / "pid"),
    }
    words = [word for flag in flags.items() for word in flag]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "start", *words], stdout=log, stderr=subprocess.STDOUT, env={}
        )
    try:
        await_port(http, process, folder / "log")
        yield f"http://127.0.0.1:{http}"
    finally:
        process.kill()
        process.wait()


def await_port(port: int, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with closing(create_connection(("127.0.0.1", port), 1)):
                return
        except OSError:
            output = log.read_text("utf-8", "replace")[-2_000:]
            assert process.poll() is None, output
            assert time.monotonic() < deadline, output
            time.sleep(0.02)


def attributes(message):
    """Attributes of a message of the protocol as a dict."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in message.attributes
    }


@pytest.fixture(scope="module")
def taken(crashed, tmp_path_factory):
    """The data that came through the collector, and the counts that `send` reported."""
    receiver = Receiver()
    folder = tmp_path_factory.mktemp("collector")
    with closing(receiver.socket), receiver.serving(), collector(receiver.address, folder) as at:
        extent = crashed.timeline.extent()
        sent = otlp.send(crashed.timeline, at, extent.from_ns, extent.to_ns + 1)
        deadline = time.monotonic() + ARRIVED_S
        while (len(receiver.spans), len(receiver.logs)) < (sent.spans, sent.logs):
            output = (folder / "log").read_text("utf-8", "replace")[-2_000:]
            assert time.monotonic() < deadline, (len(receiver.spans), len(receiver.logs), output)
            time.sleep(0.02)
    return receiver, sent


def test_every_operation_step_message_and_fact_arrives_once(crashed, taken):
    receiver, sent = taken
    begun = [op for op in operations(crashed.timeline.records()) if op.start is not None]
    recorded = crashed.kinds("StepFinished", "MessageSent", "MessageReceived", "MessageRejected")
    lives = {(tally.node, tally.incarnation) for tally in crashed.timeline.tallies()}
    assert len(receiver.spans) == sent.spans == len(begun) + len(recorded) + len(lives)
    assert len(receiver.logs) == sent.logs == crashed.timeline.position
    assert len({span.span_id for span in receiver.spans}) == sent.spans
    assert receiver.instances == {node for node, _ in lives}


def test_names_and_times_are_those_of_the_run(crashed, taken):
    receiver, _ = taken
    spans = {attributes(span).get("strata.ref"): span for span in receiver.spans}
    for operation in operations(crashed.timeline.records()):
        span = spans[operation.start.ref]
        assert span.name == operation.text
        assert span.start_time_unix_nano == operation.start.at_ns
        assert attributes(span)["strata.open"] == (operation.end is None)
        if operation.end is not None:
            assert span.end_time_unix_nano == operation.end.at_ns
    for step in crashed.kinds("StepFinished"):
        assert spans[step.ref].name == f"step {step.text('step')}"
        assert attributes(spans[step.ref])["strata.compute_s"] == step.get("compute_s")


def test_worker_spans_are_children_of_its_incarnation_in_the_tasks_trace(crashed, taken):
    receiver, _ = taken
    by_id = {span.span_id: span for span in receiver.spans}
    lives = [span for span in receiver.spans if not span.parent_span_id]
    assert sorted(span.name for span in lives) == sorted(
        f"{tally.node}, incarnation {tally.incarnation}" for tally in crashed.timeline.tallies()
    )
    assert len({span.trace_id for span in receiver.spans}) == 1
    for span in receiver.spans:
        if span.parent_span_id:
            parent = by_id[span.parent_span_id]
            assert parent in lives
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano


def test_message_arrival_is_linked_to_its_send(crashed, taken):
    receiver, _ = taken
    by_id = {span.span_id: span for span in receiver.spans}
    arrived = [span for span in receiver.spans if span.kind == Span.SPAN_KIND_CONSUMER]
    assert len(arrived) == len(crashed.kinds("MessageReceived", "MessageRejected"))
    linked = {span.span_id: [by_id[link.span_id] for link in span.links] for span in arrived}
    assert sum(map(len, linked.values())) > 0
    for span in arrived:
        for source in linked[span.span_id]:
            assert source.kind == Span.SPAN_KIND_PRODUCER
            assert source.parent_span_id != span.parent_span_id
            assert attributes(source)["strata.message"] == attributes(span)["strata.message"]


def test_facts_are_log_records_with_their_sentence(crashed, taken):
    receiver, _ = taken
    (lost,) = [log for log in receiver.logs if attributes(log)["event.name"] == "WorkerLost"]
    (fact,) = crashed.kinds("WorkerLost")
    assert attributes(lost)["strata.ref"] == fact.ref
    assert lost.time_unix_nano == fact.at_ns
    assert fact.text("worker") in lost.body.string_value


def test_window_of_a_run_has_the_trace_id_of_the_whole(crashed, taken):
    receiver, _ = taken
    extent = crashed.timeline.extent()
    middle = (extent.from_ns + extent.to_ns) // 2
    part = Receiver()
    with closing(part.socket), part.serving():
        otlp.send(crashed.timeline, part.address, middle, extent.to_ns)
    assert part.spans
    assert {span.trace_id for span in part.spans} == {span.trace_id for span in receiver.spans}


def test_unreachable_receiver_is_an_error(crashed):
    with pytest.raises(Unavailable):
        otlp.send(crashed.timeline, "http://127.0.0.1:1", 0, 2**62)
    with pytest.raises(InvalidArgument):
        otlp.send(crashed.timeline, "collector:4318", 0, 2**62)
