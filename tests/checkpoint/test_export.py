"""Guards exports of checkpoints of several ranks: whole tensors, nothing wrong, nothing half."""

import json
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from strata.checkpoint.catalog import Catalog
from strata.checkpoint.export.checkpoint_export import (
    CheckpointExport,
    ExportReport,
    ExportRequest,
)
from strata.checkpoint.export.exported_state import exported_state
from strata.checkpoint.export.tensor_filler import scatter
from strata.checkpoint.read.box_overlaps import even_cuts
from strata.checkpoint.read.checkpoint_reader import CheckpointReader
from strata.checkpoint.read.tensor_stream import boxes_of
from strata.checkpoint.state.sharded_tensors import Sharded
from strata.errors import AlreadyExists, Corrupt, InvalidArgument, NotFound
from strata.storage.folder import LocalStorage
from tests.checkpoint.several_ranks import CHECKPOINT, save_as_ranks

ROOT = Path(__file__).parents[2]
FORMATS = ["safetensors", "hf", "torch", "dcp"]
NEEDS_TORCH = {"torch", "dcp"}
CONFIG = json.dumps({"model_type": "gpt2"})
COLUMNS = np.arange(31 * 43, dtype=np.float32).reshape(31, 43)
STACKED = np.arange(3 * 8 * 5, dtype=np.int16).reshape(3, 8, 5)
TABLE = np.random.default_rng(3).standard_normal((401, 70))


def own_columns(whole, rank, world_size):
    edges = even_cuts(whole.shape[1], world_size).tolist()
    return Sharded(whole[:, edges[rank] : edges[rank + 1]], [*whole.shape], [0, edges[rank]])


def state_of(rank):
    """What one of four ranks holds: replicas, and shards that are cut along several axes."""
    return {
        "model": {
            "table.weight": TABLE,
            "columns.weight": own_columns(COLUMNS, rank, 4),
            "stacked": Sharded(
                STACKED[:, 2 * rank : 2 * rank + 2], [*STACKED.shape], [0, 2 * rank, 0]
            ),
            "scale": np.array(2.5, np.float32),
            "empty": np.zeros((0, 4), np.float32),
            "mask": np.array([True, False]),
        },
        "optimizer": {"state": {0: {"step": 3, "moment": np.arange(9.0)}}, "lr": 0.1},
        "config": CONFIG,
        "raw": b"some bytes",
    }


WHOLE = {
    "table.weight": TABLE,
    "columns.weight": COLUMNS,
    "stacked": STACKED,
    "scale": np.array(2.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "mask": np.array([True, False]),
}


@pytest.fixture
def saved(tmp_path):
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, state_of)
    return storage


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def export(storage, checkpoint_id=CHECKPOINT, **options) -> ExportReport:
    with CheckpointReader(storage, Catalog(storage).read(checkpoint_id)) as reader:
        return CheckpointExport(reader, ExportRequest(**options)).run()


def assert_arrays(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        assert got[name].tobytes() == array.tobytes(), name


def remains(folder):
    """What a failed export left in the folder of its target."""
    return sorted(each.name for each in folder.iterdir() if each.name != "from")


def test_safetensors_file_has_the_whole_tensors_of_four_ranks(saved, out):
    report = export(saved, format="safetensors", out=out)
    wanted = {f"model.{name}": array for name, array in WHOLE.items()}
    wanted["optimizer.state.0.moment"] = np.arange(9.0)
    assert_arrays(load_file(out / "model.safetensors"), wanted)
    assert [file.name for file in out.iterdir()] == ["model.safetensors"]
    assert report.size_bytes == (out / "model.safetensors").stat().st_size
    assert report.left_out == ["optimizer.state.0.step", "optimizer.lr", "config", "raw"]


def test_tensor_whose_pieces_end_within_rows_is_joined(tmp_path, out):
    whole = np.arange(2_101 * 2_203, dtype=np.float32).reshape(2_101, 2_203)
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"w": own_columns(whole, rank, 2)}, world_size=2)
    export(storage, format="safetensors", out=out)
    assert_arrays(load_file(out / "model.safetensors"), {"w": whole})


def test_only_selects_a_part_and_strips_its_name(saved, out):
    assert export(saved, format="safetensors", out=out, only="model").left_out == []
    assert_arrays(load_file(out / "model.safetensors"), WHOLE)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("model.columns", ["weight"]),
        ("model.columns.weight", ["data"]),
        ("optimizer.state.0", ["moment"]),
        ("optimizer.state", ["0.moment"]),
    ],
)
def test_only_may_end_within_a_key_of_a_state_dict(saved, only, names):
    assert [*exported_state(Catalog(saved).read(CHECKPOINT), only).arrays] == names


def test_unknown_part_is_not_found_and_lists_the_keys(saved, out):
    with pytest.raises(NotFound, match="the state has: model, optimizer, config, raw"):
        export(saved, format="safetensors", out=out, only="modl")


def test_part_without_arrays_is_refused(saved, out):
    with pytest.raises(InvalidArgument, match=r"'optimizer\.lr' of the state has no arrays"):
        export(saved, format="safetensors", out=out, only="optimizer.lr")


def test_tensors_above_the_shard_size_are_split_with_an_index(saved, out):
    report = export(saved, format="safetensors", out=out, only="model", shard_bytes=225_000)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert {*index["weight_map"].values()} == {
        f"model-0000{number}-of-00002.safetensors" for number in (1, 2)
    }
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in WHOLE.values())
    found = {}
    for name, file in index["weight_map"].items():
        found[name] = load_file(out / file)[name]
    assert_arrays(found, WHOLE)
    assert "model-00001-of-00002.safetensors" in report.load


def test_array_with_two_names_is_written_under_both(tmp_path, out):
    weight = np.arange(12.0)
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"embed": weight, "head": weight})
    export(storage, format="safetensors", out=out)
    assert_arrays(load_file(out / "model.safetensors"), {"embed": weight, "head": weight})


def test_type_that_safetensors_lacks_is_refused(tmp_path, out):
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"wave": np.ones(3, np.complex128)})
    with pytest.raises(InvalidArgument, match="no type for 'wave'"):
        export(storage, format="safetensors", out=out)
    assert remains(tmp_path) == []


def test_checkpoint_in_any_storage_is_exported(storage, out):
    save_as_ranks(storage, state_of)
    export(storage, format="safetensors", out=out, only="model")
    assert_arrays(load_file(out / "model.safetensors"), WHOLE)


def test_existing_target_is_refused(saved, out):
    out.mkdir()
    with pytest.raises(AlreadyExists, match="already exists"):
        export(saved, format="safetensors", out=out)
    assert [*out.iterdir()] == []


def test_target_that_appears_meanwhile_is_not_replaced(saved, out, tmp_path):
    with CheckpointReader(saved, Catalog(saved).read(CHECKPOINT)) as reader:
        job = CheckpointExport(reader, ExportRequest(format="safetensors", out=out))
        with pytest.raises(AlreadyExists):
            job.run(lambda written_bytes: out.mkdir(exist_ok=True))
    assert remains(tmp_path) == ["out"]
    assert [*out.iterdir()] == []


@pytest.mark.parametrize("wanted", FORMATS)
def test_damaged_part_is_named_and_no_output_remains(saved, out, tmp_path, wanted):
    if wanted in NEEDS_TORCH:
        pytest.importorskip("torch")
    manifest = Catalog(saved).read(CHECKPOINT)
    part = manifest.parts[2]
    tensor = next(each for each in part.tensors if each.name == "model.columns.weight")
    with open(saved.root / CHECKPOINT / part.file, "r+b") as file:
        file.seek(tensor.offset + tensor.size_bytes // 2)
        file.write(b"damage")
    with pytest.raises(Corrupt, match=r"part-00002.*'model\.columns\.weight'"):
        export(saved, format=wanted, out=out)
    assert remains(tmp_path) == []


def test_missing_part_is_named_and_no_output_remains(saved, out, tmp_path):
    (saved.root / CHECKPOINT / "part-00001.safetensors").unlink()
    with pytest.raises(Corrupt, match=r"part-00001\.safetensors is damaged: the file does not"):
        export(saved, format="safetensors", out=out)
    assert remains(tmp_path) == []


@pytest.mark.parametrize("wanted", FORMATS)
def test_full_disk_is_an_error_and_no_output_remains(saved, out, tmp_path, wanted):
    if wanted in NEEDS_TORCH:
        pytest.importorskip("torch")
    done = strata(
        *("export", str(saved.root / CHECKPOINT), "--format", wanted, "--out", str(out)),
        before="import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))",
    )
    assert done.returncode == 5, done.stderr
    assert "ulimit -f" in done.stderr
    assert remains(tmp_path) == []


def strata(*arguments, before="pass"):
    command = [sys.executable, "-c", f"{before}; from strata.cli import main; main()"]
    return subprocess.run(
        [*command, "checkpoints", *arguments], capture_output=True, text=True, timeout=110
    )


def test_killed_export_leaves_only_a_partial_folder(saved, out, tmp_path):
    script = f"""
import os, signal
from tests.checkpoint.test_export import *
storage = LocalStorage({str(saved.root)!r})
with CheckpointReader(storage, Catalog(storage).read(CHECKPOINT)) as reader:
    job = CheckpointExport(reader, ExportRequest(format="safetensors", out=Path({str(out)!r})))
    job.run(lambda written_bytes: os.kill(os.getpid(), signal.SIGKILL))
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=110)
    assert killed.returncode == -signal.SIGKILL
    [left] = remains(tmp_path)
    assert re.fullmatch(r"\.out\.[0-9a-f]{8}\.partial", left)


@pytest.mark.parametrize(
    ("offsets", "refusal"),
    [
        ([0, 10], ""),
        ([0, 6], "do not form one tensor"),
        ([0, 14], "tensor 'w' is described inconsistently"),
    ],
)
def test_boxes_that_do_not_form_the_tensor_are_refused(tmp_path, offsets, refusal):
    """The sizes have the right sum: a gap and an overlap hide each other in it."""
    ten = np.arange(10.0)
    storage = LocalStorage(tmp_path)
    boxes = [Sharded(ten, [20], [offset]) for offset in [0, 10]]
    manifest = save_as_ranks(storage, lambda rank: {"w": boxes[rank]}, world_size=2)
    for part, offset in zip(manifest.parts, offsets, strict=True):
        part.tensors[0].shard.offsets[0] = offset
    refused = pytest.raises(Corrupt, match=refusal) if refusal else nullcontext()
    with refused, CheckpointReader(storage, manifest) as reader:
        assert len(boxes_of(reader, "w")) == 2


@given(st.data())
def test_scatter_puts_a_range_of_values_where_c_order_says(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    start = data.draw(st.integers(0, prod(shape) - 1))
    stop = data.draw(st.integers(start, prod(shape)))
    outer = np.zeros([length + 2 for length in shape], np.uint16)
    inner = outer[tuple(slice(1, length + 1) for length in shape)]
    scatter(inner, start, np.arange(start + 1, stop + 1, dtype=np.uint16))
    wanted = np.zeros(prod(shape), np.uint16)
    wanted[start:stop] = np.arange(start + 1, stop + 1)
    assert (inner.reshape(-1) == wanted).all()
    assert outer.astype(int).sum() == wanted.astype(int).sum()


def test_export_to_safetensors_needs_no_torch(saved, out, tmp_path):
    """A module that is None cannot be imported."""
    before = "import sys; sys.modules['torch'] = None"
    where = str(saved.root / CHECKPOINT)
    done = strata(
        *("export", where, "--format", "hf", "--out", str(out)),
        before=before,
    )
    assert done.returncode == 0, done.stderr
    assert_arrays(load_file(out / "model.safetensors"), WHOLE)
    refused = strata(
        *("export", where, "--format", "torch", "--out", str(tmp_path / "other")), before=before
    )
    assert (refused.returncode, remains(tmp_path)) == (4, ["out"])
    assert "strata-runtime[torch]" in refused.stderr


def test_command_prints_what_is_left_out_and_how_to_load_the_rest(saved, out):
    done = strata(
        *("export", str(saved.root / CHECKPOINT), "--format", "safetensors", "--out", str(out))
    )
    assert done.returncode == 0, done.stderr
    left, closing = done.stdout.splitlines()
    assert left == (
        "left out: 4 values that are not arrays: optimizer.state.0.step, optimizer.lr, config, raw"
    )
    assert closing.startswith(f"✓ {out}: 234 kB; load it with safetensors.torch.load_file(")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 2, "export needs a format"),
        (("--format", "torch"), 2, "export needs a folder"),
        (("--format", "torch", "--out", "s3://bucket/x"), 2, "export needs a folder"),
        (("--format", "hf", "--out", "OUT", "--shard-size", "much"), 2, "--shard-size is 'much'"),
        (("--format", "torch", "--out", "OUT", "--config-from", "."), 2, "use --format hf"),
        (("--format", "hf", "--out", "OUT", "--config-from", "OUT"), 4, "has no config.json"),
    ],
)
def test_wrong_options_are_refused(saved, out, tmp_path, options, code, said):
    given = [str(out) if each == "OUT" else each for each in options]
    done = strata("export", str(saved.root / CHECKPOINT), *given)
    assert (done.returncode, remains(tmp_path)) == (code, [])
    assert said in done.stderr


def test_unknown_checkpoint_is_not_found(tmp_path, out):
    done = strata(
        *("export", str(tmp_path / "step-00000001-a"), "--format", "hf", "--out", str(out))
    )
    assert done.returncode == 4
    assert "there is no checkpoint" in done.stderr


def test_example_of_the_format_reads_a_checkpoint_of_four_ranks(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "CHECKPOINT_FORMAT.md").read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [name] = re.findall(r'open\("(step-.*)\.json"\)', example)
    save_as_ranks(LocalStorage(tmp_path), state_of, checkpoint_id=name)
    monkeypatch.chdir(tmp_path)
    known = {}
    exec(example, known)
    wanted = {f"model.{name}": array for name, array in WHOLE.items()}
    found = {each: known["tensors"][each] for each in wanted}
    assert_arrays(found, wanted)
