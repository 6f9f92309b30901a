"""Guards that torch, DCP and transformers load exports of several ranks, bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from strata.checkpoint.state.sharded_tensors import Sharded
from strata.checkpoint.write.part_sidecar import manifest_of, read_sidecars
from strata.checkpoint.write.part_writer import commit
from strata.errors import InvalidArgument, NotFound
from strata.storage.folder import LocalStorage
from tests.checkpoint.fsdp import CHECKPOINT as GRID
from tests.checkpoint.several_ranks import save_as_ranks
from tests.checkpoint.test_dtensor import play
from tests.checkpoint.test_export import export, remains

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

GRID_VALUES = torch.arange(35.0 * 12).reshape(35, 12)
TYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    *("complex64", "complex128", "complex32", "float8_e4m3fnuz", "float8_e8m0fnu"),
]
NOT_IN_SAFETENSORS = {"complex128", "complex32", "float8_e4m3fnuz"}


def same(one, other):
    """Whether two tensors have the same type, shape and bytes."""
    plain = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(*plain)


def assert_same_state(got, wanted):
    if isinstance(wanted, torch.Tensor):
        assert same(got, wanted)
    elif isinstance(wanted, dict):
        assert [*got] == [*wanted]
        for key in wanted:
            assert_same_state(got[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same_state(one, other)
    else:
        assert type(got) is type(wanted)
        assert got == wanted


def tiny_gpt2():
    torch.manual_seed(1)
    sizes = {"n_layer": 2, "n_embd": 24, "n_head": 2, "vocab_size": 101, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def tiny_llama():
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def trained():
    """A model and its optimizer after one step."""
    model = tiny_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    numbers = torch.arange(8).reshape(1, 8)
    model(numbers).logits.square().mean().backward()
    optimizer.step()
    return model, optimizer


def whole_state():
    model, optimizer = trained()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "numbers": torch.arange(6, dtype=torch.int16),
        "step": 3,
        "rate": float("inf"),
        "large": 2**70,
        "name": "trial ü",
        "nothing": None,
        "raw": b"some bytes",
        "pair": (1, [2.5, True]),
        "by_number": {0: torch.ones(3), 1: {"x": torch.zeros(0, 2)}},
    }


@pytest.fixture
def saved(tmp_path):
    state = whole_state()
    own = [Sharded(GRID_VALUES[:, 3 * r : 3 * r + 3], [35, 12], [0, 3 * r]) for r in range(4)]
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {**state, "grid": own[rank]})
    return storage, {**state, "grid": GRID_VALUES}


def test_torch_file_has_the_whole_nested_state_of_four_ranks(saved, tmp_path):
    storage, state = saved
    report = export(storage, format="torch", out=tmp_path / "out")
    loaded = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert_same_state(loaded, state)
    model = loaded["model"]
    assert model["lm_head.weight"] is model["transformer.wte.weight"]
    assert report.left_out == []
    mapped = torch.load(tmp_path / "out" / "checkpoint.pt", mmap=True, weights_only=True)
    assert_same_state(mapped, state)


def test_training_continues_from_a_torch_file(saved, tmp_path):
    storage, state = saved
    export(storage, format="torch", out=tmp_path / "out")
    loaded = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    model, optimizer = trained()
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert_same_state(optimizer.state_dict(), state["optimizer"])


def test_dcp_loads_the_whole_state_of_four_ranks(saved, tmp_path):
    storage, state = saved
    export(storage, format="dcp", out=tmp_path / "out")
    model, _ = trained()
    empty = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    into = {
        "model": empty,
        "grid": torch.zeros(35, 12),
        "numbers": torch.zeros(6, dtype=torch.int16),
        **dict.fromkeys(("step", "rate", "large", "name", "nothing", "raw", "pair")),
    }
    dcp.load(into, checkpoint_id=tmp_path / "out", no_dist=True)
    assert_same_state(into, {name: state[name] for name in into})


def test_dcp_folder_converts_to_the_same_torch_file(saved, tmp_path):
    """PyTorch's own tool reads every entry of the folder."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    storage, state = saved
    export(storage, format="dcp", out=tmp_path / "out", only="optimizer")
    dcp_to_torch_save(tmp_path / "out", tmp_path / "all.pt")
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    for number, moments in state["optimizer"]["state"].items():
        assert_same_state(loaded["state"][str(number)], moments)


@pytest.mark.parametrize("wanted", ["torch", "dcp", "safetensors"])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_element_type_keeps_its_bytes(tmp_path, wanted):
    names = [each for each in TYPES if wanted != "safetensors" or each not in NOT_IN_SAFETENSORS]
    data = torch.arange(16 * 6, dtype=torch.uint8)
    state = {name: data.clone().view(getattr(torch, name)).reshape(2, -1) for name in names}
    state["bool"] = torch.tensor([[True], [False]])
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: state, world_size=3)
    export(storage, format=wanted, out=tmp_path / "out")
    if wanted == "torch":
        loaded = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    elif wanted == "safetensors":
        loaded = load_file(tmp_path / "out" / "model.safetensors")
    else:
        loaded = {name: torch.zeros_like(value) for name, value in state.items()}
        dcp.load(loaded, checkpoint_id=tmp_path / "out", no_dist=True)
    assert loaded.keys() == state.keys()
    assert [name for name in state if not same(loaded[name], state[name])] == []


def test_arrays_of_numpy_become_tensors_and_numbers(tmp_path):
    storage = LocalStorage(tmp_path / "from")
    state = {"array": np.arange(5), "rate": np.float32(0.5), "count": np.uint8(7)}
    save_as_ranks(storage, lambda rank: state)
    export(storage, format="torch", out=tmp_path / "out")
    loaded = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert_same_state(loaded, {"array": torch.arange(5), "rate": 0.5, "count": 7})


def test_type_that_torch_lacks_is_refused(tmp_path):
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"when": np.array(["2024-01-01"], "M8[s]")})
    with pytest.raises(InvalidArgument, match="torch has no type for 'when'"):
        export(storage, format="torch", out=tmp_path / "out")
    assert remains(tmp_path) == []


def test_fsdp_over_tensor_parallelism_is_exported_whole(tmp_path):
    """Four processes each hold a box of a grid; every element's value is its position."""
    checksums = play("grid", 4, tmp_path / "from")
    storage = LocalStorage(tmp_path / "from")
    commit(storage, manifest_of(read_sidecars(storage, GRID, dict(enumerate(checksums))), 1, 1))
    export(storage, GRID, format="torch", out=tmp_path / "out", only="model")
    loaded = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    shapes = {"0.weight": (20, 12), "0.bias": (20,), "2.weight": (8, 20), "2.bias": (8,)}
    assert {name: tuple(value.shape) for name, value in loaded.items()} == shapes
    for value in loaded.values():
        assert torch.equal(value.reshape(-1), torch.arange(float(value.numel())))


def reference(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_llama])
@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 20_000])
def test_transformers_loads_the_model_of_four_ranks(tmp_path, make, shard_bytes):
    model = make()
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"model": model, "step": 3})
    out = tmp_path / "out"
    beside = reference(model, tmp_path / "beside")
    export(storage, format="hf", out=out, shard_bytes=shard_bytes, config_from=beside)
    loaded, info = type(model).from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_state(loaded.state_dict(), model.state_dict())
    assert (out / "tokenizer_config.json").read_text() == "{}"
    assert len([*out.glob("*.safetensors")]) == 1 or shard_bytes == 20_000
    written = {name for file in out.glob("*.safetensors") for name in load_file(file)}
    assert written == {*load_file(beside / "model.safetensors")}, (
        "the same names as save_pretrained"
    )


def test_tied_weights_stay_one_parameter(tmp_path):
    model = tiny_gpt2()
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"model": model, "config": model.config.to_dict()})
    report = export(storage, format="hf", out=tmp_path / "out")
    assert report.notes == [
        "lm_head.weight is tied to transformer.wte.weight, so it is not written twice"
    ]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_weights_that_the_config_does_not_tie_are_written_twice(tmp_path):
    model = tiny_gpt2()
    config = json.loads(model.config.to_json_string()) | {"tie_word_embeddings": False}
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"model": model, "config": config})
    export(storage, format="hf", out=tmp_path / "out")
    _, info = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info


def test_config_names_the_type_of_the_exported_weights(tmp_path):
    """A model of bfloat16 that was trained with float32 is not rounded when it is loaded."""
    beside = reference(tiny_llama(), tmp_path / "beside")
    model = tiny_llama().to(torch.float32)
    with torch.no_grad():
        model.lm_head.weight += 1e-5
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"model": model})
    export(storage, format="hf", out=tmp_path / "out", config_from=beside)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_same_state(loaded.state_dict(), model.state_dict())


def test_model_without_a_config_is_refused(tmp_path):
    model = tiny_gpt2()
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"model": model})
    with pytest.raises(NotFound, match="--config-from DIR"):
        export(storage, format="hf", out=tmp_path / "out")
    assert remains(tmp_path) == []


def test_names_of_a_wrapper_are_refused_until_they_are_left_out(tmp_path):
    model = tiny_gpt2()
    wrapped = {f"_orig_mod.{name}": value for name, value in model.state_dict().items()}
    beside = reference(model, tmp_path / "beside")
    storage = LocalStorage(tmp_path / "from")
    save_as_ranks(storage, lambda rank: {"model": wrapped})
    with pytest.raises(InvalidArgument, match=r"--only model\._orig_mod"):
        export(storage, format="hf", out=tmp_path / "out", config_from=beside)
    only = "model._orig_mod"
    export(storage, format="hf", out=tmp_path / "out", config_from=beside, only=only)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert_same_state(loaded.state_dict(), model.state_dict())


def test_state_dict_loads_from_safetensors(saved, tmp_path):
    storage, state = saved
    export(storage, format="safetensors", out=tmp_path / "out", only="model")
    tiny_gpt2().load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    assert_same_state(
        dict(sorted(load_file(tmp_path / "out" / "model.safetensors").items())),
        dict(sorted(state["model"].items())),
    )
