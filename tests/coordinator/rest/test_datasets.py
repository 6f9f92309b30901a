"""Registration of datasets by path, and the errors of invalid ones."""

import io
import tarfile

import numpy as np
import pytest

from strata.core.datasets.dataset_rules import RegisterDataset
from strata.core.state import DatasetSpec
from tests.coordinator.rest.test_writes import error


@pytest.fixture
def rows(tmp_path):
    """A folder of 250 rows in two parts."""
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "x-0.npy", np.arange(200).reshape(100, 2))
    np.save(folder / "x-1.npy", np.arange(300).reshape(150, 2))
    return folder


def register(client, path, dataset="d", **more):
    return client.post("/api/datasets", json={"dataset_id": dataset, "path": str(path), **more})


def test_registration_by_path_counts_samples_and_shards(client, rows):
    found = register(client, rows)
    assert found.status_code == 201, found.text
    data = found.json()
    assert (data["total_samples"], data["shard_size"], data["shard_count"]) == (250, 100, 3)
    assert data["format"] == "npy"
    assert register(client, rows).json() == data


def test_given_shard_size_and_seed_are_kept(client, rows):
    data = register(client, rows, shard_size=10, seed=5, shuffle=False, format="npy").json()
    assert (data["shard_count"], data["shuffle"]) == (25, False)


def test_changed_data_is_another_dataset(client, rows):
    register(client, rows)
    np.save(rows / "x-1.npy", np.arange(600).reshape(300, 2))
    refused = error(register(client, rows), 409)
    assert refused["code"] == "already_exists"
    assert "'d'" in refused["message"]
    assert "another name" in refused["hint"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total_samples": 0, "shard_size": 1}, "total_samples"),
        ({"total_samples": -5, "shard_size": 1}, "total_samples"),
        ({"total_samples": 10, "shard_size": 0}, "shard_size"),
        ({"total_samples": 10, "shard_size": -1}, "shard_size"),
        ({"total_samples": 10, "shard_size": 11}, "shard_size 11 is above total_samples 10"),
    ],
)
def test_invalid_sizes_are_named_in_the_error(client, change, words):
    refused = error(client.post("/api/datasets", json={"dataset_id": "d", **change}), 400)
    assert words in refused["message"] + refused["hint"]


def test_shard_size_above_the_sample_count_is_refused(client, rows):
    refused = error(register(client, rows, shard_size=251), 400)
    assert refused["message"] == "dataset 'd': shard_size is 251, with 250 samples"


def test_missing_path_is_named_in_the_error(client, tmp_path):
    refused = error(register(client, tmp_path / "nowhere"), 404)
    assert str(tmp_path / "nowhere") in refused["message"]


@pytest.mark.parametrize("path", ["a" * 5_000, "gopher://host/x"])
def test_invalid_path_is_refused(client, path):
    error(register(client, path), 400)


def test_wrong_format_error_names_dataset_file_and_reason(client, rows):
    refused = error(register(client, rows, format="webdataset"), 400)
    assert "dataset 'd' (webdataset)" in refused["message"]
    (rows / "x-1.npy").write_bytes(b"no array")
    refused = error(register(client, rows, format="npy"), 400)
    assert "dataset 'd' (npy), file x-1.npy: not a plain .npy file" in refused["message"]


def test_unknown_format_error_lists_the_known_formats(client, rows):
    refused = error(register(client, rows, format="csv"), 400)
    assert "'csv'" in refused["message"]
    assert "parquet" in refused["hint"]


def test_corrupt_file_is_named_in_the_error(client, tmp_path):
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(3):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            member = tarfile.TarInfo("0.txt")
            member.size = 5
            tar.addfile(member, io.BytesIO(b"hello"))
    (folder / "1.tar").write_bytes(b"\xff" * 10_240)
    refused = error(register(client, folder), 400)
    assert "dataset 'd' (webdataset), file 1.tar: is not a tar" in refused["message"]


def test_preview_is_empty_without_samples_and_404_for_unknown_datasets(client, rows):
    register(client, rows)
    assert client.get("/api/datasets/d/preview").json() == []
    assert error(client.get("/api/datasets/nobody/preview"), 404)["code"] == "not_found"


def test_audit_of_unknown_task_is_not_found(client):
    assert error(client.get("/api/tasks/nobody/audit"), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    "given",
    [
        {"total_samples": 95, "shard_size": 10},
        {"total_samples": 95, "shard_size": 10, "name": "d", "seed": 7, "shuffle": False},
        {"total_samples": 95, "shard_size": 10, "name": "digits", "fingerprint": "f"},
        {"total_samples": 95, "shard_size": 10, "metadata": {"source": "here"}},
    ],
)
def test_listed_dataset_can_be_posted(client, given):
    client.post("/api/datasets", json={"dataset_id": "d", **given}).raise_for_status()
    [shown] = client.get("/api/datasets").json()
    again = client.post("/api/datasets", json=shown)
    assert (again.status_code, again.json()) == (201, shown)


def test_listed_dataset_with_counted_samples_can_be_posted(client, rows):
    register(client, rows)
    [shown] = client.get("/api/datasets").json()
    assert shown["fingerprint"]
    again = client.post("/api/datasets", json=shown)
    assert (again.status_code, again.json()) == (201, shown)


def test_stored_name_equal_to_the_id_stays(coordinator, client):
    spec = DatasetSpec(total_samples=10, shard_size=5, name="d")
    coordinator.submit(RegisterDataset(dataset="d", spec=spec))
    [shown] = client.get("/api/datasets").json()
    assert client.post("/api/datasets", json=shown).json() == shown


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "dataset_id is missing"),
        ({"id": "a", "dataset_id": "b"}, "id is 'a' and dataset_id is 'b'"),
        ({"id": "a", "shard_count": 9}, "shard_count is 9"),
    ],
)
def test_contradictory_dataset_is_refused(client, body, words):
    sizes = {"total_samples": 100, "shard_size": 10}
    assert words in error(client.post("/api/datasets", json=sizes | body), 400)["message"]


def test_pages_of_datasets_with_much_metadata_are_small(client):
    text = {f"{number}": "x" * 4_000 for number in range(200)}
    for number in range(8):
        body = {"id": f"d{number}", "total_samples": 1, "shard_size": 1, "metadata": text}
        client.post("/api/datasets", json=body).raise_for_status()
    found, cursor = [], ""
    while True:
        answer = client.get("/api/datasets", params={"cursor": cursor})
        assert len(answer.content) < 5 * 1024 * 1024
        found += [each["id"] for each in answer.json()]
        cursor = answer.headers.get("X-Next-Cursor", "")
        if not cursor:
            break
    assert found == [f"d{number}" for number in range(8)]
