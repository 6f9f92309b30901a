"""Guards datasets in object storage and the cache that the workers of a host share: a real server,
real processes, killed in the middle of a download."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from strata.data.cache.dataset_files import Files, register_scheme
from strata.data.cache.fetch_observers import OBSERVERS, Fetch, Opening, without_credentials
from strata.data.formats import hf_datasets
from strata.data.source_dataset import open_dataset
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.storage.s3 import S3Storage
from tests.data import corpora
from tests.data.test_formats import COUNT, FORMATS, checked
from tests.data.test_formats import ROWS as ASKED
from tests.storage.server import BUCKET

FETCHER = Path(__file__).with_name("fetcher.py")
SHARDS, ROWS, WIDTH = 8, 4, 65_536
SHARD_BYTES = ROWS * WIDTH * 8 + 128


@pytest.fixture(scope="module")
def server(s3_settings):
    return s3_settings


@pytest.fixture
def bucket(server, request):
    return S3Storage(BUCKET, f"data/{abs(hash(request.node.name))}", server)


@pytest.fixture
def environment(server, tmp_path, monkeypatch):
    """AWS variables of the test server, and a cache for this test."""
    told = {
        "AWS_ENDPOINT_URL": server.aws_endpoint_url,
        "AWS_REGION": server.aws_region,
        "AWS_ACCESS_KEY_ID": server.aws_access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.aws_secret_access_key,
        "STRATA_DATA_CACHE_DIR": str(tmp_path / "cache"),
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def arrays(bucket, tmp_path, environment):
    """Eight shards of two megabytes; every value of a row is the row's number."""
    (tmp_path / "source").mkdir()
    for shard in range(SHARDS):
        rows = np.arange(shard * ROWS, (shard + 1) * ROWS, dtype=np.int64)
        file = tmp_path / "source" / f"data-{shard}.npy"
        np.save(file, np.repeat(rows[:, None], WIDTH, axis=1))
        bucket.put(file.name, file.read_bytes())
    return bucket


def cached(tmp_path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("*.file"))


def fetcher(url, rows, **more):
    return subprocess.Popen(
        [sys.executable, str(FETCHER), url, str(rows)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **more},
    )


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_every_format_reads_from_a_bucket_what_it_reads_from_a_folder(
    kind, bucket, tmp_path, environment
):
    write, options = FORMATS[kind]
    write(tmp_path / "set", COUNT)
    for file in sorted((tmp_path / "set").rglob("*")):
        if file.is_file():
            bucket.put(file.relative_to(tmp_path / "set").as_posix(), file.read_bytes())
    here = open_dataset(str(tmp_path / "set"), kind, **options)
    there = open_dataset(bucket.url, kind, **options)
    assert (there.fingerprint, len(there)) == (here.fingerprint, COUNT)
    checked(there.read(ASKED), ASKED)


def test_compressed_shards_are_fetched_and_unpacked(bucket, tmp_path, environment):
    corpora.write_packed_mds(tmp_path / "set", COUNT, "zstd")
    for file in (tmp_path / "set").iterdir():
        bucket.put(file.name, file.read_bytes())
    dataset = open_dataset(bucket.url, "mds", decode={"raw": "float32"})
    checked(dataset.read(ASKED), ASKED)


def test_registering_arrays_reads_only_headers(arrays, tmp_path):
    dataset = open_dataset(arrays.url)
    assert (len(dataset), dataset.shard_size) == (SHARDS * ROWS, ROWS)
    assert cached(tmp_path) == []
    assert dataset.read([5])["data"][0, 0] == 5
    assert len(cached(tmp_path)) == 1


def test_a_single_object_is_a_dataset(arrays):
    dataset = open_dataset(f"{arrays.url}/data-3.npy")
    assert dataset.read([1])["data"][0, 0] == 3 * ROWS + 1


def test_missing_object_is_named(bucket, environment):
    with pytest.raises(NotFound, match=f"no objects at {bucket.url}/nowhere"):
        open_dataset(f"{bucket.url}/nowhere")


class Told:
    """An observer that collects what is reported."""

    def __init__(self) -> None:
        self.fetches: list[Fetch] = []
        self.openings: list[Opening] = []

    def fetched(self, fetch: Fetch) -> None:
        self.fetches.append(fetch)

    def opened(self, opening: Opening) -> None:
        self.openings.append(opening)

    @property
    def phases(self) -> list[str]:
        return [each.phase for each in self.fetches]


@pytest.fixture
def told():
    """What is reported to this process's observers from now on."""
    OBSERVERS.add(Told())  # drop what ended before
    observer = Told()
    OBSERVERS.add(observer)
    yield observer
    OBSERVERS.__init__()


def test_download_is_reported_from_request_to_end(arrays, told):
    dataset = open_dataset(arrays.url)
    dataset.read([0, 1, 30])
    assert told.phases == ["requested", "started", "completed"] * 2
    assert {each.size_bytes for each in told.fetches} == {SHARD_BYTES}
    assert [each.done_bytes for each in told.fetches] == [0, 0, SHARD_BYTES] * 2
    sources = [told.fetches[0].source, told.fetches[3].source]
    assert sources == [f"{arrays.url}/data-0.npy", f"{arrays.url}/data-7.npy"]
    assert all(each.queued_s >= 0 and each.attempt == 1 for each in told.fetches)
    assert [each.took_s > 0 for each in told.fetches] == [False, False, True] * 2
    dataset.read([0, 1, 30])
    assert len(told.fetches) == 6


def test_json_lines_download_is_reported_while_opening(bucket, environment, told):
    lines = b'{"text": "%s"}\n' % (b"x" * 1_000)
    bucket.put("rows.jsonl", lines * 2_000)
    dataset = open_dataset(bucket.url, name="rows")
    assert told.phases == ["requested", "started", "completed"]
    assert {(each.dataset, each.batch) for each in told.fetches} == {("rows", "")}
    assert told.fetches[-1].done_bytes == len(lines) * 2_000
    assert [each.completed for each in told.openings] == [False, True]
    ended = told.openings[-1]
    assert (ended.files, ended.samples, ended.error) == (1, len(dataset), "")
    assert ended.took_s >= told.fetches[-1].took_s > 0


def test_headers_that_are_read_by_ranges_are_counted(arrays, told):
    open_dataset(arrays.url)
    assert told.fetches == []
    assert SHARDS * 128 <= told.openings[-1].range_bytes < SHARDS * SHARD_BYTES


def test_slow_download_reports_progress_within_a_range(bucket, environment, told):
    environment.setenv("STRATA_PROGRESS_INTERVAL_S", "0.000001")
    bucket.put("rows.npy", npy_bytes(8 << 20))
    open_dataset(f"{bucket.url}/rows.npy").read([0])
    done = [each.done_bytes for each in told.fetches if each.phase == "progress"]
    assert len(done) > 2
    assert done == sorted(done)
    assert done[-1] == told.fetches[-1].size_bytes


def npy_bytes(size: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((64, size // 64), np.uint8))
    return buffer.getvalue()


def test_failed_download_is_reported_and_the_next_is_another_attempt(arrays, told):
    dataset = open_dataset(arrays.url, name="set")
    content = arrays.get("data-2.npy")
    arrays.delete("data-2.npy")
    for attempt in (1, 2):
        with pytest.raises(Corrupt):
            dataset.read([9])
        ended = told.fetches[-1]
        assert (ended.phase, ended.attempt) == ("completed", attempt)
        assert "no longer exists" in ended.error
    arrays.put("data-2.npy", content)
    open_dataset(arrays.url).read([9])
    assert (told.fetches[-1].attempt, told.fetches[-1].error) == (1, "")


def test_earlier_downloads_are_reported_to_the_first_observer(arrays):
    OBSERVERS.__init__()
    open_dataset(arrays.url, name="set").read([0])
    observer = Told()
    OBSERVERS.add(observer)
    try:
        assert observer.phases == ["completed"]
        assert [each.dataset for each in observer.openings] == ["set"]
        assert min(observer.fetches[0].ago_s, observer.openings[0].ago_s) > 0
    finally:
        OBSERVERS.__init__()


def test_reported_source_has_no_credentials():
    assert without_credentials("s3://key:secret@bucket/a?X-Amz-Signature=1") == "s3://bucket/a"
    assert without_credentials("/data/a?b@c") == "/data/a?b@c"


def test_several_processes_fetch_each_file_once(arrays, tmp_path):
    rows = list(range(SHARDS * ROWS))
    crowd = [fetcher(arrays.url, rows) for _ in range(3)]
    for each in crowd:
        out, err = each.communicate(timeout=100)
        assert out.endswith("done\n"), err
        assert [line for line in out.splitlines() if line[0] == "["] == [
            f"[{row}, {row * WIDTH}]" for row in rows
        ]
    inodes = cached(tmp_path)
    assert len(inodes) == SHARDS
    assert not list((tmp_path / "cache").glob("*.draft"))


def test_cache_smaller_than_the_dataset_stays_within_its_limit(arrays, tmp_path, environment):
    limit = 3 * SHARD_BYTES
    environment.setenv("STRATA_DATA_CACHE_BYTES", str(limit))
    rows = [row for turn in range(2) for row in range(turn, SHARDS * ROWS, ROWS)]
    over = Peak(tmp_path / "cache")
    crowd = [fetcher(arrays.url, rows) for _ in range(2)]
    for each in crowd:
        out, err = each.communicate(timeout=100)
        assert out.endswith("done\n"), err
        assert f"[{rows[-1]}, {rows[-1] * WIDTH}]" in out
    assert 0 < over.stop() <= limit


class Peak:
    """The most bytes that a folder held while it was watched."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._most, self._ended = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            total = 0
            for file in [*self._folder.glob("*.file"), *self._folder.glob("*.draft")]:
                try:
                    total += file.stat().st_size
                except FileNotFoundError:
                    continue
            self._most = max(self._most, total)

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most


def test_least_recently_used_file_is_evicted_first(arrays, tmp_path, environment, told):
    environment.setenv("STRATA_DATA_CACHE_BYTES", str(3 * SHARD_BYTES))
    dataset = open_dataset(arrays.url)
    for shard in (0, 1, 2):
        dataset.read([shard * ROWS])
    for number, file in enumerate(sorted(cached(tmp_path), key=lambda each: each.stat().st_mtime)):
        os.utime(file, (number, number))
    dataset.read([3 * ROWS])
    for shard in (1, 2, 0):
        dataset.read([shard * ROWS])
    started = [each.source for each in told.fetches if each.phase == "started"]
    assert started == [f"{arrays.url}/data-{shard}.npy" for shard in (0, 1, 2, 3, 0)]


def test_a_file_larger_than_the_cache_is_a_clear_error(arrays, environment):
    environment.setenv("STRATA_DATA_CACHE_BYTES", "1000")
    with pytest.raises(InvalidArgument, match="exceeds the data cache of 1000"):
        open_dataset(arrays.url).read([0])


def test_process_killed_during_a_download_affects_no_other(arrays, tmp_path, monkeypatch):
    victim = fetcher(arrays.url, list(range(SHARDS * ROWS)))
    drafts = (tmp_path / "cache").glob
    deadline = time.monotonic() + 60
    while not list(drafts("*.draft")):
        assert time.monotonic() < deadline
        assert victim.poll() is None
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=20)
    dataset = open_dataset(arrays.url)
    rows = list(range(SHARDS * ROWS))
    assert dataset.read(rows)["data"][:, 0].tolist() == rows
    assert not list(drafts("*.draft"))


def test_abandoned_draft_is_evicted(arrays, tmp_path, environment):
    environment.setenv("STRATA_DATA_CACHE_BYTES", str(3 * SHARD_BYTES))
    dataset = open_dataset(arrays.url)
    left = tmp_path / "cache" / "0123.draft"
    left.write_bytes(bytes(2 * SHARD_BYTES + 10))
    dataset.read([0])
    dataset.read([ROWS])
    assert not left.exists()


def test_deleted_object_damages_its_rows(arrays):
    dataset = open_dataset(arrays.url, name="set")
    arrays.delete("data-2.npy")
    assert dataset.read([0])["data"][0, 0] == 0
    with pytest.raises(Corrupt, match=r"dataset 'set', file data-2.npy, row 9.*no longer exists"):
        dataset.read([9])
    skipped = []
    found, kept = dataset.gather(np.array([0, 9, 30]), ["data"], skipped.append)
    assert found["data"][:, 0].tolist() == [0, 30]
    assert kept.tolist() == [True, False, True]
    assert [each.row for each in skipped] == [9]


def test_an_object_that_changed_is_refused(arrays):
    dataset = open_dataset(arrays.url, name="set")
    arrays.put("data-2.npy", os.urandom(SHARD_BYTES))
    with pytest.raises(Corrupt, match=r"file data-2.npy, row 8.*changed since"):
        dataset.read([8])


def test_custom_scheme_is_opened(tmp_path):
    corpora.write_npy(tmp_path / "set", 10)
    register_scheme("mine", lambda path: Files(str(tmp_path / "set")))
    assert len(open_dataset("mine://anything", "npy")) == 10


def test_a_saved_hugging_face_dataset_is_read_from_storage(bucket, tmp_path, environment):
    library = pytest.importorskip("datasets")
    rows = {"n": list(range(50)), "text": corpora.texts(50), "v": corpora.vectors(50).tolist()}
    library.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved", num_shards=3)
    for file in (tmp_path / "saved").iterdir():
        bucket.put(file.name, file.read_bytes())
    here = open_dataset(str(tmp_path / "saved"), "huggingface")
    there = open_dataset(bucket.url, "huggingface")
    assert (there.fingerprint, len(there)) == (here.fingerprint, 50)
    assert here.read([])["n"].tolist() == []
    asked = np.array([49, 0, 17, 30])
    found = there.read(asked)
    assert found["n"].tolist() == asked.tolist()
    assert found["text"].tolist() == [corpora.texts(50)[row] for row in asked]
    assert np.array_equal(found["v"], corpora.vectors(50)[asked])
    assert len(cached(tmp_path)) == 3


def test_open_files_of_a_hugging_face_dataset_are_bounded(tmp_path, monkeypatch):
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(hf_datasets, "MAX_OPEN", 4)
    ragged = [list(range(row % 7)) for row in range(60)]
    saved = library.Dataset.from_dict({"n": list(range(60)), "ragged": ragged})
    saved.save_to_disk(tmp_path / "saved", num_shards=20)
    dataset = open_dataset(str(tmp_path / "saved"), "huggingface", name="hf")
    asked = np.random.default_rng(1).permutation(60)
    found = dataset.read(asked)
    assert found["n"].tolist() == asked.tolist()
    assert [row.tolist() for row in found["ragged"]] == [ragged[row] for row in asked]
    mapped = Path("/proc/self/maps").read_text().count(str(tmp_path / "saved"))
    assert 0 < mapped <= 4
    os.truncate(tmp_path / "saved" / "data-00007-of-00020.arrow", 100)
    with pytest.raises(Corrupt, match=r"'hf', file data-00007-of-00020.arrow, row 21.*changed"):
        dataset.read([21])


def test_folder_without_a_saved_dataset_is_refused(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(InvalidArgument, match=r"file state.json: .*not there"):
        open_dataset(str(tmp_path), "huggingface")
