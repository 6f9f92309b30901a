"""Guards `logs` and `events`: their output, and that a follower sees every line once, also
across restarts of the coordinator."""

import json
import re
import signal
import subprocess

import pytest

from strata.cli.support.event_stream import StreamEvent, parse
from strata.cli.support.task_watch import recovered
from strata.wire.v1 import coordinator_pb2 as pb
from tests.cli.conftest import MAIN, Worker, environment, started_verb, until

AWAY = "the coordinator does not answer; trying again until it does"
BACK = "the coordinator answers again"
LINE = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d{3} (INFO |WARN |ERROR|DEBUG) (\S+) +(.*)")


@pytest.fixture
def worker(cluster):
    worker = Worker(cluster.client, "w0")
    yield worker
    worker.break_off()


def shown(ended):
    assert (ended.returncode, ended.stderr) == (0, "")
    return [match[4] for line in ended.stdout.splitlines() if (match := LINE.fullmatch(line))]


def messages(lines):
    return [json.loads(line)["message"] for line in lines]


def stored(cluster, count, of="worker_id=w0"):
    until(lambda: len(cluster.get(f"logs?limit=1000&{of}")) == count)


def test_lines_are_shown_oldest_first(cluster, worker):
    worker.log("one", "two")
    worker.log("three", level="error")
    stored(cluster, 3)
    ended = cluster.run("logs", "--worker", "w0")
    assert shown(ended) == ["one", "two", "three"]
    assert LINE.fullmatch(ended.stdout.splitlines()[2])[2] == "ERROR"
    assert shown(cluster.run("logs", "--worker", "w0", "--limit", "2")) == ["two", "three"]


def test_lines_are_chosen_by_level_source_task_and_search(cluster, worker):
    worker.log("loss=0.25", "Loss is nan (bad)", "saved")
    worker.log("out of memory", level="error")
    stored(cluster, 4)
    assert shown(cluster.run("logs", "--level", "warn", "--source", "worker")) == ["out of memory"]
    assert shown(cluster.run("logs", "--search", r"loss\W.*(\d|nan)")) == [
        "loss=0.25",
        "Loss is nan (bad)",
    ]
    assert shown(cluster.run("logs", "--search", "SAVED")) == ["saved"]
    assert shown(cluster.run("logs", "--task", "default-1", "--search", r"\(bad\)$")) == [
        "Loss is nan (bad)"
    ]
    assert cluster.run("logs", "--worker", "nobody").stdout.splitlines() == [
        "no log lines match",
        "next: strata logs -f",
    ]


def test_search_continues_over_pages(cluster, worker):
    worker.log("needle: 7")
    for _ in range(3):
        worker.log(*["hay"] * 500)
    until(lambda: int(cluster.http.get("/api/logs").headers["X-Total-Count"]) >= 1501)
    assert shown(cluster.run("logs", "--search", r"needle: \d")) == ["needle: 7"]


def test_log_message_cannot_control_the_terminal(cluster, worker):
    worker.log("a\x1b]0;owned\x07\x9b2J\r\nsecond\tline")
    stored(cluster, 1)
    ended = cluster.run("logs", "--worker", "w0")
    assert ended.stdout.splitlines()[0].endswith("a\\x1b]0;owned\\x07\\x9b2J\\x0d")
    assert ended.stdout.splitlines()[1].startswith("    second")
    printed = cluster.run("logs", "--worker", "w0", "--json").stdout
    assert messages([printed]) == ["a\x1b]0;owned\x07\x9b2J\r\nsecond\tline"]
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(ended.stdout + printed)


def test_following_logs_ends_quietly_with_ctrl_c(cluster, worker):
    worker.log("before")
    stored(cluster, 1)
    with cluster.start("logs", "-f", "--worker", "w0", "--json") as verb:
        verb.wait_for(lambda verb: messages(verb.out) == ["before"], "line from before")
        worker.log("after")
        verb.wait_for(lambda verb: messages(verb.out) == ["before", "after"], "new line")
        code = verb.end(signal.SIGINT)
    assert (code, verb.err) == (0, [])


def test_following_logs_of_a_pattern(cluster, worker):
    worker.log("keep 0")
    stored(cluster, 1)
    with cluster.start("logs", "-f", "--search", "^keep", "--json") as verb:
        verb.wait_for(lambda verb: messages(verb.out) == ["keep 0"], "line from before")
        worker.log("keep 1", "drop", "keep 2")
        expected = ["keep 0", "keep 1", "keep 2"]
        verb.wait_for(lambda verb: messages(verb.out) == expected, "matching lines")


def test_closed_pipe_ends_the_verb_quietly(cluster, worker):
    worker.log(*map(str, range(1000)))
    stored(cluster, 1000)
    verb = " ".join(["logs", "--limit", "1000", "--url", cluster.url])
    main = f'{MAIN[0]} -c "from strata.cli import main; main()"'
    ended = subprocess.run(
        f"{main} {verb} | head -n 1", shell=True, capture_output=True, text=True, env=environment()
    )
    assert len(ended.stdout.splitlines()) == 1
    assert ended.stderr == ""


def kinds(lines):
    return [json.loads(line)["kind"] for line in lines]


def test_facts_from_a_position(cluster, worker):
    everything = cluster.run("events", "--json").stdout.splitlines()
    assert kinds(everything)[0] == "CoordinatorStarted"
    assert [json.loads(line)["position"] for line in everything] == list(range(len(everything)))
    some = cluster.run("events", "--from", "1", "--limit", "2", "--json")
    assert some.stdout.splitlines() == everything[1:3]
    assert json.loads(some.stderr) == {"note": "more facts: strata events --from 3"}
    newest = cluster.run("events", "--limit", "2", "--json")
    assert newest.stdout.splitlines() == everything[-2:]


def test_facts_of_a_kind(cluster, worker):
    for number in range(3):
        cluster.client.register(f"x{number}")
    ended = cluster.run("events", "--kind", "WorkerRegistered", "--limit", "2")
    assert [line.split()[2:4] for line in ended.stdout.splitlines()] == [
        ["WorkerRegistered", "worker=x1"],
        ["WorkerRegistered", "worker=x2"],
    ]
    both = ["--kind", "CoordinatorStarted", "--kind", "TaskSubmitted"]
    found = cluster.run("events", *both, "--json").stdout.splitlines()
    assert kinds(found) == ["CoordinatorStarted", "TaskSubmitted"]
    assert cluster.run("events", "--kind", "LimitHit").stdout.splitlines() == [
        "no facts match",
        "next: strata events",
    ]


def test_following_facts(cluster, worker):
    wanted = ["--kind", "WorkerRegistered", "--json"]
    with cluster.start("events", "-f", *wanted) as verb:
        verb.wait_for(lambda verb: len(verb.out) == 1, "fact from before")
        cluster.client.register("later")
        verb.wait_for(lambda verb: len(verb.out) == 2, "new fact")
        assert json.loads(verb.out[1])["fields"]["worker"] == "later"
        code = verb.end(signal.SIGINT)
    assert (code, verb.err) == (0, [])


def notes(verb):
    """The notes on stderr of a verb with `--json`."""
    return [json.loads(line)["note"] for line in verb.err]


def test_following_logs_survives_a_killed_coordinator(up):
    up.start()
    first = Worker(up.client(), "w0")
    with started_verb(
        "logs", "-f", "--source", "worker", "--json", "--url", up.url, cwd=up.folder
    ) as verb:
        first.log("one", "two")
        verb.wait_for(lambda verb: messages(verb.out) == ["one", "two"], "lines")
        up.kill()
        verb.wait_for(lambda verb: notes(verb) == [AWAY], "word of the outage")
        up.start()
        verb.wait_for(lambda verb: notes(verb)[1:] == [BACK], "connection")
        second = Worker(up.client(), "w1")
        second.log("three")
        expected = ["one", "two", "three"]
        verb.wait_for(lambda verb: messages(verb.out) == expected, "line of the next coordinator")
        code = verb.end(signal.SIGINT)
    assert code == 0


def test_follower_gets_every_line_once_after_a_long_disconnect(up):
    up.start()
    first = Worker(up.client(), "w0")
    with started_verb(
        "logs", "-f", "--source", "worker", "--json", "--url", up.url, cwd=up.folder
    ) as verb:
        first.log("before")
        verb.wait_for(lambda verb: messages(verb.out) == ["before"], "line")
        verb.process.send_signal(signal.SIGSTOP)
        up.kill()
        up.start()
        second = Worker(up.client(), "w1")
        for start in range(0, 2500, 500):
            second.log(*(f"line {number}" for number in range(start, start + 500)))
        second.send(beat=pb.Beat(sent_mono_ns=1))
        while next(second.call).WhichOneof("body") != "pulse":
            pass  # what was sent before the beat has been taken in
        verb.process.send_signal(signal.SIGCONT)
        expected = ["before", *(f"line {number}" for number in range(2500))]
        verb.wait_for(lambda verb: len(verb.out) >= len(expected), "missed lines")
        second.log("after")
        verb.wait_for(lambda verb: messages(verb.out[-1:]) == ["after"], "new line")
    assert messages(verb.out) == [*expected, "after"]


def test_following_facts_survives_a_killed_coordinator(up):
    up.start()
    with started_verb(
        "events", "-f", "--from", "0", "--json", "--url", up.url, cwd=up.folder
    ) as verb:
        up.client().register("w0")
        verb.wait_for(lambda verb: "WorkerRegistered" in kinds(verb.out), "fact")
        up.kill()
        up.start()
        verb.wait_for(lambda verb: kinds(verb.out).count("CoordinatorStarted") == 2, "fact")
        assert notes(verb) == [AWAY, BACK]
        verb.end(signal.SIGINT)
    positions = [json.loads(line)["position"] for line in verb.out]
    assert positions == list(range(len(positions)))


def test_ctrl_c_while_reconnecting(up):
    up.start()
    with started_verb("logs", "-f", "--url", up.url, cwd=up.folder) as verb:
        worker = Worker(up.client(), "w0")
        worker.log("hello")
        verb.wait_for(lambda verb: any("hello" in line for line in verb.out), "line")
        up.kill()
        verb.wait_for(lambda verb: verb.err == [f"{AWAY}\n"], "word of the outage")
        assert verb.end(signal.SIGINT) == 0
    assert verb.err == [f"{AWAY}\n"]


def test_stream_parser_yields_events():
    stream = (
        b"retry: 2000\n\n: still here\n\nid: 1\ndata: a\n\nid: 2\n\n"
        b"event: skipped\r\ndata:b\r\n\r\nid: 3\ndata: cut off"
    )
    assert list(parse(stream.splitlines(keepends=True))) == [
        StreamEvent("message", "1", b"a"),
        StreamEvent("message", "2"),
        StreamEvent("skipped", "", b"b"),
    ]


def test_generation_that_starts_from_step_0_names_no_source():
    """A wrapped script starts from the beginning in each generation, at step 0 of its worker."""
    assert recovered({"generation": 2, "step": 0, "source": "peer"}) == (
        "generation 2 starts from step 0"
    )
    assert recovered({"generation": 3, "step": 7, "source": "peer"}) == (
        "generation 3 continues from step 7 (peer)"
    )
