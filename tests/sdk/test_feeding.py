"""`run.batches`: each sample is trained once per epoch, even if workers join and leave.

Each test checks two sources at the end: the model, which counts how often each sample was applied,
and the audit, which reads the record.
"""

import signal
from pathlib import Path

import httpx
import numpy as np
import pytest

import strata
from strata.errors import InvalidArgument
from strata.sdk.data.loop_source import checked_epochs
from strata.storage.s3 import S3Storage
from strata.store.event_store import Window
from tests.data import corpora
from tests.sdk.harness import until
from tests.storage.server import BUCKET, running

LEARNER = Path(__file__).with_name("learner.py")
SAMPLES = 403  # not a multiple of the batch: an epoch ends inside a step


@pytest.fixture
def learners(hub, trainees):
    """Start learners on the dataset `numbers`: `learners(2, total=…)`, or one by its name."""
    body = {"dataset_id": "numbers", "total_samples": SAMPLES, "shard_size": 50, "seed": 7}
    httpx.post(f"{hub.running.http_url}/api/datasets", json=body).raise_for_status()

    def start(*names, scene="learn", **given):
        return [
            trainees(hub.address, scene, script=LEARNER, worker_id=name, **given) for name in names
        ]

    return start


def audited(hub, killed=(), task="default-1", steps=1):
    """Wait for the audit until all records are stored and `steps` steps are committed.

    A killed worker loses the events that it had not packed: only its last steps are unproven.
    """
    url = f"{hub.running.http_url}/api/tasks/{task}/audit"

    def settled():
        found = httpx.get(url, timeout=20).raise_for_status().json()
        findings = [finding for feed in found["feeds"] for finding in feed["findings"]]
        silent = {each["worker"] for each in findings}
        return found if silent <= set(killed) and found["committed"] >= steps else None

    found = until(settled, what="the audit")
    assert found["verdict"] == "proven" or (killed and found["verdict"] == "unproven")
    return found


def own_samples(workers):
    """How often each sample was in an applied step of any worker."""
    own = [row for worker in workers for said in worker.said for row in said.get("own", ())]
    return np.bincount(own, minlength=SAMPLES)


def assert_once_per_epoch(hub, done, epochs, **told):
    """Check that each sample was trained once per epoch; the last step may wrap around."""
    applied = np.array(done["applied"])
    tail = -epochs * SAMPLES % 8
    assert sorted(set(applied)) == ([epochs, epochs + 1] if tail else [epochs])
    assert int(applied.sum()) == epochs * SAMPLES + tail
    found = audited(hub, steps=(epochs * SAMPLES + tail) // 8, **told)
    counted = found["feeds"][0]["epochs"]
    assert [each["once"] + each["unproven"] for each in counted[:epochs]] == [SAMPLES] * epochs
    assert sum(each["missing"] + each["twice"] for each in counted) == 0
    return found


def test_each_sample_is_trained_once_per_epoch(hub, learners):
    pair = learners("a", "b", world_size=2, total=SAMPLES, epochs=2)
    done = [each.says("done") for each in pair]
    assert [each.ends() for each in pair] == [0, 0]
    assert done[0]["applied"] == done[1]["applied"]
    found = assert_once_per_epoch(hub, done[0], epochs=2)
    assert own_samples(pair).tolist() == done[0]["applied"]
    assert {each["worker"] for each in found["feeds"][0]["workers"]} == {"a", "b"}
    assert hub.state.tasks["default-1"].state == "completed"


def test_each_worker_records_its_assigned_batches(hub, learners):
    pair = learners("a", "b", world_size=2, total=SAMPLES, epochs=1)
    assert [each.ends() for each in pair] == [0, 0]
    batches = -(-SAMPLES // 8)
    assigned = [told(hub, "BatchesAssigned", node)[-1] for node in "ab"]
    for each in assigned:
        assert (each["first_batch"], each["last_batch"]) == ("numbers/0", f"numbers/{batches - 1}")
        assert (each["batches"], each["global_batch"]) == (batches, 8)
        assert each["samples"] == len(each["lanes"]) * 8 // each["lane_count"]
    assert sum(each["samples"] for each in assigned) == 8
    asked = {"subject": f"batch:numbers/{batches - 1}"}
    entries = httpx.get(f"{hub.running.http_url}/api/timeline/story", params=asked).json()
    due = [each["node"] for each in entries["entries"] if each["kind"] == "BatchesAssigned"]
    assert sorted(due) == ["a", "b"]
    texts = {each["text"] for each in entries["entries"] if each["kind"] == "BatchesAssigned"}
    assert texts == {
        f"was assigned 4 samples of each batch of numbers from numbers/0 to numbers/{batches - 1}, "
        "starting at step 0"
    }


def test_assigned_trainer_of_an_untrained_batch_is_known(hub, learners):
    asked = {"name": "t", "worker_count": 2, "policy": "replace"}
    task = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).json()["task_id"]
    pair = learners("a", "b", task=task, total=SAMPLES, epochs=1_000, step_s=0.01)
    until(lambda: task in hub.state.tasks and hub.state.tasks[task].committed, what="a commit")
    pair[1].signal(signal.SIGKILL)
    until(lambda: hub.state.tasks[task].phase == "forming", what="the loss of b")
    step = hub.state.tasks[task].committed  # nobody trains it before b is replaced
    url = f"{hub.running.http_url}/api/tasks/{task}/audit/batch"
    found = httpx.get(url, params={"batch": f"numbers/{step}"}).json()
    assert not found["counts"]
    assert {each["worker"]: each["samples"] for each in found["expected"]} == {"a": 4, "b": 4}
    ahead = httpx.get(url, params={"batch": f"numbers/{step + 40}"}).json()
    assert not ahead["counts"]
    assert [each["progress"] for each in ahead["expected"]] == ["not recorded"] * 2
    early = until(lambda: applied_by_a(url, "numbers/0"), what="a's record of step 0")
    assert early["counts"]
    assert [each["worker"] for each in early["expected"]] == ["a", "b"]
    assert httpx.get(url, params={"batch": "other/0"}).status_code == 404
    assert httpx.get(url, params={"batch": "numbers"}).status_code == 400


def applied_by_a(url, batch):
    """The API's view of a batch, once worker a has recorded that it applied it."""
    found = httpx.get(url, params={"batch": batch}).json()
    return found if found["expected"][0]["progress"] == "applied" else None


def test_worker_killed_in_mid_epoch_loses_no_sample(hub, learners):
    asked = {"name": "t", "worker_count": 3, "policy": "continue"}
    task = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).json()["task_id"]
    crew = learners("a", "b", "c", task=task, total=SAMPLES, epochs=2, step_s=0.01)
    crew[1].says("step", count=20)
    crew[1].signal(signal.SIGKILL)
    done = [crew[n].says("done") for n in (0, 2)]
    assert [crew[n].ends() for n in (0, 2)] == [0, 0]
    found = assert_once_per_epoch(hub, done[0], epochs=2, killed="b", task=task)
    assert (done[0]["world_size"], found["attempts"]) == (2, 1)
    assert done[0]["applied"] == done[1]["applied"]
    assert {each["worker"] for each in found["feeds"][0]["workers"]} == {"a", "b", "c"}


def test_worker_killed_before_the_others_open_their_loop_does_not_block_them(
    hub, learners, tmp_path
):
    asked = {"name": "t", "worker_count": 2, "policy": "replace"}
    task = httpx.post(f"{hub.running.http_url}/api/tasks", json=asked).json()["task_id"]
    given = {"task": task, "total": SAMPLES, "after": str(tmp_path / "begin")}
    first, second = learners("a", "b", **given)
    second.says("joined")
    second.signal(signal.SIGKILL)
    until(lambda: hub.state.tasks[task].generation == 2, what="the loss")
    (tmp_path / "begin").touch()
    (third,) = learners("c", **given)
    done = [first.says("done"), third.says("done")]
    assert done[0]["applied"] == done[1]["applied"]
    assert_once_per_epoch(hub, done[0], epochs=1, task=task)


def test_new_worker_gets_lanes_in_mid_epoch(hub, learners):
    (first,) = learners("first", total=SAMPLES, epochs=2, crowd=2)
    first.says("step", count=3)
    (second,) = learners("second", total=SAMPLES, epochs=2)
    begun = second.says("step")
    assert begun["steps"] > 3
    assert 0 < len(begun["own"]) < 8
    done = [first.says("done"), second.says("done")]
    assert done[0]["applied"] == done[1]["applied"]
    assert_once_per_epoch(hub, done[1], epochs=2)


def test_stop_ends_the_loop_between_two_batches(hub, learners):
    pair = learners("a", "b", world_size=2, total=SAMPLES, epochs=1_000, step_s=0.01)
    for each in pair:
        each.says("step", count=10)
    hub.stop_task("default-1")
    assert [each.ends() for each in pair] == [0, 0]
    assert hub.state.tasks["default-1"].state == "stopped"
    audited(hub)


def test_order_is_the_same_after_all_workers_are_lost(hub, learners):
    how = {"total": SAMPLES, "epochs": 2, "step_s": 0.01, "save_at": 10}
    pair = learners("a", "b", world_size=2, **how)
    until(lambda: hub.facts("CheckpointCommitted"), what="a checkpoint")
    until(lambda: hub.state.tasks["default-1"].committed > 15, what="a few steps more")
    for each in pair:
        each.signal(signal.SIGKILL)
    until(lambda: not hub.state.tasks["default-1"].members, what="the loss of everyone")
    heirs = learners("c", "d", task="default-1", **how)
    begun = heirs[0].says("joined")
    assert (begun["attempt"], begun["steps"]) == (2, 10)
    found = assert_once_per_epoch(hub, heirs[0].says("done"), epochs=2, killed="ab")
    (voided,) = found["voided"]
    assert (found["attempts"], voided["first"]) == (2, 10)
    replayed = samples_by_step(heirs)
    trained = samples_by_step(pair)
    both = {step for step in replayed.keys() & trained.keys() if len(trained[step]) == 8}
    assert both, "steps that both of the first pair had said before they were killed"
    assert all(replayed[step] == trained[step] for step in both)


def samples_by_step(workers):
    found: dict[int, set[int]] = {}
    for worker in workers:
        for said in worker.said:
            if said["say"] == "step":
                found.setdefault(said["steps"], set()).update(said["own"])
    return found


def test_lanes_of_a_straggler_move_without_losing_a_sample(hub, learners):
    how = {"total": SAMPLES, "epochs": 4, "world_size": 2, "how": {"rebalance": True}}
    fast, slow = learners("fast", sample_s=0.002, **how) + learners("slow", sample_s=0.02, **how)
    done = slow.says("done", timeout_s=90)
    assert [fast.ends(), slow.ends()] == [0, 0]
    assert_once_per_epoch(hub, done, epochs=4)
    (measured, *_) = hub.facts("PaceMeasured")
    assert measured.reason.startswith("worker slow takes")
    assert len(hub.state.tasks["default-1"].feeds["numbers"].holdings["slow"]) == 1
    assert len([s for s in slow.said if s["say"] == "step"][-1]["own"]) == 1


def test_second_batch_without_a_step_is_an_error(learners):
    (worker,) = learners("a", scene="forget_to_step")
    refused = worker.says("refused")
    assert refused["code"] == "not_allowed_now"
    assert "step 0" in refused["message"]
    assert "run.step()" in refused["hint"]


def test_workers_with_different_batch_sizes_are_refused(learners):
    pair = learners("a", scene="ask", world_size=2)
    pair += learners("b", scene="ask", world_size=2, global_batch=16)
    assert [each.ends() for each in pair] == [0, 0]
    (refused,) = (said for each in pair for said in each.said if said["say"] == "refused")
    assert refused["code"] == "already_exists"
    assert "asks for something else" in refused["message"]


def test_mixture_keeps_its_weights(hub, learners):
    pair = learners("a", "b", scene="mix", world_size=2, first=500, second=900, steps=50)
    found = sum(each.says("done")["found"] for each in pair)
    assert abs(found - 1_500) < 60
    audited(hub)


@pytest.fixture
def damaged(tmp_path):
    """A JSONL file with two damaged lines."""
    lines = [f'{{"x": {n}}}' for n in range(240)]
    lines[117] = lines[153] = '{"x": '
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_damage_ends_training_with_file_and_row(learners, damaged):
    (worker,) = learners("a", scene="read", path=str(damaged))
    refused = worker.says("refused")
    assert refused["code"] == "corrupt"
    assert "dataset 'files', file rows.jsonl, row" in refused["message"]


@pytest.mark.parametrize("processes", [None, 2])
def test_damage_that_is_skipped_is_recorded_and_audited(hub, learners, damaged, processes):
    if processes is not None:
        pytest.importorskip("torch")
    how = {"path": str(damaged), "on_error": "skip", "processes": processes}
    (worker,) = learners("a", scene="read", **how)
    assert worker.says("done")["rows"] == 238
    assert worker.ends() == 0
    assert audited(hub)["feeds"][0]["skipped"] == 2
    told = [message for level, message in hub.lines("a") if level == "warn"]
    assert sorted(line.partition("row ")[2][:3] for line in told) == ["117", "153"]


@pytest.mark.parametrize("processes", [0, 2])
def test_data_loader_follows_the_membership_in_mid_epoch(hub, learners, tmp_path, processes):
    pytest.importorskip("torch")
    np.save(tmp_path / "x.npy", np.arange(SAMPLES))
    how = {"scene": "load", "path": str(tmp_path / "x.npy"), "processes": processes}
    (first,) = learners("a", **how)
    first.says("step")
    (second,) = learners("b", task="default-1", **how)
    until(lambda: second.says("done") and first.says("done"), what="both")
    assert [first.ends(), second.ends()] == [0, 0]
    assert len({said["generation"] for said in first.said if said["say"] == "step"}) > 1
    assert (own_samples([first, second]) >= 1).all()
    audited(hub)


def write_bins(folder, count):
    folder.mkdir()
    for part in range(4):
        np.arange(16 * count // 4, dtype=np.uint16).tofile(folder / f"{part}.bin")


SETS = {
    "npy": (corpora.write_npy, {}),
    "tokens": (write_bins, {"length": 16}),
    "jsonl": (corpora.write_jsonl, {}),
    "parquet": (corpora.write_parquet, {"cache_bytes": 0}),
    "arrow": (lambda *given: corpora.write_parquet(*given, ".arrow"), {"cache_bytes": 0}),
    "webdataset": (corpora.write_tar, {}),
    "mds": (corpora.write_mds, {}),
    "imagefolder": (corpora.write_images, {}),
}


@pytest.mark.parametrize("kind", sorted(SETS))
def test_file_that_breaks_in_mid_epoch_is_skipped_and_recorded(hub, learners, tmp_path, kind):
    write, options = SETS[kind]
    write(tmp_path / "set", 120)
    files = sorted(f for f in (tmp_path / "set").rglob("*") if f.is_file() and f.suffix != ".json")
    how = {"path": str(tmp_path / "set"), "victim": str(files[1]), "options": options}
    (worker,) = learners("a", scene="crack", on_error="skip", **how)
    done = worker.says("done")
    assert worker.ends() == 0
    skipped = told(hub, "SampleSkipped")
    assert {Path(fact["file"]).name for fact in skipped} == {files[1].name}
    assert done["rows"] == 120 - len(skipped)
    assert audited(hub)["feeds"][0]["skipped"] == len({fact["row"] for fact in skipped})


def test_preview_shows_the_samples_in_training(hub, learners):
    learners("a", total=SAMPLES, epochs=1_000, step_s=0.02)
    url = f"{hub.running.http_url}/api/datasets/numbers/preview"
    (sample, *_) = until(lambda: httpx.get(url).json(), what="a preview")
    assert sample["worker_id"] == "a"
    assert sample["features"] == {"index": int(sample["id"])}
    shards = httpx.get(f"{hub.running.http_url}/api/datasets/numbers/shards").json()
    shard = shards[sample["shard_id"]]
    assert shard["start_index"] <= sample["place"] < shard["end_index"]
    assert shard["worker_id"] == "a"


def test_preview_of_a_torch_dataset_shows_the_collated_samples(hub, spool):
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8))
    url = f"{hub.running.http_url}/api/datasets/pairs/preview"
    found = []
    with strata.join(hub.address, "a", world_size=1, spool_dir=spool) as run:
        for _ in run.loader(pairs, batch_size=4, epochs=100_000, name="pairs"):
            with run.step():
                found = httpx.get(url).json()
            if found:
                break
    for sample in found:
        number = int(sample["id"])
        assert sample["features"]["1"] == number
        assert sample["features"]["0"]["values"] == [float(number)]


def test_stream_without_a_known_length_has_no_progress_in_percent(hub, spool):
    torch = pytest.importorskip("torch")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(64.0))

    found = []
    with strata.join(hub.address, "a", world_size=1, spool_dir=spool) as run:
        for _ in run.loader(Stream(), batch_size=4, epochs=2, name="stream"):
            with run.step():
                found.append(httpx.get(f"{hub.running.http_url}/api/tasks/default-1").json())
    assert {each["progress"] for each in found} == {None}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A bucket on an S3 server, set in the environment of this process and its workers."""
    with running(tmp_path / "s3") as settings:
        monkeypatch.setenv("AWS_ENDPOINT_URL", settings.aws_endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", settings.aws_access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", settings.aws_secret_access_key)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        yield S3Storage(BUCKET, "rows", settings)


def put_arrays(bucket, tmp_path):
    for shard in range(4):
        file = tmp_path / f"x-{shard}.npy"
        np.save(file, np.zeros((20, 8)))
        bucket.put(file.name, file.read_bytes())


@pytest.mark.parametrize("processes", [None, 0, 2])
def test_downloads_are_recorded_for_the_batch_they_are_for(
    hub, learners, bucket, tmp_path, processes
):
    put_arrays(bucket, tmp_path)
    (worker,) = learners("a", scene="read", path=bucket.url, processes=processes)
    assert worker.says("done")["rows"] == 80
    assert worker.ends() == 0
    completed = told(hub, "BatchDownloadCompleted")
    fetched = [fact for fact in completed if not fact.get("shared")]
    assert sorted(fact["source"] for fact in fetched) == [
        f"{bucket.url}/x-{shard}.npy" for shard in range(4)
    ]
    assert {fact["done_bytes"] for fact in fetched} == {20 * 8 * 8 + 128}
    assert all(fact["took_s"] > 0 and fact["queued_s"] >= 0 for fact in fetched)
    steps = {f"files/{step}" for step in range(10)}
    assert all(fact["ok"] and fact["batch"] in steps for fact in completed)
    if not processes:
        requested, started = told(hub, "BatchDownloadRequested"), told(hub, "BatchDownloadStarted")
        assert len(requested) == len(started) == 4
        assert {fact["size_bytes"] for fact in started} == {20 * 8 * 8 + 128}
        progress = told(hub, "BatchDownloadProgress")
        assert {fact["done_bytes"] for fact in progress} == {20 * 8 * 8 + 128}
    audited(hub)


def test_files_that_are_scanned_to_open_a_dataset_are_recorded_as_data(hub, learners, bucket):
    rows = b'{"text": "%s"}\n' % (b"x" * 1_000)
    bucket.put("rows.jsonl", rows * 4_000)
    (worker,) = learners("a", scene="read_once", path=bucket.url)
    done = worker.says("done")
    assert worker.ends() == 0
    (fetched,) = told(hub, "BatchDownloadCompleted")
    assert (fetched.get("batch", ""), fetched["dataset"]) == ("", "files")
    assert fetched["done_bytes"] == len(rows) * 4_000
    (opened,) = told(hub, "DatasetOpenCompleted")
    assert (opened["ok"], opened["samples"], opened["source"]) == (True, 4_000, bucket.url)
    assert opened["took_s"] >= fetched["took_s"]
    (step,) = told(hub, "StepFinished")
    assert step["data_s"] >= opened["took_s"]
    assert step["data_s"] + step["compute_s"] <= done["elapsed_s"]


def told(hub, kind, node="a"):
    wanted = Window(node=node, kinds=frozenset({kind}))
    return [event.body.fields for _, _, event in hub.store.query(wanted, limit=100)]


@pytest.mark.parametrize("epochs", [0, -1, 1.5, float("nan"), "2"])
def test_epochs_are_counted_from_one(epochs):
    assert (checked_epochs(None), checked_epochs(3)) == (0, 3)
    with pytest.raises(InvalidArgument, match="epochs="):
        checked_epochs(epochs)
