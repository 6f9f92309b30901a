"""Sessions of agents through a real gRPC client: registration, duties, exits, refusals."""

from queue import SimpleQueue

import httpx
import pytest

from strata.coordinator.sessions.unary_calls import SERVICE
from strata.core.events import Envelope
from strata.core.workers.exchange_facts import ConnectionChanged
from strata.core.workers.worker_facts import CODEC
from strata.sdk.record.spool import batch_message
from strata.store.event_batches import pack
from strata.store.event_store import Window
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator
from tests.coordinator.test_rpc import open_session


class Agent:
    """One stream."""

    def __init__(self, client: Client) -> None:
        self._outgoing = SimpleQueue()
        call = client.channel.stream_stream(
            f"/{SERVICE}/AgentSession",
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.AgentOrder.FromString,
        )
        self.call = call(iter(self._outgoing.get, None), timeout=20)

    def send(self, **body) -> None:
        self._outgoing.put(pb.AgentMessage(**body))

    def hello(self, name="a", slots=2, nonce="n") -> pb.AgentOrder:
        self.send(hello=pb.AgentHello(agent_id=name, hostname="h", slots=slots, nonce=nonce))
        return self.receive()

    def receive(self) -> pb.AgentOrder:
        return next(self.call)

    def exited(self, task, worker, start=1, code=1) -> None:
        self.send(exited=pb.ProcessExited(task_id=task, worker_id=worker, start=start, code=code))

    def next_order(self, kind):
        """The next order of this kind."""
        while (order := self.receive()).WhichOneof("body") != kind:
            pass
        return getattr(order, kind)


@pytest.fixture
def cluster(tmp_path):
    settings = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 1.0, "stop_grace_s": 7.0}
    with coordinator(tmp_path, **settings) as started:
        client = Client(started)
        yield client
        client.channel.close()


def submit(cluster, workers=2, **given):
    body = {"name": "t", "entry": "x.py", "worker_count": workers} | given
    answer = httpx.post(f"{cluster.coordinator.http_url}/api/tasks", json=body)
    return answer.raise_for_status().json()["task_id"]


def test_agent_receives_all_workers_it_has_to_run(cluster):
    agent = Agent(cluster)
    assert list(agent.hello().duties.jobs) == []
    given = {"args": ["-x"], "config": {"a": 1}, "env": {"KEY": "secret", "PWD": "/there"}}
    task = submit(cluster, **given)
    (job,) = agent.next_order("duties").jobs
    assert (job.task_id, job.entry, list(job.args), job.config) == (task, "x.py", ["-x"], '{"a":1}')
    assert (dict(job.environment), job.working_dir) == ({"KEY": "secret"}, "/there")
    assert (job.grace_ms, job.stopping, job.world_size) == (7000, False, 2)
    assert [(seat.worker_id, seat.start) for seat in job.seats] == [("t-1-w0", 1), ("t-1-w1", 1)]


def test_reconnected_agent_receives_the_same_workers(cluster):
    agent = Agent(cluster)
    agent.hello()
    submit(cluster)
    jobs = agent.next_order("duties").jobs
    agent.call.cancel()
    assert Agent(cluster).hello().duties.jobs == jobs


def test_second_agent_with_the_same_id_is_refused(cluster):
    Agent(cluster).hello()
    assert Agent(cluster).hello(nonce="other").refused.code == "already_exists"


@pytest.mark.parametrize(("name", "slots"), [("", 1), ("a", 0)])
def test_invalid_agent_hello_is_refused(cluster, name, slots):
    assert Agent(cluster).hello(name, slots).refused.code == "invalid_argument"


def test_first_message_must_be_agent_hello(cluster):
    agent = Agent(cluster)
    agent.send(beat=pb.AgentBeat())
    assert "AgentHello" in agent.receive().refused.message


def test_exit_is_acknowledged_and_worker_restarted(cluster):
    agent = Agent(cluster)
    agent.hello()
    task = submit(cluster, 1)
    agent.next_order("duties")
    agent.exited(task, "t-1-w0")
    kinds = {}
    while len(kinds) < 2:
        order = agent.receive()
        kind = order.WhichOneof("body")
        if kind != "duties" or order.duties.jobs[0].seats[0].start == 2:
            kinds[kind] = order
    stored = kinds["exit_stored"].exit_stored
    assert (stored.task_id, stored.worker_id, stored.start) == (task, "t-1-w0", 1)


def test_refused_exit_report_is_acknowledged(cluster):
    agent = Agent(cluster)
    agent.hello()
    agent.exited("no-such-task", "w")
    assert agent.next_order("exit_stored").task_id == "no-such-task"


def test_output_becomes_log_lines_of_the_worker(cluster):
    agent = Agent(cluster)
    agent.hello()
    lines = [pb.LogLine(level="error", message="it \ufffd broke", stream="stderr")]
    logs = pb.LogLines(lines=lines, dropped=7)
    agent.send(output=pb.ProcessOutput(task_id="t", worker_id="w", logs=logs))
    agent.exited("t", "w")
    agent.next_order("exit_stored")
    asked = {"worker_id": "w"}
    found = httpx.get(f"{cluster.coordinator.http_url}/api/logs", params=asked).json()
    assert [(each["level"], each["message"]) for each in found] == [
        ("warn", "7 lines were dropped: the process wrote too fast"),
        ("error", "it \ufffd broke"),
    ]


def test_agent_without_heartbeats_is_lost_and_fenced(cluster):
    agent = Agent(cluster)
    agent.hello()

    def up():
        (known,) = httpx.get(f"{cluster.coordinator.http_url}/api/agents").json()
        return known["up"]

    assert up()
    while up():
        pass
    agent.send(beat=pb.AgentBeat())
    assert agent.next_order("refused").code == "fenced"
    assert Agent(cluster).hello().WhichOneof("body") == "duties"
    assert up()


def test_heartbeat_updates_the_last_heartbeat_of_its_agent(cluster):
    agent = Agent(cluster)
    agent.hello()

    def last_heartbeat():
        (known,) = httpx.get(f"{cluster.coordinator.http_url}/api/agents").json()
        return known["last_heartbeat"]

    first = last_heartbeat()
    assert first > 0
    while last_heartbeat() == first:
        agent.send(beat=pb.AgentBeat())
    assert last_heartbeat() > first


def test_agent_receives_stopping_and_completed_tasks(cluster):
    agent = Agent(cluster)
    agent.hello()
    task = submit(cluster, 1)
    agent.next_order("duties")
    cluster.register("t-1-w0", task_id=task, start=1)
    httpx.post(f"{cluster.coordinator.http_url}/api/tasks/{task}/stop").raise_for_status()
    while not (jobs := agent.next_order("duties").jobs) or not jobs[0].stopping:
        pass
    cluster.DeregisterWorker(pb.DeregisterWorkerRequest(worker_id="t-1-w0"))
    while (duties := agent.next_order("duties")).jobs:
        pass
    assert list(duties.completed_task_ids) == []


def left(worker, incarnation, first, count=2):
    facts = [ConnectionChanged(peer="c", path="direct") for _ in range(count)]
    events = [Envelope(seq, seq + 1, seq + 1, fact) for seq, fact in enumerate(facts, first)]
    batch = pack(CODEC, worker, incarnation, events)
    return pb.LeftEvents(worker_id=worker, incarnation=incarnation, events=batch_message(batch))


def test_events_of_a_dead_worker_are_stored_once(cluster):
    worker = open_session(cluster, "w")
    incarnation = worker.next("standing").standing.incarnation
    worker.send(request=-1, events=left("w", incarnation, 0).events)
    assert worker.next("stored").stored.seq == 1
    worker.call.cancel()
    agent = Agent(cluster)
    agent.hello()
    for first in (0, 2, 2, 4):
        agent.send(left=left("w", incarnation, first))
        settled = agent.next_order("left_settled")
        assert (settled.worker_id, settled.incarnation) == ("w", incarnation)
        assert settled.first_seq == first
        assert not settled.HasField("refused")
    store = cluster.coordinator.engine.kernel.store
    assert [batch.first_seq for batch in store.batches(Window(node="w"))] == [0, 2, 4]
    assert store.gaps("w", incarnation) == []


def test_gap_in_events_of_a_dead_worker_stays(cluster):
    incarnation = cluster.register("w").incarnation
    agent = Agent(cluster)
    agent.hello()
    for first in (0, 6):
        agent.send(left=left("w", incarnation, first))
        agent.next_order("left_settled")
    assert cluster.coordinator.engine.kernel.store.gaps("w", incarnation) == [(2, 6)]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (left("nobody", 1, 0), "not_found"),
        (left("w", 99, 0), "not_found"),
        (left("w", 0, 0), "not_found"),
        (pb.LeftEvents(worker_id="w", incarnation=1), "invalid_argument"),
    ],
)
def test_events_of_an_unknown_incarnation_are_refused(cluster, message, code):
    cluster.register("w")
    agent = Agent(cluster)
    agent.hello()
    agent.send(left=message)
    assert agent.next_order("left_settled").refused.code == code


def test_resent_output_is_stored_once(cluster):
    agent = Agent(cluster)
    agent.hello()

    def write(sender, first, *texts, dropped=0):
        lines = [pb.LogLine(level="info", message=text, stream="stdout") for text in texts]
        logs = pb.LogLines(lines=lines, first=first, sender=sender, dropped=dropped)
        agent.send(output=pb.ProcessOutput(task_id="t", worker_id="w", logs=logs))
        return agent.next_order("output_taken").lines

    assert write("x", 1, "one", "two") == 2
    assert write("x", 1, "one", "two", "three") == 3
    assert write("x", 1, "one", "two") == 3
    assert write("x", 4, dropped=9) == 4
    assert write("x", 4, dropped=9) == 4
    assert write("x", 5, "four") == 5
    assert write("y", 1, "one of another") == 1
    assert write("", 0, "without a number") == 0
    assert write("", 0, "without a number") == 0
    url = f"{cluster.coordinator.http_url}/api/logs"
    entries = httpx.get(url, params={"worker_id": "w"}).json()
    assert [entry["message"] for entry in reversed(entries)] == [
        "one",
        "two",
        "three",
        "9 lines were dropped: the process wrote too fast",
        "four",
        "one of another",
        "without a number",
        "without a number",
    ]
