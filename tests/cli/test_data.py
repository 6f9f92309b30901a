"""Guards the output and exit codes of `strata dataset add` and `strata audit`."""

import json
import sqlite3

import httpx
import numpy as np
import pytest

from strata.core.record.event_codec import CODEC
from strata.data.source_dataset import open_dataset
from strata.store.sqlite import SqliteStore
from tests.cli.conftest import serving, strata
from tests.timeline.fleet import Fleet


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


def test_dataset_is_added_by_its_path(cluster, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1_500, 3)))
    added = cluster.run("dataset", "add", "zeros", str(tmp_path / "x.npy"))
    assert (added.returncode, added.stdout) == (0, "✓ zeros: 1,500 samples in 750 shards of npy\n")
    again = cluster.run("dataset", "add", "zeros", str(tmp_path / "x.npy"), "--json")
    assert json.loads(again.stdout)["total_samples"] == 1_500
    other = cluster.run("dataset", "add", "zeros", str(tmp_path / "x.npy"), "--seed", "1")
    assert other.returncode == 7
    assert "seed was 42 and is now 1" in other.stderr


def test_dataset_options_reach_the_format(cluster, tmp_path):
    np.arange(10_000, dtype=np.uint16).tofile(tmp_path / "x.bin")
    path = str(tmp_path / "x.bin")
    added = cluster.run("dataset", "add", "told", path, "--option", "length=100")
    assert added.stdout == "✓ told: 100 samples in 100 shards of tokens\n"
    refused = cluster.run("dataset", "add", "untold", path)
    assert (refused.returncode, "length" in refused.stderr) == (2, True)
    body = {"dataset_id": "rest", "path": path, "format": "tokens"}
    options = {"metadata": {"format_options": '{"length": 50}'}}
    answer = httpx.post(f"{cluster.url}/api/datasets", json=body | options).raise_for_status()
    assert answer.json()["total_samples"] == 200
    for wrong in ("[]", '{"name": "x"}', '{"lenght": 3}'):
        metadata = {"format_options": wrong}
        answer = httpx.post(f"{cluster.url}/api/datasets", json=body | {"metadata": metadata})
        assert answer.status_code == 400, answer.text


def test_dataset_is_added_by_its_sizes(cluster):
    added = cluster.run("dataset", "add", "sizes", "--samples", "100", "--shard-size", "7")
    assert added.stdout == "✓ sizes: 100 samples in 15 shards\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "/no/such/folder"), "/no/such/folder does not exist"),
        (("a/b", "--samples", "3", "--shard-size", "1"), "use no /"),
        (("none", "--samples", "0", "--shard-size", "1"), "total_samples is 0"),
        (("few", "--samples", "3", "--shard-size", "9"), "shard_size 9 is above"),
        (("odd", "/etc/hostname", "--format", "csv"), "unknown format 'csv'"),
        (("told", "/etc/hostname", "--option", "length"), "'length' is not KEY=VALUE"),
        (("told", "/etc/hostname", "--option", "name=x"), "name is not an option of a format"),
    ],
)
def test_invalid_dataset_arguments_are_errors(cluster, arguments, words):
    refused = cluster.run("dataset", "add", *arguments)
    assert refused.returncode == (4 if arguments[0] == "nowhere" else 2)
    assert words in " ".join(refused.stderr.split())


def recorded(folder, data=None, **how):
    """Write the log of a small training run; returns its task."""
    folder.mkdir(exist_ok=True)
    store = SqliteStore(folder / "log.db", CODEC)
    fleet = Fleet(3, samples=60, batch=12, store=store, data=data)
    fleet.train(3)
    fleet.train(2, **how)
    store.close()
    return fleet.task


PROVEN = "every worker recorded its samples of all 5 applied steps, and they match"


@pytest.mark.parametrize(
    ("how", "code", "words", "counts"),
    [
        ({}, 0, f"✓ audit proven  default-1: {PROVEN}", "60 samples once, 0 missing, 0 twice\n"),
        (
            {"silent": ["w1"]},
            3,
            "w1 has no record of its samples in steps 3 to 4 of d",
            "52 samples once, 0 missing, 0 twice, 8 unproven",
        ),
        (
            {"unfinished": ["w1"]},
            3,
            "w1 got its samples but did not record that it applied them in steps 3 to 4",
            "52 samples once, 0 missing, 0 twice, 8 unproven",
        ),
        (
            {"wrong": ["w2"]},
            1,
            "✗ audit broken  default-1: in 2 applied steps a worker's record contradicts the order",
            "52 samples once, 0 missing, 0 twice, 8 unproven",
        ),
    ],
)
def test_audit_of_a_log_says_its_verdict_and_ends_with_its_code(tmp_path, how, code, words, counts):
    task = recorded(tmp_path, **how)
    ended = strata("audit", task, "--data", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stdout
    assert f"d: {counts}" in ended.stdout


def test_audit_reports_samples_of_a_left_loop(tmp_path):
    store = SqliteStore(tmp_path / "log.db", CODEC)
    fleet = Fleet(2, batch=12, loops=True, store=store)
    for epoch in range(2):
        fleet.loop(f"0.{epoch}.0", loop_epochs=1)
        fleet.train(3)
    store.close()
    ended = strata("audit", fleet.task, "--data", str(tmp_path), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "24 not trained (the loop was left early)" in ended.stdout


def test_exit_codes_of_the_audit_are_in_its_help(tmp_path):
    help_text = " ".join(strata("audit", "--help", cwd=tmp_path).stdout.split())
    for words in (
        "Exit code 0, proven",
        "1, broken",
        "3, unproven",
        "Other codes: the audit failed",
    ):
        assert words in help_text


def test_damaged_record_makes_the_audit_unproven_and_is_named(tmp_path):
    task = recorded(tmp_path / "data")
    flip_a_bit(tmp_path / "data" / "log.db", "w1", first_seq=3)
    with serving(tmp_path) as cluster:
        answered = cluster.run("audit", task)
    read = strata("audit", task, "--data", str(tmp_path / "data"), cwd=tmp_path)
    for ended in (answered, read):
        assert ended.returncode == 3, ended.stderr
        assert "damaged: events 3 to 5 of w1 (incarnation 2)" in ended.stdout
        assert "w1 got its samples" in ended.stdout


def flip_a_bit(path, worker, first_seq):
    """Flip a bit in a stored batch of a worker."""
    with sqlite3.connect(path) as db:
        which = "WHERE node = ? AND first_seq = ?", (worker, first_seq)
        ((payload,),) = db.execute(f"SELECT payload FROM batches {which[0]}", which[1])
        damaged = payload[:-1] + bytes([payload[-1] ^ 1])
        db.execute(f"UPDATE batches SET payload = ? {which[0]}", (damaged, *which[1]))


def test_audit_of_an_unknown_task_is_an_error(cluster):
    refused = cluster.run("audit", "nobody")
    assert refused.returncode == 4
    assert "nobody" in refused.stderr


def test_story_of_a_sample_and_of_a_step(tmp_path):
    task = recorded(tmp_path)
    ended = strata("audit", task, "--data", str(tmp_path), "--sample", "7", cwd=tmp_path)
    assert ended.stdout.startswith("sample 7 was trained once\n  epoch 0, step ")
    step = ended.stdout.partition("step ")[2].partition(",")[0]
    story = strata("audit", task, "--data", str(tmp_path), "--step", step, "--json", cwd=tmp_path)
    shares = json.loads(story.stdout)["shares"]
    assert sum(7 in share["samples"] for share in shares) == 1
    assert sum(len(share["samples"]) for share in shares) == 12
    refused = strata("audit", task, "--data", str(tmp_path), "--step", "99", cwd=tmp_path)
    assert (refused.returncode, "is not committed" in refused.stderr) == (4, True)


def test_coordinator_answers_about_samples_as_its_log_does(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(60))
    data = open_dataset(str(tmp_path / "x.npy"), name="d")
    task = recorded(tmp_path / "data", data, garbled=["w1"])
    options = {"--sample": ["7"], "--step": ["3"], "--content": [], "--json": ["--sample", "7"]}
    with serving(tmp_path) as cluster:
        answers = {what: cluster.run("audit", task, what, *rest) for what, rest in options.items()}
        lost = cluster.run("audit", task, "--step", "99")
    for what, rest in options.items():
        read = strata("audit", task, "--data", str(tmp_path / "data"), what, *rest, cwd=tmp_path)
        assert (answers[what].returncode, answers[what].stdout) == (read.returncode, read.stdout)
    assert answers["--content"].returncode == 1
    assert "d: 15 batches compared, 2 differ" in answers["--content"].stdout
    assert "w1: read different bytes in step 4" in answers["--content"].stdout
    assert (lost.returncode, "is not committed" in lost.stderr) == (4, True)
