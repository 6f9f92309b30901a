"""Guards the agents' stream as any client sees it: who is let in, what is told, what is refused."""

from queue import SimpleQueue

import httpx
import pytest

from strata.coordinator.rpc import SERVICE
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import Client, coordinator


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
        return self.hear()

    def hear(self) -> pb.AgentOrder:
        return next(self.call)

    def exited(self, task, worker, start=1, code=1) -> None:
        self.send(exited=pb.ProcessExited(task_id=task, worker_id=worker, start=start, code=code))

    def hears(self, kind):
        """The next order of a kind."""
        while (order := self.hear()).WhichOneof("body") != kind:
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


def test_an_agent_is_told_all_that_it_has_to_run(cluster):
    agent = Agent(cluster)
    assert list(agent.hello().duties.jobs) == []
    given = {"args": ["-x"], "config": {"a": 1}, "env": {"KEY": "secret", "PWD": "/there"}}
    task = submit(cluster, **given)
    (job,) = agent.hears("duties").jobs
    assert (job.task_id, job.entry, list(job.args), job.config) == (task, "x.py", ["-x"], '{"a":1}')
    assert (dict(job.environment), job.working_dir) == ({"KEY": "secret"}, "/there")
    assert (job.grace_ms, job.stopping, job.world_size) == (7000, False, 2)
    assert [(seat.worker_id, seat.start) for seat in job.seats] == [("t-1-w0", 1), ("t-1-w1", 1)]


def test_the_same_agent_again_is_told_the_same(cluster):
    agent = Agent(cluster)
    agent.hello()
    submit(cluster)
    told = agent.hears("duties").jobs
    agent.call.cancel()
    assert Agent(cluster).hello().duties.jobs == told


def test_another_agent_of_the_same_name_is_refused_while_that_one_lives(cluster):
    Agent(cluster).hello()
    assert Agent(cluster).hello(nonce="other").refused.code == "already_exists"


@pytest.mark.parametrize(("name", "slots"), [("", 1), ("a", 0)])
def test_what_makes_no_sense_is_refused(cluster, name, slots):
    assert Agent(cluster).hello(name, slots).refused.code == "invalid_argument"


def test_the_first_message_says_who_it_is(cluster):
    agent = Agent(cluster)
    agent.send(beat=pb.AgentBeat())
    assert "AgentHello" in agent.hear().refused.message


def test_an_exit_is_acknowledged_and_the_worker_started_again(cluster):
    agent = Agent(cluster)
    agent.hello()
    task = submit(cluster, 1)
    agent.hears("duties")
    agent.exited(task, "t-1-w0")
    kinds = {}
    while len(kinds) < 2:
        order = agent.hear()
        kind = order.WhichOneof("body")
        if kind != "duties" or order.duties.jobs[0].seats[0].start == 2:
            kinds[kind] = order
    stored = kinds["exit_stored"].exit_stored
    assert (stored.task_id, stored.worker_id, stored.start) == (task, "t-1-w0", 1)


def test_an_exit_that_nobody_can_use_is_acknowledged_too(cluster):
    agent = Agent(cluster)
    agent.hello()
    agent.exited("no-such-task", "w")
    assert agent.hears("exit_stored").task_id == "no-such-task"


def test_output_becomes_log_lines_of_the_worker(cluster):
    agent = Agent(cluster)
    agent.hello()
    lines = [pb.LogLine(level="error", message="it \ufffd broke", stream="stderr")]
    logs = pb.LogLines(lines=lines, dropped=7)
    agent.send(output=pb.ProcessOutput(task_id="t", worker_id="w", logs=logs))
    agent.exited("t", "w")
    agent.hears("exit_stored")
    asked = {"worker_id": "w"}
    found = httpx.get(f"{cluster.coordinator.http_url}/api/logs", params=asked).json()
    assert [(each["level"], each["message"]) for each in found] == [
        ("warn", "7 lines were dropped: it wrote too fast"),
        ("error", "it \ufffd broke"),
    ]


def test_an_agent_that_falls_silent_is_lost_and_its_next_beat_is_refused(cluster):
    agent = Agent(cluster)
    agent.hello()

    def up():
        (known,) = httpx.get(f"{cluster.coordinator.http_url}/api/agents").json()
        return known["up"]

    assert up()
    while up():
        pass
    agent.send(beat=pb.AgentBeat())
    assert agent.hears("refused").code == "fenced"
    assert Agent(cluster).hello().WhichOneof("body") == "duties"
    assert up()


def test_a_task_that_stops_or_completes_is_told_as_such(cluster):
    agent = Agent(cluster)
    agent.hello()
    task = submit(cluster, 1)
    agent.hears("duties")
    cluster.register("t-1-w0", task_id=task, start=1)
    httpx.post(f"{cluster.coordinator.http_url}/api/tasks/{task}/stop").raise_for_status()
    while not (jobs := agent.hears("duties").jobs) or not jobs[0].stopping:
        pass
    cluster.DeregisterWorker(pb.DeregisterWorkerRequest(worker_id="t-1-w0"))
    while (duties := agent.hears("duties")).jobs:
        pass
    assert list(duties.completed_task_ids) == []
