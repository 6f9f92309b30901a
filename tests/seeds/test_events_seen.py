"""Guards that one real run records each event that observability asks for, with sensible values.

Three processes under `strata run` train by gossip on samples in S3 and save to S3. One of them is
killed and takes its model from a peer; then all are killed and go on from a checkpoint.
"""

import io
import math

import numpy as np
import pytest

import strata
from strata.storage.s3 import S3Storage
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.read.sentences import sentence
from tests.cli.runs import run, script
from tests.storage.server import BUCKET, running
from tests.timeline.test_sentences import objection

TRAINING = """
import os, signal, time
from pathlib import Path
import numpy as np
import strata

os.environ["STRATA_PROGRESS_INTERVAL_S"] = "0.000001"

def once(what):
    if Path(what).exists():
        return False
    Path(what).touch()
    return True

def kill(name):
    os.kill(int(Path(f"pid-{name}").read_text()), signal.SIGKILL)

with strata.join(checkpoint_every=6, resource_interval=0.2) as run:
    Path(f"pid-{run.worker_id}").write_text(str(os.getpid()))
    weights = {"w": np.zeros(100_000)}
    local = strata.LocalSteps(run, weights, steps=2)
    state = run.restore({"weights": weights, "outer": local})
    samples = strata.open_dataset(os.environ["SAMPLES"], name="samples")
    for batch in run.batches(samples, global_batch=12, epochs=3):
        if run.steps == 10 and run.rank == 1 and once("lost-one"):
            kill(run.worker_id)
        if run.steps == 40 and run.rank == 0 and once("lost-all"):
            others = [f"{run.task_id}-w{number}" for number in range(3)]
            for name in sorted(others, key=run.worker_id.__eq__):
                kill(name)
        with run.step() as step, local.round(batch) as parts:
            for part in parts:
                weights["w"] += 0.01 * len(part["x"])
            step.log(loss=1.0 / (run.steps + 1))
    run.barrier("end")
"""

FILES, ROWS, WIDTH = 4, 60, 64
FILE_BYTES = ROWS * WIDTH * 8 + 128


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The timeline of the run."""
    folder = tmp_path_factory.mktemp("seen")
    with running(tmp_path_factory.mktemp("s3")) as settings:
        bucket = S3Storage(BUCKET, "samples", settings)
        for number in range(FILES):
            held = io.BytesIO()
            np.save(held, np.full((ROWS, WIDTH), float(number)))
            bucket.put(f"x-{number}.npy", held.getvalue())
        environment = {
            "AWS_ENDPOINT_URL": settings.aws_endpoint_url,
            "AWS_REGION": settings.aws_region,
            "AWS_ACCESS_KEY_ID": settings.aws_access_key_id,
            "AWS_SECRET_ACCESS_KEY": settings.aws_secret_access_key,
            "STRATA_CHECKPOINT_DIR": f"s3://{BUCKET}/runs",
            "STRATA_DATA_CACHE_DIR": str(folder / "cache"),
            "SAMPLES": bucket.url,
        }
        name = script(folder, TRAINING)
        arguments = ("--workers", "3", "--data-dir", str(folder / "data"))
        waits = ("--env", "STRATA_CHECKPOINT_WHEN_BUSY=wait")
        code, told = run(folder, name, *arguments, *waits, **environment)
        assert code == 0, told
    with open_timeline(folder / "data") as timeline:
        yield timeline


def of(timeline, kind):
    """The records of a kind; there are some."""
    found = list(timeline.records(kinds={kind}))
    assert found, f"no {kind} was recorded"
    return found


def process(record):
    """The process that recorded it."""
    return record.node, record.incarnation


def operation(record):
    """What pairs the start, the progress and the end of one operation."""
    return *process(record), record.event.op


def ended_well(timeline, name, *tags):
    """The starts of an operation, by operation; each end has its start, the same tags, no error.

    A file that another process of the host has fetched was never started here.
    """
    started = of(timeline, f"{name}Started")
    starts = {operation(each): each for each in started}
    assert len(starts) == len(started), "each operation has an id of its own"
    ends = [each for each in of(timeline, f"{name}Completed") if not each.get("shared")]
    for end in ends:
        start = starts[operation(end)]
        assert start.at_ns <= end.at_ns
        assert [start.get(tag) for tag in tags] == [end.get(tag) for tag in tags]
        assert end.get("ok") is (end.get("error") == "")
    assert any(end.get("ok") for end in ends)
    return starts


def progressed(timeline, name, starts):
    """Progress belongs to an operation that was started, and never exceeds its size."""
    for each in of(timeline, f"{name}Progress"):
        size = starts[operation(each)].get("size_bytes")
        assert 0 <= each.get("done_bytes") <= (size or math.inf)


def test_run_start_names_process_settings_and_release(seen):
    starts = of(seen, "RunStarted")
    assert len(starts) >= 7, "three processes, one replacement, and three after the loss of all"
    for each in starts:
        assert each.text("worker") == each.node
        assert each.get("incarnation") == each.incarnation
        assert each.text("release") == strata.__version__
        assert each.text("task") == "script-1"
        assert each.get("pid") > 0
        assert each.text("hostname")
        assert each.text("role")
        assert each.get("parameters")["world_size"] == "3"
    assert len({each.text("parameters_hash") for each in starts}) == 1, "all were asked the same"


def test_run_end_says_how_and_after_how_many_steps(seen):
    ends = of(seen, "RunEnded")
    assert {(each.text("outcome"), each.get("steps")) for each in ends} == {("done", 60)}
    assert {each.node for each in ends} == {f"script-1-w{number}" for number in range(3)}


def test_coordinator_state_is_seen_as_it_changes(seen):
    generations = {}
    for each in of(seen, "CoordinatorStateSeen"):
        generation = each.get("generation")
        assert generation >= generations.get(process(each), 0)
        generations[process(each)] = generation
        assert each.get("rank") < max(each.get("world_size"), 1)
    changed = [each.get("generation") for each in of(seen, "GenerationChanged")]
    assert max(generations.values()) == max(changed)


def test_request_is_recorded_with_its_answer(seen):
    asked = {operation(each): each for each in of(seen, "RequestSubmitted")}
    for each in of(seen, "RequestCompleted"):
        request = asked[operation(each)]
        assert request.text("type") == each.text("type")
        assert request.text("barrier") == each.text("barrier")
        assert each.get("ok") is (each.text("error") == "")
    assert {"enter", "arrive", "attach"} <= {each.text("type") for each in asked.values()}


def test_connections_and_neighbors_follow_the_losses(seen):
    workers = {f"script-1-w{number}" for number in range(3)}
    for each in of(seen, "NeighborsChanged"):
        assert set(each.get("added")) | set(each.get("removed")) <= workers - {each.node}
        assert each.get("added") or each.get("removed")
    paths = of(seen, "ConnectionChanged")
    assert {each.text("path") for each in paths} >= {"direct"}
    assert all(each.text("peer") for each in paths)


def test_peer_latency_is_a_measured_time(seen):
    for each in of(seen, "PeerLatencyChanged"):
        assert 0 < each.get("latency_s") < 60
        assert each.text("peer") != each.node


def test_blob_is_traced_from_its_author_to_its_receiver(seen):
    held = {(each.node, each.text("blob")) for each in of(seen, "BlobAdded")}
    fetched = ended_well(seen, "BlobDownload", "blob", "source")
    progressed(seen, "BlobDownload", fetched)
    for start in fetched.values():
        assert (start.text("source"), start.text("blob")) in held
        assert start.get("size_bytes") > 0
        assert start.get("attempt") >= 1
    given = ended_well(seen, "BlobUpload", "blob", "to")
    progressed(seen, "BlobUpload", given)
    sent = {(each.node, each.text("to"), each.text("blob")) for each in given.values()}
    got = {(each.text("source"), each.node, each.text("blob")) for each in fetched.values()}
    assert got <= sent


def test_message_is_traced_from_its_sender_to_its_receiver(seen):
    sent = {
        (each.node, *each.get("to"), each.text("message")): each for each in of(seen, "MessageSent")
    }
    for each in of(seen, "MessageReceived"):
        told = sent[each.text("sender"), each.node, each.text("message")]
        for field in ("type", "size_bytes", "blob", "batch"):
            assert told.get(field) == each.get(field)
        assert told.get("size_bytes") > 0
        assert told.text("batch").startswith("samples/")


def test_assignment_and_training_of_a_batch_are_recorded(seen):
    assert {each.text("dataset") for each in of(seen, "BatchesAssigned")} == {"samples"}
    begun = {(*process(each), each.text("batch")): each for each in of(seen, "TrainingStarted")}
    for each in of(seen, "TrainingFinished"):
        start = begun[*process(each), each.text("batch")]
        assert start.at_ns <= each.at_ns
        assert each.text("batch") == f"samples/{each.get('step')}"
        assert each.get("loss") == pytest.approx(1 / (each.get("step") + 1))
        assert start.get("samples") == each.get("samples") > 0


def test_batch_download_has_size_progress_and_end(seen):
    fetched = ended_well(seen, "BatchDownload", "batch")
    assert {each.get("size_bytes") for each in fetched.values()} == {FILE_BYTES}
    assert all(each.text("batch").startswith("samples/") for each in fetched.values())
    progressed(seen, "BatchDownload", fetched)


def test_results_of_peers_are_decoded_and_applied(seen):
    decoded = ended_well(seen, "ResultDeserialize", "batch")
    progressed(seen, "ResultDeserialize", decoded)
    assert {each.text("batch") for each in decoded.values()} >= {"samples/0", "samples/59"}
    applied = of(seen, "ResultsApplied")
    assert {each.get("step") for each in applied} == set(range(60))
    assert all(each.get("batches") for each in applied)


def test_replacement_loads_the_model_from_a_peer(seen):
    workers = {f"script-1-w{number}" for number in range(3)}
    asked = [each for each in of(seen, "ParametersRequested") if each.get("ok")]
    assert {each.text("peer") for each in asked} <= workers
    assert all(each.text("peer") != each.node and not each.text("error") for each in asked)
    loads = ended_well(seen, "ModelLoad", "checkpoint")
    progressed(seen, "ModelLoad", loads)


def test_checkpoint_download_after_the_loss_of_all(seen):
    committed = {each.text("checkpoint") for each in of(seen, "CheckpointCommitted")}
    fetched = ended_well(seen, "CheckpointDownload", "checkpoint")
    assert {each.text("checkpoint") for each in fetched.values()} <= committed
    assert all(each.get("size_bytes") > 0 for each in fetched.values())
    progressed(seen, "CheckpointDownload", fetched)


def test_checkpoint_is_copied_and_uploaded(seen):
    copies = ended_well(seen, "ModelSerialization", "checkpoint")
    progressed(seen, "ModelSerialization", copies)
    uploads = ended_well(seen, "CheckpointUpload", "checkpoint")
    assert all(each.get("size_bytes") > 100_000 for each in uploads.values())
    progressed(seen, "CheckpointUpload", uploads)
    parts = {each.text("checkpoint") for each in of(seen, "CheckpointPartAcked")}
    assert parts <= {each.text("checkpoint") for each in uploads.values()}


def test_resource_snapshots_are_measured(seen):
    totals = {}
    for each in of(seen, "ResourceSnapshot"):
        assert each.get("memory_used_bytes") > 1_000_000
        assert each.get("disk_free_bytes") > 0
        assert each.get("cpu_percent") >= 0
        counted = [each.get(f"{what}_bytes") for what in ("disk_write", "network_rx", "network_tx")]
        assert all(a <= b for a, b in zip(totals.get(process(each), [0] * 3), counted, strict=True))
        totals[process(each)] = counted
    assert {node for node, _ in totals} == {f"script-1-w{number}" for number in range(3)}


def test_events_of_a_process_are_numbered_without_gaps(seen):
    numbers = {}
    for each in seen.records():
        numbers.setdefault(process(each), []).append(each.event.seq)
        assert each.event.wall_ns > 0
        assert each.event.mono_ns > 0
    for (node, _), found in numbers.items():
        if node != "coordinator":
            assert sorted(found) == list(range(len(found)))


def test_every_event_of_the_run_reads_well(seen):
    for each in seen.records():
        text = sentence(each)
        for quoted in filter(None, map(each.text, ("reason", "error", "message"))):
            text = text.replace(quoted, "something")
        assert objection(text) == "", sentence(each)
