"""Guards the verbs that list and summarize: a real coordinator with real workers, and the real
command as a process."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from strata.wire.v1 import coordinator_pb2 as pb
from tests.agent.harness import Agent
from tests.cli.conftest import WAIT_S, Worker, serving, until

LISTS = ["agents", "hosts", "workers", "tasks", "barriers", "datasets", "checkpoints"]


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """An agent; three workers, one of them lost; a dataset, two checkpoints, an open barrier."""
    with serving(tmp_path_factory.mktemp("busy")) as cluster:
        agent = agent_of(cluster)
        members = make_busy(cluster)
        yield cluster
        for member in members:
            member.break_off()
        agent.close()


def agent_of(cluster):
    """A registered agent with three slots, in its own process."""
    agent = Agent(cluster.folder, f"127.0.0.1:{cluster.running.grpc_port}", slots=3, name="host-a")
    until(lambda: cluster.get("agents"))
    return agent


def make_busy(cluster):
    client = cluster.client
    members = [Worker(client, f"w{n}", hostname=f"node-{n}", gpu_count=8) for n in range(3)]
    used = pb.ResourceMetrics(cpu_percent=97.3, memory_used_bytes=3_200_000_000)
    members[0].send(
        beat=pb.Beat(state=pb.WORKER_STATE_TRAINING, step=1234, epoch=2, resources=used)
    )
    client.RegisterDataset(
        pb.RegisterDatasetRequest(
            dataset_id="imagenet", total_samples=1_281_167, shard_size=10_000, shuffle=True, seed=42
        )
    )
    for member in members:
        saved = {"worker_id": member.name, "step": 1000, "size_bytes": 1_500_000_000}
        client.NotifyCheckpoint(pb.NotifyCheckpointRequest(checkpoint_id="c-1000", **saved))
    begun = pb.NotifyCheckpointRequest(worker_id="w0", checkpoint_id="c-2000", step=2000)
    client.NotifyCheckpoint(begun)
    members[2].break_off()
    until(lambda: cluster.get("workers?status=failed"))
    members[0].send(request=1, arrive=pb.Arrive(barrier_id="epoch-end", arrival=1))
    until(lambda: cluster.get("barriers") and cluster.get("workers?status=active"))
    return members


def lines_of(ended):
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def row(ended, name):
    """The cells of the row that begins with a text."""
    [line] = [line for line in lines_of(ended) if line.startswith(name)]
    return line.split()


def test_workers(busy):
    ended = busy.run("workers")
    assert row(ended, "worker ")[:3] == ["worker", "status", "rank"]
    assert row(ended, "w0")[:5] == ["w0", "●", "active", "0", "1,234"]
    assert "97 %" in ended.stdout
    assert "3.2 GB" in ended.stdout
    assert row(ended, "w2")[:4] == ["w2", "✗", "failed", "–"]
    assert "✗ w2: its connection broke" in ended.stdout


def test_workers_are_filtered_by_status(busy):
    [line] = lines_of(busy.run("workers", "--status", "failed", "--json"))
    assert json.loads(line)["id"] == "w2"
    assert lines_of(busy.run("workers", "--status", "recovering")) == [
        "no workers match",
        "next: strata workers",
    ]


def test_agents_show_state_slots_and_host(busy):
    ended = busy.run("agents")
    assert row(ended, "agent ")[:4] == ["agent", "status", "slots", "used"]
    assert row(ended, "host-a")[:5] == ["host-a", "●", "up", "3", "0"]
    assert "heartbeat" in row(ended, "agent ")
    [line] = lines_of(busy.run("agents", "--json"))
    known = json.loads(line)
    assert known["last_heartbeat"] >= known["registered_at"] > 0


def test_lost_agent_shows_its_reason(cluster):
    agent_of(cluster).close()
    lost = {"reason": "the node was removed"}
    until(lambda: cluster.http.post("/api/agents/host-a/lost", json=lost).is_success)
    ended = cluster.run("agents")
    assert row(ended, "host-a ")[:3] == ["host-a", "✗", "lost"]
    assert "✗ host-a: the node was removed" in ended.stdout


def test_tasks(busy):
    assert row(busy.run("tasks"), "default")[:5] == ["default-1", "●", "running", "2", "1,000"]


def test_barriers_name_the_missing(busy):
    cells = row(busy.run("barriers"), "epoch-end")
    assert cells[1:4] == ["◔", "waiting", "1/2"]
    assert cells[-1] == "w1"


def test_released_barrier(cluster):
    for worker in "ab":
        cluster.client.register(worker)
    with ThreadPoolExecutor(2) as pool:
        waits = [pb.WaitBarrierRequest(worker_id=w, barrier_id="init") for w in "ab"]
        assert all(done.released for done in pool.map(cluster.client.WaitBarrier, waits))
    assert row(cluster.run("barriers", "--status", "released"), "init")[1:4] == [
        "✓",
        "released",
        "2/2",
    ]


def test_datasets(busy):
    cells = row(busy.run("datasets"), "imagenet")
    assert cells[1:6] == ["1,281,167", "129", "10,000", "seed", "42"]


def test_preview_shows_the_samples_in_progress(cluster):
    named = {"dataset_id": "two words", "total_samples": 10, "shard_size": 5}
    cluster.client.RegisterDataset(pb.RegisterDatasetRequest(**named))
    assert (
        "no worker processes samples of two words now" in cluster.run("preview", "two words").stdout
    )
    values = {"kind": "array", "dtype": "uint16", "shape": [65], "values": list(range(32))}
    image = {"kind": "image", "width": 640, "height": 480, "png": ""}
    features = {"text": "hello", "x": values, "image": image}
    sample = {"id": "7", "features": features, "label": None, "shard_id": 1, "step": 1200}
    worker = Worker(cluster.client, "w0")
    samples = json.dumps([sample])
    worker.send(preview=pb.Preview(dataset_id="two words", samples=samples))
    until(lambda: cluster.get("datasets/two%20words/preview"))
    shown = " ".join(row(cluster.run("preview", "two words"), "w0"))
    assert shown.startswith("w0 1,200 1 7 – text: hello; x: uint16[65] 0, 1, 2")
    assert json.loads(cluster.run("preview", "two words", "--json").stdout)["features"] == features
    worker.break_off()
    refused = cluster.run("preview", "nope")
    assert (refused.returncode, "'nope' is not registered" in refused.stderr) == (4, True)


def test_checkpoint_is_pinned_and_the_list_says_so(busy):
    pinned = busy.run("checkpoints", "pin", "c-1000", "--note", "for the paper")
    assert "c-1000 is pinned" in pinned.stdout, pinned.stderr
    shown = row(busy.run("checkpoints"), "c-1000")
    assert " ".join(shown).endswith("ago"), shown
    assert "newest, pinned: for" in " ".join(shown)
    assert "newest, pinned: for the paper" in busy.run("checkpoints", "show", "c-1000").stdout
    refused = busy.run("checkpoints", "rm", "c-1000")
    assert "is pinned: for the paper" in refused.stderr
    assert "checkpoints unpin c-1000" in refused.stderr
    assert "c-1000 is still kept: newest" in busy.run("checkpoints", "unpin", "c-1000").stdout


def test_checkpoints_newest_first_with_why_one_failed(busy):
    ended = busy.run("checkpoints")
    assert [line.split()[0] for line in lines_of(ended)[:3]] == ["checkpoint", "c-2000", "c-1000"]
    assert row(ended, "c-1000")[1:6] == ["✓", "completed", "1,000", "4.5", "GB"]
    assert "✗ c-2000: its generation ended: worker w2 was lost" in ended.stdout


def test_status(busy):
    ended = busy.run("status")
    assert lines_of(ended)[0].startswith("● strata ")
    assert busy.url in ended.stdout
    assert row(ended, "workers")[1:] == ["●", "1", "active", "○", "1", "idle", "✗", "1", "failed"]
    assert row(ended, "barriers")[1:] == ["◔", "1", "waiting"]
    assert row(ended, "checkpoints")[1:6] == ["2,", "newest", "at", "step", "1,000,"]


def test_status_as_json_is_one_document_of_fixed_parts(busy):
    document = json.loads(busy.run("status", "--json").stdout)
    assert list(document) == ["coordinator", "totals", "metrics", "attention"]
    assert document["totals"]["workers_by_status"]["failed"] == 1
    assert document["coordinator"]["connected"] is True


@pytest.mark.parametrize("verb", LISTS)
def test_json_is_what_the_api_answers_one_item_a_line(busy, verb):
    printed = [json.loads(line) for line in lines_of(busy.run(verb, "--json"))]
    answered = busy.get(verb)
    assert [each.keys() for each in printed] == [each.keys() for each in answered]
    assert [each["id"] for each in printed] == [each["id"] for each in answered]


@pytest.mark.parametrize("verb", LISTS)
@pytest.mark.parametrize("columns", ["80", "120"])
def test_every_row_is_one_line_that_fits(busy, verb, columns):
    table, _, _ = busy.run(verb, COLUMNS=columns).stdout.partition("\n\n")
    rows = table.splitlines()
    assert max(map(len, rows)) <= int(columns)
    assert len(rows) == 1 + len(busy.get(verb))


@pytest.mark.parametrize("verb", ["workers", "tasks", "status"])
def test_empty_cluster_shows_the_command_to_join(cluster, verb):
    ended = cluster.run(verb)
    port = cluster.running.grpc_port
    assert lines_of(ended)[-1] == f"next: COORDINATOR_ADDR=127.0.0.1:{port} python train.py"


@pytest.mark.parametrize("verb", LISTS)
def test_empty_list_suggests_a_command_and_prints_no_json(cluster, verb):
    assert lines_of(cluster.run(verb))[-1].startswith("next: ")
    assert lines_of(cluster.run(verb, "--json")) == []


def test_cut_list_prints_a_note_to_stderr(cluster):
    for number in range(5):
        cluster.client.register(f"w{number}")
    ended = cluster.run("workers", "--limit", "2", "--json")
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == ["w0", "w1"]
    assert json.loads(ended.stderr) == {"note": "2 of 5 shown; --limit 5 shows all"}


def test_long_list_is_read_page_by_page(cluster):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(cluster.client.register, (f"w{number}" for number in range(1500))))
    names = [
        json.loads(line)["id"]
        for line in lines_of(cluster.run("workers", "--json", "--limit", "2000"))
    ]
    assert names == [f"w{number}" for number in range(1500)]


def test_names_cannot_control_the_terminal(cluster):
    cluster.client.register("w", hostname="evil\x1b[2J\x9b31m\nhost")
    shown = cluster.run("workers", COLUMNS="200").stdout
    assert "evil\\x1b[2J\\x9b31m host" in shown
    printed = cluster.run("workers", "--json").stdout
    assert not {"\x1b", "\x9b"} & set(shown + printed)
    assert json.loads(printed)["hostname"] == "evil\x1b[2J\x9b31m\nhost"


def test_colour_is_printed_only_on_terminals(busy):
    assert "\x1b[" not in busy.run("workers").stdout
    assert "\x1b[32m● active" in busy.run("workers", FORCE_COLOR="1", TERM="xterm").stdout


def test_terminal_without_unicode_gets_question_marks(busy):
    ended = busy.run("workers", PYTHONIOENCODING="ascii")
    assert row(ended, "w0")[1:3] == ["?", "active"]


def test_status_imports_nothing_slow(cluster):
    """It takes 0.3 s, most of which is imports; each of these packages would double that."""
    listing = "import atexit, sys; atexit.register(lambda: print(*sys.modules))"
    command = [sys.executable, "-c", f"{listing}; from strata.cli import main; main()"]
    command += ["status", "--url", cluster.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    modules = set(ended.stdout.splitlines()[-1].split())
    assert "strata.cli" in modules
    slow = {"duckdb", "grpc", "litestar", "numpy", "obstore", "pyarrow", "torch", "uvicorn"}
    assert modules & slow == set()
