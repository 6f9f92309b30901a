"""Guards every format by one contract: rows are returned in the requested order, also none; an
index is scanned once; the fingerprint depends on the data; damage names dataset, file and row.
"""

import json
import os
import pickle

import numpy as np
import pytest

from strata.data.dataset_specs import open_spec
from strata.data.formats import source
from strata.data.formats.in_memory import ArraySource
from strata.data.formats.source import Damaged, Mismatch
from strata.data.source_dataset import open_arrays, open_dataset, open_source, register_format
from strata.errors import Conflict, Corrupt, InvalidArgument, NotFound
from tests.data import corpora

COUNT = 101
ROWS = np.array([100, 0, 57, 57, 3, 99, 22, 23, 46])
FORMATS = {
    "npy": (corpora.write_npy, {}),
    "jsonl": (corpora.write_jsonl, {}),
    "parquet": (corpora.write_parquet, {}),
    "arrow": (lambda folder, count: corpora.write_parquet(folder, count, ".arrow"), {}),
    "webdataset": (corpora.write_tar, {"decode": {"vector": "float32"}}),
    "mds": (corpora.write_mds, {"decode": {"raw": "float32"}}),
}
NAMES = {"cls": "number", "txt": "text", "raw": "vector"}


@pytest.fixture(params=sorted(FORMATS))
def kind(request):
    return request.param


@pytest.fixture
def dataset(kind, tmp_path):
    write, options = FORMATS[kind]
    write(tmp_path / "set", COUNT)
    return open_dataset(str(tmp_path / "set"), kind, **options)


def checked(columns, rows):
    """Compare the columns with what was written."""
    for name, values in columns.items():
        name = NAMES.get(name, name)
        assert len(values) == len(rows)
        if name == "number":
            assert values.dtype == np.int64
            assert values.tolist() == rows.tolist()
        elif name == "vector":
            assert values.dtype.kind == "f"
            assert np.array_equal(values, corpora.vectors(COUNT)[rows])
        elif name == "text":
            assert values.tolist() == [corpora.texts(COUNT)[row] for row in rows]


def test_rows_are_read_in_the_requested_order(dataset):
    assert dataset.total_samples == len(dataset) == COUNT
    columns = dataset.read(ROWS)
    assert set(columns) == set(dataset.columns)
    checked(columns, ROWS)


def test_every_row_can_be_read(dataset):
    checked(dataset.read(np.arange(COUNT)), np.arange(COUNT))


def test_no_rows_give_empty_columns(dataset):
    assert {len(values) for values in dataset.read([]).values()} == {0}


def test_only_requested_columns_are_read(dataset):
    name = next(iter(dataset.columns))
    assert list(dataset.read(ROWS, [name])) == [name]
    with pytest.raises(InvalidArgument, match=r"no column 'nope'.*it has"):
        dataset.read(ROWS, ["nope"])


@pytest.mark.parametrize("row", [-1, COUNT])
def test_a_row_that_does_not_exist_is_refused(dataset, row):
    with pytest.raises(InvalidArgument, match=r"rows are 0 to 100"):
        dataset.read([row])


def test_format_is_detected_from_the_files(kind, tmp_path):
    write, options = FORMATS[kind]
    write(tmp_path / "set", COUNT)
    assert open_dataset(str(tmp_path / "set"), **options).spec().format == kind


def test_index_is_stored_and_rescanned_when_files_change(kind, tmp_path, monkeypatch):
    write, options = FORMATS[kind]
    write(tmp_path / "set", COUNT)
    first = open_dataset(str(tmp_path / "set"), kind, cache_dir=str(tmp_path / "kept"), **options)
    scans = []
    source = type(first._source)
    scan = source.scan
    monkeypatch.setattr(source, "scan", lambda self: scans.append(1) or scan(self))
    again = open_dataset(str(tmp_path / "set"), kind, cache_dir=str(tmp_path / "kept"), **options)
    assert scans == []
    assert again.fingerprint == first.fingerprint
    checked(again.read(ROWS), ROWS)
    file = max((tmp_path / "set").iterdir())
    os.utime(file, ns=(1, 1))
    open_dataset(str(tmp_path / "set"), kind, cache_dir=str(tmp_path / "kept"), **options)
    assert scans == [1]


def test_fingerprint_does_not_depend_on_the_path(kind, tmp_path):
    write, options = FORMATS[kind]
    found = []
    for place in ("a", "b"):
        write(tmp_path / place, COUNT)
        found.append(open_dataset(str(tmp_path / place), kind, **options).fingerprint)
    assert found[0] == found[1]
    write(tmp_path / "c", COUNT - 1)
    assert open_dataset(str(tmp_path / "c"), kind, **options).fingerprint != found[0]


def test_a_spec_opens_the_same_data_and_refuses_other_data(dataset, kind, tmp_path):
    spec = dataset.spec(seed=7)
    assert (spec.total_samples, spec.seed, spec.format) == (COUNT, 7, kind)
    checked(open_spec("again", spec).read(ROWS), ROWS)
    changed = type(spec)(
        **{name: getattr(spec, name) for name in spec.__struct_fields__} | {"fingerprint": "other"}
    )
    with pytest.raises(Conflict, match=r"dataset 'again': fingerprint of .* was registered"):
        open_spec("again", changed)


def test_a_damaged_file_names_dataset_file_and_row_and_can_be_skipped(kind, tmp_path):
    write, options = FORMATS[kind]
    write(tmp_path / "set", COUNT)
    dataset = open_dataset(str(tmp_path / "set"), kind, name="cracked", **options)
    victim = sorted(file for file in (tmp_path / "set").iterdir() if file.is_file())[1]
    if victim.suffix == ".json":
        victim = sorted((tmp_path / "set").glob("*.mds"))[1]
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    with pytest.raises(Corrupt, match=rf"dataset 'cracked', file {victim.name}, row \d+"):
        dataset.read(np.arange(COUNT))
    skipped = []
    columns, kept = dataset.gather(np.arange(COUNT), list(dataset.columns), skipped.append)
    assert len(skipped) == COUNT - kept.sum() > 0
    assert {(each.dataset, each.file) for each in skipped} == {("cracked", victim.name)}
    checked(columns, np.flatnonzero(kept))


def test_mds_shard_that_contradicts_its_index_cannot_be_opened(tmp_path):
    corpora.write_mds(tmp_path / "set", COUNT)
    first = tmp_path / "set" / "shard.00000.mds"
    first.write_bytes(b"\xff" + first.read_bytes()[1:])
    says = rf"dataset 'cracked' \(mds\), file {first.name}: its head"
    with pytest.raises(InvalidArgument, match=says):
        open_dataset(str(tmp_path / "set"), name="cracked")


def test_file_that_is_not_an_image_is_not_an_image_folder(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(InvalidArgument, match="no images found"):
        open_dataset(str(tmp_path / "x.npy"), "imagefolder")


def test_a_path_must_be_given():
    with pytest.raises(InvalidArgument, match="the dataset has no path"):
        open_dataset("")


def test_another_process_gets_the_same_dataset(dataset):
    sent = pickle.loads(pickle.dumps(dataset))
    assert (sent.spec(), sent.columns) == (dataset.spec(), dataset.columns)
    checked(sent.read(ROWS), ROWS)


def test_registered_path_is_absolute(tmp_path, monkeypatch):
    corpora.write_npy(tmp_path / "set", COUNT)
    monkeypatch.chdir(tmp_path)
    spec = open_dataset("set").spec()
    monkeypatch.chdir("/")
    checked(open_spec("again", spec).read(ROWS), ROWS)


def test_a_column_that_is_cut_into_parts_gives_the_shards(tmp_path):
    corpora.write_npy(tmp_path / "set", 100)
    assert open_dataset(str(tmp_path / "set")).shard_size == 50


def test_missing_path_is_refused():
    with pytest.raises(NotFound, match=r"dataset 'nowhere'.*/nowhere does not exist"):
        open_dataset("/nowhere", "npy")


@pytest.mark.parametrize("kind", sorted({*FORMATS} | {"imagefolder", "tokens"}))
def test_folder_of_unknown_files_is_refused(kind, tmp_path):
    (tmp_path / "notes.md").write_text("nothing")
    options = {"length": 4} if kind == "tokens" else {}
    with pytest.raises(InvalidArgument, match=f"{kind}"):
        open_dataset(str(tmp_path), kind, **options)
    with pytest.raises(InvalidArgument, match=r"cannot detect the format"):
        open_dataset(str(tmp_path))
    (tmp_path / "notes.md").unlink()
    with pytest.raises(InvalidArgument, match=r"no files in .*check the path"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "told", "says"),
    [
        ("tokens", {}, "option 'length' is missing.*length, dtype, stride"),
        ("tokens", {"length": "9"}, "'length' is '9'.*Expected `int`"),
        ("tokens", {"length": np.int64(9)}, "'length' is"),
        ("tokens", {"length": 9, "dtype": "nope"}, "unknown dtype 'nope'"),
        ("imagefolder", {"size": [0, 8]}, "'size' is .*>= 1"),
        ("imagefolder", {"size": [8]}, "'size' is .*length 2"),
        ("imagefolder", {"threads": 0}, "'threads' is 0"),
        ("parquet", {"cache_bytes": -1}, "'cache_bytes' is -1"),
        ("jsonl", {"types": 5}, "'types' is 5"),
        ("webdataset", {"decode": {"vector": "nope"}}, "unknown codec 'nope' for column 'vector'"),
        ("webdataset", {"decode": {"nope": "uint8"}}, "column 'nope'.*the columns are cls"),
        ("mds", {"decode": {"nope": "uint8"}}, "column 'nope'.*the columns are number"),
    ],
)
def test_invalid_options_are_named(kind, told, says, tmp_path):
    write, _ = FORMATS.get(kind, (lambda folder, count: folder.mkdir(), {}))
    write(tmp_path / "set", COUNT)
    with pytest.raises(InvalidArgument, match=says):
        open_dataset(str(tmp_path / "set"), kind, **told)


class Careless(ArraySource):
    """A source that returns what a test sets, whatever was requested."""

    def __init__(self, given):
        super().__init__({"n": np.arange(9)})
        self.given = given

    def read(self, index, rows, columns):
        return self.given(rows)


def damage_elsewhere(rows):
    raise Damaged([rows.max() + 1], "x", "odd")


@pytest.mark.parametrize("path", [None, 5, b"x", ["/x"]])
def test_invalid_path_is_refused(path):
    with pytest.raises(InvalidArgument, match="invalid path"):
        open_dataset(path)


def test_a_path_may_be_an_object(tmp_path):
    corpora.write_npy(tmp_path / "set", COUNT)
    assert open_dataset(tmp_path / "set").spec().path == str(tmp_path / "set")


@pytest.mark.parametrize("source", [None, 5, "x", object()])
def test_source_without_the_three_methods_is_refused(source):
    with pytest.raises(InvalidArgument, match="has no method scan"):
        open_source(source)


@pytest.mark.parametrize("on_skip", [None, lambda row: None])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            lambda rows: {"n": rows[1:]},
            "requested 3 rows of column 'n', but the format returned 2 rows",
        ),
        (lambda rows: {"n": rows.tolist()}, "the format returned"),
        (lambda rows: {}, "the format returned None"),
        (lambda rows: None, "the format returned None"),
        (damage_elsewhere, "row 3: odd"),
    ],
)
def test_format_that_returns_fewer_rows_is_refused(given, says, on_skip):
    dataset = open_source(Careless(given))
    with pytest.raises(Corrupt, match=says):
        dataset.gather(np.arange(3), ["n"], on_skip)


def test_custom_format_may_have_any_options():
    class Told:
        def __init__(self, files, shape: complex = 1j, **rest: object) -> None:
            self.told = rest

    source.check_options(Told, {"anything": 1, "shape": 2j})
    with pytest.raises(Mismatch, match="'n' is missing"):
        source.check_options(lambda files, n: None, {})


def test_unreadable_folder_is_an_error(tmp_path, monkeypatch):
    corpora.write_npy(tmp_path / "set", COUNT)
    (tmp_path / "set" / "more").mkdir()
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("more"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InvalidArgument, match=r"'set'.*Permission denied.*more"):
        open_dataset(str(tmp_path / "set"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("npy", "x.npy"),
        ("parquet", "x.parquet"),
        ("arrow", "x.arrow"),
        ("jsonl", "x.jsonl"),
        ("webdataset", "x.tar"),
        ("mds", "index.json"),
    ],
)
def test_file_of_another_format_is_named(kind, name, tmp_path):
    (tmp_path / name).write_bytes(b"this is not what it says it is" * 40)
    with pytest.raises(InvalidArgument, match=f"file {name}"):
        open_dataset(str(tmp_path), kind)


def test_unknown_formats_options_and_schemes_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"unknown format 'lance'.*known formats"):
        open_dataset(str(tmp_path), "lance")
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(InvalidArgument, match=r"unknown option 'colour'.*it has no options"):
        open_dataset(str(tmp_path), "npy", colour=1)
    with pytest.raises(InvalidArgument, match=r"unknown scheme gopher://"):
        open_dataset("gopher://x", "npy")


@pytest.mark.parametrize("shard_size", [-1, 4])
def test_invalid_shard_sizes_are_refused(shard_size):
    with pytest.raises(InvalidArgument, match=f"shard_size is {shard_size}"):
        open_arrays({"x": np.arange(3)}, shard_size=shard_size)


def test_arrays_of_objects_and_archives_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(InvalidArgument, match=r"file x.npy: not a plain .npy file"):
        open_dataset(str(tmp_path), "npy")
    np.savez(tmp_path / "y.npz", a=np.arange(3))
    with pytest.raises(InvalidArgument, match=r"cannot be mapped.*unpack it"):
        open_dataset(str(tmp_path / "y.npz"))


def test_columns_of_different_lengths_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    np.save(tmp_path / "y.npy", np.arange(4))
    with pytest.raises(InvalidArgument, match=r"different lengths"):
        open_dataset(str(tmp_path), "npy")


def test_a_single_array_is_the_column_data(tmp_path):
    np.save(tmp_path / "x.npy", corpora.vectors(9))
    dataset = open_dataset(str(tmp_path / "x.npy"))
    assert dataset.columns == {"data": "float32[16]"}
    assert dataset.read([8, 1])["data"][:, 0].tolist() == [8, 1]


def test_token_bins(tmp_path):
    for part in range(2):
        tokens = np.arange(part * 1000, part * 1000 + 50, dtype=np.uint16)
        (tmp_path / f"{part}.bin").write_bytes(b"header!!" + tokens.tobytes())
    dataset = open_dataset(str(tmp_path), "tokens", length=9, stride=8, header_bytes=8)
    assert dataset.total_samples == 12
    tokens = dataset.read([7, 0, 5])["tokens"]
    assert tokens.dtype == np.uint16
    assert [row.tolist() for row in tokens] == [
        list(range(1008, 1017)),
        list(range(9)),
        list(range(40, 49)),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"length": 0}, "option .length. is 0"),
        ({"length": 99}, "fewer than 99 tokens"),
        ({"length": 4, "dtype": "float32"}, "integers"),
        ({"length": 4, "dtype": "uint32"}, "has 30 bytes"),
        ({}, "length"),
    ],
)
def test_invalid_token_bins_are_refused(tmp_path, options, says):
    (tmp_path / "x.bin").write_bytes(bytes(30))
    with pytest.raises(InvalidArgument, match=says):
        open_dataset(str(tmp_path), "tokens", **options)


def test_images_and_labels(tmp_path):
    corpora.write_images(tmp_path / "set", 12)
    dataset = open_dataset(str(tmp_path / "set"), size=[4, 6])
    batch = dataset.read([0, 11, 5])
    assert batch["image"].shape == (3, 4, 6, 3)
    assert batch["label"].tolist() == [0, 1, 0]
    numbers = [int(path.rpartition("/")[2][:4]) for path in batch["path"]]
    assert batch["image"][:, 0, 0, 0].tolist() == numbers
    plain = open_dataset(str(tmp_path / "set"), "imagefolder").read([1, 2])["image"]
    assert [image.shape[0] for image in plain] == [8, 8]
    (tmp_path / "set" / "cats" / "0001.png").write_bytes(b"no image")
    with pytest.raises(Corrupt, match=r"file cats/0001.png, row 0: cannot be read as an image"):
        dataset.read([0])


def test_line_of_another_type_names_its_row(tmp_path):
    lines = [json.dumps({"n": i, "s": "a"}) for i in range(200)]
    lines[150] = '{"n": "many", "s": "a"}'
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    dataset = open_dataset(str(tmp_path), name="lines")
    with pytest.raises(Corrupt, match=r"dataset 'lines', file x.jsonl, row 150.*got `str`"):
        dataset.read(np.arange(200))
    assert dataset.read([149])["n"].tolist() == [149]


def test_integers_that_become_floats_are_refused_unless_declared(tmp_path):
    lines = [json.dumps({"n": i}) for i in range(150)] + ['{"n": 0.5}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    with pytest.raises(Corrupt, match=r"row 150"):
        open_dataset(str(tmp_path)).read([150])
    declared = open_dataset(str(tmp_path), types={"n": "float"})
    assert declared.read([150, 3])["n"].tolist() == [0.5, 3.0]


def test_null_in_a_numeric_column_is_a_damaged_row(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [1, None, 3]}), tmp_path / "x.parquet")
    dataset = open_dataset(str(tmp_path))
    assert dataset.read([2, 0])["n"].tolist() == [3, 1]
    with pytest.raises(Corrupt, match=r"row 1: column 'n' is null"):
        dataset.read([0, 1])


def test_small_row_group_cache_reads_the_same_rows(tmp_path):
    corpora.write_parquet(tmp_path / "set", COUNT)
    dataset = open_dataset(str(tmp_path / "set"), cache_bytes=1)
    checked(dataset.read(ROWS), ROWS)


def test_sample_with_a_missing_file_is_damaged(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("a.txt", "a.cls", "b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    dataset = open_dataset(str(tmp_path), name="holes")
    assert dataset.read([0, 1], ["txt"])["txt"].tolist() == ["1", "1"]
    with pytest.raises(Corrupt, match=r"dataset 'holes', row 1: the sample has no \.cls file"):
        dataset.read([0, 1])


def test_custom_format_is_read():
    class Squares(ArraySource):
        def __init__(self, files, count=5):
            super().__init__({"square": np.arange(count) ** 2})

    register_format("squares", Squares)
    dataset = open_dataset(".", "squares", count=7)
    assert dataset.read([6, 2])["square"].tolist() == [36, 4]
    with pytest.raises(InvalidArgument, match=r"already registered"):
        register_format("squares", Squares)


def test_an_empty_source_is_refused():
    with pytest.raises(InvalidArgument, match=r"the dataset has no rows"):
        open_source(ArraySource({"x": np.arange(0)}))


def test_error_of_a_source_names_the_dataset():
    class Broken(ArraySource):
        def read(self, index, rows, columns):
            raise ZeroDivisionError("oops")

    with pytest.raises(Corrupt, match=r"dataset 'mine'.*oops"):
        open_source(Broken({"x": np.arange(3)}), name="mine").read([1])


def test_dataset_without_files_returns_sample_numbers():
    from strata.core.state import DatasetSpec

    dataset = open_spec("sizes", DatasetSpec(total_samples=10, shard_size=5))
    assert dataset.read([3, 9]) == {"index": pytest.approx([3, 9])}


def test_hugging_face_datasets_are_read():
    class Fake:
        _fingerprint = "abc"
        features = {"n": "int64"}  # noqa: RUF012

        def with_format(self, kind):
            assert kind == "numpy"
            return self

        def select_columns(self, names):
            assert names == ["n"]
            return self

        def __len__(self):
            return 4

        def __getitem__(self, rows):
            return {"n": np.array(rows) * 10}

    from strata.data.formats.hf_datasets import HuggingFaceSource

    dataset = open_source(HuggingFaceSource(Fake()))
    assert dataset.read([3, 1])["n"].tolist() == [30, 10]
