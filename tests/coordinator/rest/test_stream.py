"""Streams of facts and log lines: in order, resumable, filtered, bounded; slow readers do not
affect others, dead ones are closed."""

import json
import socket
import threading
import tracemalloc

import pytest

from strata.coordinator.logs.log_entries import LogLine
from strata.coordinator.rest.request_checks import HttpLimits
from strata.core.datasets.dataset_rules import RegisterDataset
from strata.core.state import DatasetSpec
from tests.coordinator.rest.served import Coordinator, wait_for


class Reader:
    """Reads server-sent events from an open response."""

    def __init__(self, answer):
        self.lines = answer.iter_lines()

    def blocks(self):
        """Each event or comment as its fields; a comment's field is empty."""
        fields = {}
        for line in self.lines:
            if line:
                name, _, value = line.partition(": " if not line.startswith(":") else ":")
                fields[name] = value
            elif fields:
                yield fields
                fields = {}

    def events(self):
        return (block for block in self.blocks() if "data" in block)

    def take(self, count):
        events = self.events()
        return [next(events) for _ in range(count)]


def stream(client, path="/api/stream", **options):
    return client.stream("GET", path, **options)


def register(number, size=1):
    spec = DatasetSpec(total_samples=10, shard_size=1, metadata={"text": "x" * size})
    return RegisterDataset(dataset=f"d{number}", spec=spec)


def ids(events):
    return [int(event["id"]) for event in events]


def test_facts_are_streamed_as_they_are_recorded(coordinator, client):
    start = coordinator.position()
    with stream(client) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        reader = Reader(answer)
        wait_for(lambda: coordinator.guard.admission.open_streams == 1)
        coordinator.submit(register(1))
        [event] = reader.take(1)
        coordinator.submit(register(2))
        [following] = reader.take(1)
    fact = json.loads(event["data"])
    assert (fact["position"], fact["kind"]) == (start, "DatasetRegistered")
    assert fact["fields"]["dataset"] == "d1"
    assert ids([event, following]) == [start, start + 1]


def test_stream_resumes_after_last_event_id(coordinator, client):
    coordinator.submit(*(register(number) for number in range(20)))
    with stream(client, params={"position": 0}) as answer:
        first = ids(Reader(answer).take(7))
    headers = {"Last-Event-ID": str(first[-1])}
    with stream(client, params={"position": 0}, headers=headers) as answer:
        rest = ids(Reader(answer).take(coordinator.position() - 7))
    assert first + rest == list(range(coordinator.position()))


def test_stream_resumes_across_a_restart(tmp_path):
    with Coordinator(tmp_path) as coordinator, coordinator.client() as client:
        coordinator.submit(register(1))
        with stream(client, params={"position": 0}) as answer:
            seen = ids(Reader(answer).take(2))
    headers = {"Last-Event-ID": str(seen[-1])}
    with (
        Coordinator(tmp_path) as coordinator,
        coordinator.client() as client,
        stream(client, headers=headers) as answer,
    ):
        [event] = Reader(answer).take(1)
    assert json.loads(event["data"])["kind"] == "CoordinatorStarted"
    assert int(event["id"]) == seen[-1] + 1


def test_stream_is_filtered_by_kind(coordinator, client):
    coordinator.train(2)
    with stream(client, params={"position": 0, "kinds": "WorkerRegistered"}) as answer:
        events = Reader(answer).take(2)
    assert {json.loads(event["data"])["kind"] for event in events} == {"WorkerRegistered"}


@pytest.mark.parametrize("params", [{"position": 10**6}, {"position": -1}, {"kinds": "Nonsense"}])
def test_invalid_stream_request_is_refused(client, params):
    answer = client.get("/api/stream", params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_argument"


def test_stream_heartbeat_updates_the_position(tmp_path):
    limits = HttpLimits(heartbeat_s=0.05)
    with Coordinator(tmp_path, limits=limits) as coordinator, coordinator.client() as client:
        coordinator.train(2)
        with stream(client, params={"position": 0, "kinds": "LimitHit"}) as answer:
            blocks = Reader(answer).blocks()
            assert next(blocks) == {"retry": "2000"}
            assert next(blocks) == {"id": str(coordinator.position() - 1)}
            assert next(blocks) == {"": " still here"}


def test_log_lines_are_streamed(coordinator, client):
    coordinator.logs.extend([LogLine("info", "old"), LogLine("debug", "quiet")])
    with stream(client, "/api/logs/stream", params={"level": "info"}) as answer:
        reader = Reader(answer)
        [old] = reader.take(1)
        coordinator.logs.extend([LogLine("debug", "quiet"), LogLine("error", "new\nline")])
        [new] = reader.take(1)
    assert json.loads(old["data"])["message"] == "old"
    assert json.loads(new["data"])["message"] == "new\nline"
    with stream(client, "/api/logs/stream", headers={"Last-Event-ID": old["id"]}) as answer:
        messages = [json.loads(event["data"])["message"] for event in Reader(answer).take(3)]
    assert messages == ["quiet", "quiet", "new\nline"]


def test_number_of_streams_is_bounded(tmp_path):
    limits = HttpLimits(streams=2)
    with Coordinator(tmp_path, limits=limits) as coordinator, coordinator.client() as client:
        with stream(client), stream(client, "/api/logs/stream"):
            answer = client.get("/api/stream")
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "overloaded"
            assert int(answer.headers["Retry-After"]) >= 1
        wait_for(lambda: coordinator.guard.admission.open_streams == 0, "the end of the streams")
        with stream(client) as answer:
            assert answer.status_code == 200


def test_open_streams_end_when_the_coordinator_stops(tmp_path):
    with Coordinator(tmp_path) as coordinator:
        client = coordinator.client()
        opened = threading.Event()
        ended = threading.Event()

        def read():
            with stream(client) as answer:
                opened.set()
                for _ in answer.iter_bytes():
                    pass
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert opened.wait(10)
    assert ended.wait(10), "the stream was cut, not ended"
    reader.join()
    client.close()


def raw_stream(coordinator, position=0):
    """A connection that requests the stream and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", coordinator.port))
    request = f"GET /api/stream?position={position} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection.sendall(request.encode())
    return connection


FACTS = 6_000
FACT_BYTES = 2_000
SLOW_READERS = 10


def record(coordinator, first, count):
    coordinator.submit(*(register(number, FACT_BYTES) for number in range(first, first + count)))


def test_slow_readers_do_not_affect_others(tmp_path):
    with Coordinator(tmp_path) as coordinator, coordinator.client() as client:
        slow = [raw_stream(coordinator) for _ in range(SLOW_READERS)]
        wait_for(lambda: coordinator.guard.admission.open_streams == SLOW_READERS)
        with stream(client, params={"position": 0}) as answer:
            quick = Reader(answer).events()
            seen = 0
            tracemalloc.start()
            for first in range(0, FACTS, 500):
                record(coordinator, first, 500)
                while seen < coordinator.position():
                    assert int(next(quick)["id"]) == seen
                    seen += 1
            _, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        # Memory for the state and for data in transit, but not for each reader.
        assert peak_bytes < 4 * FACTS * FACT_BYTES
        for connection in slow:
            assert read_all(connection, seen) == list(range(seen))
            connection.close()


def read_all(connection, count):
    """The first positions on a raw connection."""
    seen = []
    with connection.makefile("rb") as lines:
        while len(seen) < count:
            line = lines.readline()
            if line.startswith(b"id: "):
                seen.append(int(line[4:]))
    return seen


def test_reader_that_does_not_read_is_closed(tmp_path):
    limits = HttpLimits(stall_timeout_s=0.2, writes_burst=10**6)
    with Coordinator(tmp_path, limits=limits) as coordinator:
        dead = raw_stream(coordinator)
        wait_for(lambda: coordinator.guard.admission.open_streams == 1)
        for first in range(0, FACTS, 500):
            record(coordinator, first, 500)
        streams = coordinator.guard.admission
        wait_for(lambda: streams.open_streams == 0, "the end of the dead stream")
        dead.close()
