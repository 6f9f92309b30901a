"""Guards what a warm start takes from each kind of source, and that a source which does not fit, is
damaged or is gone is an error that names it."""

import json
import pickle
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from strata import CheckpointManager
from strata.checkpoint.foreign.foreign_weights import open_foreign
from strata.checkpoint.read import weight_transfer
from strata.checkpoint.state.sharded_tensors import Sharded
from strata.checkpoint.state.stateful import plain
from strata.config import load_process
from strata.errors import Corrupt, InvalidArgument, NotFound
from strata.sdk.record.recorder import Recorder
from strata.sdk.state.initial_weights import InitialWeights, WeightLoader
from strata.storage.locations import open_storage
from tests.storage.server import BUCKET

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

# DCP warns that it runs without a process group, and about parts of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def warm(place, state, agree=lambda key, value: value, roots=(), **how):
    """Fill a state from a place, as one worker does."""
    loader = WeightLoader(Recorder(), load_process({}), lambda: [str(root) for root in roots])
    return loader.load(state, InitialWeights(place=place, **how), 0, agree)


def net(seed, outputs=2, width=4):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, outputs)
    )


def same(model, other):
    one, two = model.state_dict(), other.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def stepped(model):
    """An optimizer of the model that has made a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    return optimizer


def saved(folder, state, step=7):
    """Save a checkpoint of Strata; returns its path."""
    manager = CheckpointManager(folder)
    checkpoint = manager.save(plain(state), step=step, epoch=0)
    manager.wait_pending()
    return folder / checkpoint


def torch_file(folder, model):
    torch.save(model.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def old_torch_file(folder, model):
    torch.save(model.state_dict(), folder / "old.bin", _use_new_zipfile_serialization=False)
    return folder / "old.bin"


def wrapped_torch_file(folder, model):
    optimizer = stepped(net(9))
    saved = {"epoch": 3, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, folder / "wrapped.ckpt")
    return folder / "wrapped.ckpt"


def dcp_folder(folder, model):
    dcp.save(model.state_dict(), checkpoint_id=folder / "dcp")
    return folder / "dcp"


def wrapped_dcp_folder(folder, model):
    state = {"model": model.state_dict(), "optimizer": stepped(net(9)).state_dict()}
    dcp.save(state, checkpoint_id=folder / "dcp")
    return folder / "dcp"


def arrays(model):
    return {name: each.numpy() for name, each in model.state_dict().items()}


def safetensors_file(folder, model):
    save_file(arrays(model), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def one_file_folder(folder, model):
    save_file(arrays(model), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def indexed_folder(folder, model):
    """A Hugging Face folder with two files and their index."""
    tensors, index = arrays(model), {}
    for number in (0, 1):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        share = dict(list(tensors.items())[number::2])
        save_file(share, folder / file)
        index |= dict.fromkeys(share, file)
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def strata_checkpoint(folder, model):
    return saved(folder, {"model": model, "optimizer": stepped(net(9))})


FORMATS = [
    torch_file,
    old_torch_file,
    wrapped_torch_file,
    dcp_folder,
    wrapped_dcp_folder,
    safetensors_file,
    one_file_folder,
    indexed_folder,
    strata_checkpoint,
]


@pytest.mark.parametrize("write", FORMATS)
def test_model_gets_the_weights_of_each_format(tmp_path, write):
    model, other = net(1), net(2)
    place = write(tmp_path, other)
    optimizer = torch.optim.AdamW(model.parameters())
    warm(place, {"model": model})
    assert same(model, other)
    assert not optimizer.state


@pytest.mark.parametrize("write", [torch_file, dcp_folder, safetensors_file, strata_checkpoint])
def test_another_type_is_cast(tmp_path, write):
    model, other = net(1).bfloat16(), net(2)
    found = []
    recorder = Recorder()
    recorder.emit = lambda fact, *_, **__: found.append(fact)
    loader = WeightLoader(recorder, load_process({}), list)
    wanted = InitialWeights(place=write(tmp_path, other))
    loader.load({"model": model}, wanted, 0, lambda key, value: value)
    assert same(model, other.bfloat16())
    assert found[-1].casts == ["8 from F32 to BF16"]


@pytest.mark.parametrize("write", [torch_file, dcp_folder, safetensors_file, strata_checkpoint])
def test_shard_gets_its_box(tmp_path, write):
    other = net(2, width=8)
    whole = other.state_dict()["2.weight"].numpy()
    place = write(tmp_path, other)
    for offsets, shape in (([1, 0], [1, 8]), ([0, 3], [2, 4])):
        piece = Sharded(np.zeros(shape, np.float32), [2, 8], offsets)
        warm(place, {"model": {"2.weight": piece}}, strict=False)
        rows, columns = (slice(o, o + n) for o, n in zip(offsets, shape, strict=True))
        assert (piece.array == whole[rows, columns]).all()


def test_optimizer_of_the_checkpoint_is_restored_with_its_model(tmp_path):
    model, other = net(1), net(2)
    ours, theirs = torch.optim.AdamW(model.parameters(), lr=0.1), stepped(other)
    place = saved(tmp_path, {"model": other, "optimizer": theirs, "extra": {"x": np.ones(2)}})
    warm(place, {"model": model, "optimizer": ours})
    assert same(model, other)
    assert str(ours.state_dict()) == str(theirs.state_dict())


def test_optimizer_can_be_left_out(tmp_path):
    model, other = net(1), net(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    place = saved(tmp_path, {"model": other, "optimizer": stepped(other)})
    warm(place, {"model": model, "optimizer": optimizer}, rename={"optimizer": None})
    assert same(model, other)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_part_that_the_source_lacks_stays(tmp_path):
    model, other = net(1), net(2)
    optimizer = stepped(net(3))
    before = str(optimizer.state_dict())
    warm(saved(tmp_path, {"model": other}), {"model": model, "optimizer": optimizer})
    assert same(model, other)
    assert str(optimizer.state_dict()) == before


def test_new_head_keeps_its_values_without_strict(tmp_path, caplog):
    caplog.set_level("INFO")
    model, other = net(1, outputs=5), net(2)
    head = model[2].weight.clone(), model[2].bias.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    place = saved(tmp_path, {"model": other, "optimizer": stepped(other)})
    warm(place, {"model": model, "optimizer": optimizer}, strict=False)
    assert torch.equal(model[0].weight, other[0].weight)
    assert torch.equal(model[1].running_mean, other[1].running_mean)
    assert torch.equal(model[2].weight, head[0])
    assert torch.equal(model[2].bias, head[1])
    assert not optimizer.state, "its moments belong to other tensors"
    assert "kept 2 as initialised (model.2.weight, model.2.bias)" in caplog.text
    assert "ignored 2" in caplog.text


def test_another_model_is_an_error_with_counts_and_names(tmp_path):
    model, other = net(1, width=6), net(2)
    state = model.state_dict()
    before = {name: each.clone() for name, each in state.items()}
    place = saved(tmp_path, {"model": {**other.state_dict(), "gone": torch.ones(2)}})
    with pytest.raises(InvalidArgument) as raised:
        warm(place, {"model": model, "head": {"weight": np.zeros(3)}})
    text = str(raised.value)
    assert "1 missing in the source: 'head.weight'" in text
    assert "1 not in the state: 'model.gone'" in text
    assert "7 of another shape: 'model.0.weight' is [4, 3] there and [6, 3] here, " in text
    assert text.count(" there and ") == 5
    assert " and 2 more" in text
    assert "strict=False" in text
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


def test_source_of_which_nothing_fits_is_an_error(tmp_path):
    place = saved(tmp_path, {"encoder": {"weight": np.ones(3)}})
    with pytest.raises(InvalidArgument, match=r"no tensor of .* fits the state: 1 there \('encod"):
        warm(place, {"model": net(1)}, strict=False)


@pytest.mark.parametrize(
    "rename",
    [
        {"module": "", "module.0": "stem"},
        lambda name: name.removeprefix("module.").replace("0.", "stem."),
    ],
)
def test_names_are_mapped(tmp_path, rename):
    save_file(
        {"module.0.weight": np.full(3, 4.0), "module.head": np.full(2, 5.0)},
        tmp_path / "ddp.safetensors",
    )
    state = {"stem": {"weight": np.zeros(3)}, "head": np.zeros(2)}
    warm(tmp_path / "ddp.safetensors", state, rename=rename)
    assert state["stem"]["weight"].tolist() == [4, 4, 4]
    assert state["head"].tolist() == [5, 5]


def test_two_tensors_mapped_to_one_name_are_an_error(tmp_path):
    place = safetensors_file(tmp_path, net(2))
    with pytest.raises(InvalidArgument, match=r"both '0.bias' and '2.bias' to 'model.bias'"):
        warm(place, {"model": net(1)}, rename={"0.bias": "bias", "2.bias": "bias"})


def test_optimizer_of_reordered_tensors_is_refused(tmp_path):
    other = net(2)
    swapped = dict(reversed(other.state_dict().items()))
    place = saved(tmp_path, {"model": swapped, "optimizer": stepped(other)})
    model = net(1)
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    with pytest.raises(InvalidArgument, match="in another order"):
        warm(place, state)


@pytest.mark.parametrize(
    ("target", "name"),
    [(torch.int64, "I64"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3")],
)
def test_cast_that_could_lose_values_is_refused(tmp_path, target, name):
    save_file({"count": np.ones(2)}, tmp_path / "x.safetensors")
    with pytest.raises(InvalidArgument, match=f"'count' is F64 in the source and {name} here"):
        warm(tmp_path / "x.safetensors", {"count": torch.zeros(2, dtype=target)}, strict=False)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_number_beyond_the_range_of_the_type_is_an_error(tmp_path, library):
    save_file({"w": np.array([1.0, 1e6, np.inf])}, tmp_path / "x.safetensors")
    target = np.zeros(3, np.float16)
    target = torch.from_numpy(target) if library == "torch" else target
    with pytest.raises(InvalidArgument, match="'w' has numbers beyond the range"):
        warm(tmp_path / "x.safetensors", {"w": target})
    save_file({"w": np.array([1.0, 2.0, np.inf])}, tmp_path / "x.safetensors")
    warm(tmp_path / "x.safetensors", {"w": target})
    assert target.tolist() == [1.0, 2.0, np.inf]


class Tied(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.embed, self.head = torch.nn.Linear(3, 4, False), torch.nn.Linear(3, 4, False)
        self.head.weight = self.embed.weight
        torch.nn.init.constant_(self.embed.weight, value)


@pytest.mark.parametrize("write", [torch_file, dcp_folder, strata_checkpoint])
def test_tied_weights_are_taken_once(tmp_path, write):
    model = Tied(1.0)
    place = write(tmp_path, Tied(5.0))
    warm(place, {"model": model})
    assert model.head.weight is model.embed.weight
    assert bool((model.embed.weight == 5).all())


def test_tied_weights_may_have_one_name_in_the_source(tmp_path):
    save_file({"embed.weight": np.full((4, 3), 5.0, np.float32)}, tmp_path / "x.safetensors")
    model = Tied(1.0)
    warm(tmp_path / "x.safetensors", {"model": model})
    assert bool((model.head.weight == 5).all())


def test_tied_weights_with_different_values_are_an_error(tmp_path):
    one = np.full((4, 3), 5.0, np.float32)
    save_file({"embed.weight": one, "head.weight": one + 1}, tmp_path / "x.safetensors")
    with pytest.raises(InvalidArgument, match="are one tensor in this state, but differ"):
        warm(tmp_path / "x.safetensors", {"model": Tied(1.0)})


class Moments(NamedTuple):
    count: object
    mean: dict


def test_jax_tree_gets_new_arrays_and_keeps_its_random_key(tmp_path):
    jax = pytest.importorskip("jax")

    def tree(number, seed):
        weights = {"w": jax.numpy.full(4, float(number)), "scale": np.float32(number)}
        moments = Moments(jax.numpy.asarray(number), {"w": jax.numpy.full(4, -float(number))})
        return {"weights": weights, "moments": moments, "key": jax.random.key(seed)}

    place = saved(tmp_path, tree(3, 1))
    state = warm(place, tree(0, 2))
    assert isinstance(state["weights"]["w"], jax.Array)
    assert state["weights"]["w"].tolist() == [3.0] * 4
    assert state["weights"]["scale"] == 3
    assert isinstance(state["moments"], Moments)
    assert (int(state["moments"].count), state["moments"].mean["w"].tolist()) == (3, [-3.0] * 4)
    assert (
        jax.random.key_data(state["key"]).tolist()
        == jax.random.key_data(jax.random.key(2)).tolist()
    )


def test_temporary_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_transfer, "BATCH_BYTES", 4000)
    source = {f"w{n}": np.full(300, n, np.float64) for n in range(10)}
    save_file(source, tmp_path / "x.safetensors")
    sizes = []
    fill = weight_transfer.WeightTransfer._batches

    def counted(transfer):
        for batch in fill(transfer):
            sizes.append(sum(each.view.memory.nbytes for each in batch))
            yield batch

    monkeypatch.setattr(weight_transfer.WeightTransfer, "_batches", counted)
    state = {name: np.zeros(300, np.float32) for name in source}
    warm(tmp_path / "x.safetensors", state)
    assert all((state[name] == source[name]).all() for name in source)
    assert max(sizes) <= 4800
    assert sum(sizes) == 10 * 2400


def test_newest_checkpoint_of_a_task_is_taken_or_the_named_one(tmp_path):
    for step in (5, 20):
        saved(tmp_path / "digits-1", {"w": np.full(2, float(step))}, step)
    (older,) = (tmp_path / "digits-1").glob("step-00000005-*.json")
    for place, expected in (
        ("digits-1", 20),
        (f"digits-1/{older.stem}", 5),
        (older, 5),
        (str(tmp_path / "digits-1"), 20),
    ):
        state = {"w": np.zeros(2)}
        warm(place, state, roots=[tmp_path / "nothing", tmp_path])
        assert state["w"].tolist() == [expected] * 2


def test_workers_take_the_checkpoint_that_rank_0_found(tmp_path):
    saved(tmp_path / "digits-1", {"w": np.full(2, 5.0)}, 5)
    (older,) = (tmp_path / "digits-1").glob("step-*.json")
    saved(tmp_path / "digits-1", {"w": np.full(2, 6.0)}, 6)
    state = {"w": np.zeros(2)}
    warm(
        "digits-1",
        state,
        roots=[tmp_path],
        agree=lambda key, value: older.stem if key == "checkpoint" else value,
    )
    assert state["w"].tolist() == [5, 5]


def test_worker_with_another_file_than_rank_0_gets_an_error(tmp_path):
    told = {}
    save_file({"w": np.ones(2)}, tmp_path / "x.safetensors")
    warm(tmp_path / "x.safetensors", {"w": np.zeros(2)}, lambda k, v: told.setdefault(k, v))
    save_file({"w": np.full(2, 3.0)}, tmp_path / "x.safetensors")
    with pytest.raises(InvalidArgument, match=r"read other weights from .* than rank 0"):
        warm(tmp_path / "x.safetensors", {"w": np.zeros(2)}, lambda k, v: told.setdefault(k, v))


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("digits-9", "task 'digits-9' has no checkpoint: looked in "),
        ("digits-1/step-00000099-1", "there is no checkpoint step-00000099-1: looked in "),
        ("./no/such/folder", "no/such/folder does not exist"),
    ],
)
def test_deleted_or_unknown_source_is_an_error(tmp_path, place, expected):
    saved(tmp_path / "digits-1", {"w": np.ones(2)})
    with pytest.raises(NotFound, match=expected):
        warm(place, {"w": np.zeros(2)}, roots=[tmp_path])


def test_folder_without_weights_is_an_error(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(NotFound, match="there are no weights in"):
        warm(tmp_path, {"w": np.zeros(2)})


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF
    path.write_bytes(data)


def test_damaged_checkpoint_is_an_error(tmp_path):
    place = saved(tmp_path, {"w": np.ones(2000)})
    flip(next(place.glob("*.safetensors")))
    with pytest.raises(Corrupt, match="do not match their checksum"):
        warm(place, {"w": np.zeros(2000)})
    next(place.glob("*.safetensors")).unlink()
    with pytest.raises(Corrupt, match="the file does not exist"):
        warm(place, {"w": np.zeros(2000)})


@pytest.mark.parametrize("write", [torch_file, old_torch_file, safetensors_file])
def test_truncated_file_is_an_error(tmp_path, write):
    place = write(tmp_path, net(2))
    cut(place)
    with pytest.raises(Corrupt, match=r"damaged|truncated"):
        warm(place, {"model": net(1)})


def test_dcp_folder_without_a_file_is_an_error(tmp_path):
    place = dcp_folder(tmp_path, net(2))
    next(place.glob("*.distcp")).unlink()
    with pytest.raises(Corrupt, match="cannot be read"):
        warm(place, {"model": net(1)})


class Attack:
    def __reduce__(self):
        return exec, ("raise SystemExit('code of the file ran')",)


def test_file_with_code_is_refused(tmp_path):
    torch.save({"model": Attack()}, tmp_path / "x.pt")
    with pytest.raises(InvalidArgument, match=r"is not a file of torch.save with only weights"):
        warm(tmp_path / "x.pt", {"model": net(1)})
    place = dcp_folder(tmp_path, net(2))
    (place / ".metadata").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(Corrupt, match=r"it names builtins.exec"):
        warm(place, {"model": net(1)})


def test_incomplete_hugging_face_folder_is_an_error(tmp_path):
    indexed_folder(tmp_path, net(2))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(NotFound, match=r"lacks 1 of the 2 files that model.safetensors.index.json"):
        warm(tmp_path, {"model": net(1)})


def test_safetensors_need_no_torch(tmp_path):
    save_file({"w": np.arange(6.0).reshape(2, 3)}, tmp_path / "x.safetensors")
    script = f"""
import sys
import numpy as np
from strata.config import load_process
from strata.sdk.record.recorder import Recorder
from strata.sdk.state.initial_weights import InitialWeights, WeightLoader

state = {{"w": np.zeros((2, 3), np.float32)}}
loader = WeightLoader(Recorder(), load_process({{}}), list)
wanted = InitialWeights(place={str(tmp_path / "x.safetensors")!r})
loader.load(state, wanted, 0, lambda key, value: value)
print(state["w"].sum(), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["15.0", "False"], done.stderr


def test_snapshot_of_the_hugging_face_cache_is_read_through_its_links(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1f2e"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    other = net(2)
    for path in indexed_folder(blobs, other).iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    model = net(1)
    warm(snapshot, {"model": model})
    assert same(model, other)


def test_checkpoint_and_file_on_s3_are_read(tmp_path, s3):
    other, place = net(2), f"s3://{BUCKET}/warm"
    with CheckpointManager(f"{place}/digits-1") as manager:
        manager.save(plain({"model": other}), step=3, epoch=0)
        manager.wait_pending()
    storage = open_storage(place, load_process({}))
    storage.put("model.safetensors", safetensors_file(tmp_path, other).read_bytes())
    for each in (f"{place}/digits-1", place, f"{place}/model.safetensors"):
        model = net(1)
        warm(each, {"model": model})
        assert same(model, other)
    with pytest.raises(NotFound, match="there are no weights in s3://"):
        warm(f"{place}/nothing", {"model": net(1)})


def test_index_with_impossible_file_names_is_an_error(tmp_path):
    names = {"a": "x" * 5_000, "b": "../model.safetensors", "c": ""}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(NotFound, match="lacks 3 of the 3 files"):
        open_foreign(open_storage(str(tmp_path)), load_process({}))


def test_archive_without_an_end_is_corrupt(tmp_path):
    """PyTorch reports it as an error of the system."""
    pytest.importorskip("torch")
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04" + b"Z" * 2_000)
    with pytest.raises((Corrupt, InvalidArgument), match=str(path)):
        open_foreign(open_storage(str(path)), load_process({}))
