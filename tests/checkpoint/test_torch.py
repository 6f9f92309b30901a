"""Guards tensors and state dicts of PyTorch; skipped without torch."""

import subprocess
import sys

import numpy as np
import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.state.sharded_tensors import Sharded
from strata.errors import InvalidArgument

torch = pytest.importorskip("torch")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


def same(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.contiguous().view(-1).view(torch.uint8).tolist() == (
        other.contiguous().view(-1).view(torch.uint8).tolist()
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_torch_dtype_is_restored(manager, dtype):
    tensor = (torch.rand(7, 5) * 10).to(dtype)
    manager.save({"a": tensor, "t": tensor.t(), "empty": tensor[:0], "one": tensor[0, 0]}, step=1)
    manager.wait_pending()
    loaded = manager.load()
    for name, value in (("a", tensor), ("t", tensor.t()), ("empty", tensor[:0])):
        same(loaded[name], value)
    same(loaded["one"].reshape(1), tensor[0, 0].reshape(1))


def test_dtype_stored_as_bytes_is_filled_in_place_and_by_shards(local):
    whole = torch.randn(6, 4, dtype=torch.complex128)
    local.save({"a": whole, "b": whole}, step=1)
    local.wait_pending()
    target = torch.zeros(4, 6, dtype=torch.complex128).t()
    piece = Sharded(torch.zeros(2, 4, dtype=torch.complex128), [6, 4], [3, 0])
    with local.open() as reader:
        reader.load({"a": target, "b": piece})
    same(target, whole)
    same(piece.array, whole[3:5])


def test_shards_of_a_dtype_stored_as_bytes_are_saved(local):
    half = torch.randn(3, 4, dtype=torch.complex128)
    local.save({"a": Sharded(half, [3, 4], [0, 0])}, step=1)
    local.wait_pending()
    same(local.load()["a"], half)


def trained():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.rand(8, 20)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_model_and_optimizer_continue_from_a_checkpoint(local):
    model, optimizer = trained()
    local.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=1)
    local.wait_pending()
    fresh = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30))
    other = torch.optim.AdamW(fresh.parameters(), lr=0.5)
    loaded = local.load()
    fresh.load_state_dict(loaded["model"])
    other.load_state_dict(loaded["optimizer"])
    batch = torch.rand(8, 20)
    for each, steps in ((model, optimizer), (fresh, other)):
        steps.zero_grad()
        each(batch).sum().backward()
        steps.step()
    for name, value in model.state_dict().items():
        same(fresh.state_dict()[name], value)


def test_parameters_are_filled_in_place(local):
    model, _ = trained()
    local.save(model.state_dict(), step=1)
    local.wait_pending()
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    local.load(into=dict(model.state_dict()))
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    for name, value in wanted.items():
        same(model.state_dict()[name], value)


def test_non_contiguous_target_is_filled(local):
    tensor = torch.rand(4, 6)
    local.save({"a": tensor}, step=1)
    local.wait_pending()
    target = torch.zeros(6, 4).t()
    assert local.load(into={"a": target})["a"] is target
    same(target.contiguous(), tensor)


def test_tied_weights_are_stored_once(local):
    weight = torch.rand(500_000)
    local.save({"embedding": weight, "head": weight}, step=1)
    local.wait_pending()
    assert local.latest().size_bytes < 1.2 * weight.numel() * 4
    loaded = local.load()
    assert loaded["head"].data_ptr() == loaded["embedding"].data_ptr()


def test_sparse_and_quantized_tensors_are_refused_by_name(local):
    with pytest.raises(InvalidArgument, match=r"'a' is a tensor of .*sparse"):
        local.save({"a": torch.eye(3).to_sparse()}, step=1)
    with pytest.raises(InvalidArgument, match="on meta"):
        local.save({"a": torch.empty(3, device="meta")}, step=1)


def test_safetensors_opens_it_as_torch(local):
    from safetensors.torch import load_file

    tensor = torch.rand(9).to(torch.bfloat16)
    saved = local.save({"a": tensor}, step=1)
    local.wait_pending()
    same(load_file(local.storage.root / saved / "part-00000.safetensors")["a"], tensor)


def test_checkpoint_loads_as_numpy_without_torch(local):
    local.save({"a": torch.arange(5.0), "b": torch.ones(2, dtype=torch.bfloat16)}, step=1)
    local.wait_pending()
    script = (
        "import sys\nfrom strata.checkpoint.manager import CheckpointManager\n"
        "from strata.errors import InvalidArgument\n"
        "reader = CheckpointManager(sys.argv[1]).open()\n"
        "assert 'torch' not in sys.modules\n"
        "print(reader.tensor('a').tolist())\n"
        "try:\n    reader.load()\nexcept InvalidArgument as error:\n    print(error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, local.storage.url], capture_output=True, text=True
    )
    assert done.stdout.startswith("[0.0, 1.0, 2.0, 3.0, 4.0]\n"), done.stderr


def test_manager_does_not_import_torch(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": np.zeros(3), "b": torch.zeros(3)}, step=1)
        manager.wait_pending()
        loaded = manager.load()
    assert isinstance(loaded["a"], np.ndarray)
    assert isinstance(loaded["b"], torch.Tensor)
