"""Guards that a state is restored with its types: NamedTuples, dataclasses, Structs, JAX arrays and
pytrees, objects with `state_dict`; and that a restore neither deletes nor half-fills anything.
"""

import dataclasses
import itertools
import logging
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from strata.checkpoint.state.stateful import plain, restore_into, restore_target
from strata.errors import InvalidArgument


class AdamState(NamedTuple):
    count: Any
    mu: Any
    nu: Any


class EmptyState(NamedTuple):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    weight: Any
    name: str = "a"


@dataclasses.dataclass
class Mutable:
    weight: Any
    history: list = dataclasses.field(default_factory=list)


class Record(msgspec.Struct):
    weight: Any
    inner: Any = None


def restored(local, saved, target):
    """The target after a checkpoint of `saved` was restored into it."""
    local.save(plain(saved), step=1)
    local.wait_pending()
    with local.open() as reader:
        return restore_into(target, reader.load(restore_target(target)))


def of(value, count=5):
    return np.full(count, value, np.float32)


@pytest.mark.parametrize(
    "make",
    [
        lambda v: AdamState(np.int32(v), {"w": of(v)}, [of(v + 1)]),
        lambda v: (AdamState(v, of(v), of(v)), EmptyState(), (of(v),)),
        lambda v: Frozen(of(v), f"name {v}"),
        lambda v: Mutable(of(v), [v, of(v)]),
        lambda v: Record(of(v), Record(AdamState(v, of(v), None))),
    ],
)
def test_types_are_restored_with_and_without_an_original(local, make):
    saved, target = make(7), make(1)
    found = restored(local, {"state": saved}, {"state": target})["state"]
    assert_equal(found, saved)
    assert_equal(local.load()["state"], saved)


def assert_equal(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.tolist() == wanted.tolist()
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, each in wanted.items():
            assert_equal(found[key], each)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_equal(one, other)
    elif isinstance(wanted, msgspec.Struct):
        assert_equal(msgspec.structs.asdict(found), msgspec.structs.asdict(wanted))
    elif dataclasses.is_dataclass(wanted):
        assert_equal(vars(found), vars(wanted))
    else:
        assert found == wanted


@pytest.mark.parametrize("make", [of, lambda v: {"w": of(v)}, lambda v: [of(v)], Mutable])
def test_shared_containers_of_the_target_are_restored_separately(local, make):
    """One tree of zeros often is both moments of an optimizer before its first step."""
    zeros = make(0)
    saved, target = {"opt": AdamState(1, make(2), make(3))}, {"opt": AdamState(0, zeros, zeros)}
    found = restored(local, saved, target)["opt"]
    assert_equal(found, saved["opt"])


def test_mutable_object_is_filled_and_frozen_one_is_replaced(local):
    target = {"mutable": Mutable(of(0)), "frozen": Frozen(of(0)), "array": of(0)}
    held = dict(target)
    found = restored(local, {**target, "mutable": Mutable(of(3)), "frozen": Frozen(of(4))}, target)
    assert found is target
    assert found["mutable"] is held["mutable"]
    assert found["array"] is held["array"]
    assert held["mutable"].weight.tolist() == [3] * 5
    assert found["frozen"] is not held["frozen"]
    assert found["frozen"].weight.tolist() == [4] * 5


def test_unimported_type_is_loaded_as_its_fields_with_a_warning(local, caplog, monkeypatch):
    local.save({"a": AdamState(1, of(2), None), "b": Frozen(of(3))}, step=1)
    local.wait_pending()
    monkeypatch.delattr(f"{__name__}.AdamState")
    monkeypatch.delattr(f"{__name__}.Frozen")
    with caplog.at_level(logging.WARNING):
        found = local.load()
    assert found["a"]._fields == ("count", "mu", "nu")
    assert found["b"]["weight"].tolist() == [3] * 5
    assert "Frozen cannot be built without an object to restore into" in caplog.text


def test_a_tuple_that_was_saved_is_restored_into_a_namedtuple(local):
    target = {"opt": AdamState(0, of(0), of(0))}
    found = restored(local, {"opt": (1, of(2), of(3))}, target)["opt"]
    assert_equal(found, AdamState(1, of(2), of(3)))


def test_different_type_is_refused(local):
    with pytest.raises(
        InvalidArgument, match=r"'opt' is a .*Frozen with weight, name, but the che"
    ):
        restored(local, {"opt": AdamState(0, of(0), of(0))}, {"opt": Frozen(of(1))})


def test_keys_with_equal_text_are_distinguished(local):
    state = {1: of(1), "1": of(2)}
    found = restored(local, state, {1: of(0), "1": of(0)})
    assert_equal(found, state)


def test_read_only_array_is_replaced(local):
    fixed = of(0)
    fixed.flags.writeable = False
    assert restored(local, {"a": of(6)}, {"a": fixed})["a"].tolist() == [6] * 5
    assert fixed.tolist() == [0] * 5


def test_missing_keys_are_kept_and_named(local, caplog):
    target = {"weight": of(0), "best": 3.5, "history": {"losses": [1, 2]}}
    with caplog.at_level(logging.WARNING):
        found = restored(local, {"weight": of(8), "history": {}}, target)
    assert found["best"] == 3.5
    assert found["history"] == {"losses": [1, 2]}
    assert found["weight"].tolist() == [8] * 5
    assert "the checkpoint has no 'best', 'history.losses': not restored" in caplog.text


def model(torch, *sizes):
    return torch.nn.Sequential(*[torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])


def test_a_model_with_new_layers_is_refused_before_anything_changes(local):
    torch = pytest.importorskip("torch")
    small, large = model(torch, 3, 4), model(torch, 3, 4, 5)
    before = {"note": "mine", "model": large}
    told = r"no values for 2 tensors of the model: 'model.1.weight', 'model.1.bias'"
    with pytest.raises(InvalidArgument, match=told):
        restored(local, {"note": "saved", "model": small}, before)
    assert before["note"] == "mine"


def test_model_missing_in_the_checkpoint_is_refused(local):
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match=r"2 tensors of the model: 'ema.0.weight'"):
        restored(local, {"step": 1}, {"step": 0, "ema": model(torch, 2, 2)})


def test_optimizer_missing_in_the_checkpoint_is_kept(local, caplog):
    torch = pytest.importorskip("torch")
    net = model(torch, 2, 2)
    target = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.25)}
    with caplog.at_level(logging.WARNING):
        found = restored(local, {"model": model(torch, 2, 2)}, target)
    assert found["optimizer"].param_groups[0]["lr"] == 0.25
    assert "'optimizer'" in caplog.text


def test_objects_with_state_dict_are_restored_inside_of_tuples_and_dataclasses(local):
    torch = pytest.importorskip("torch")
    saved, target = model(torch, 2, 2), model(torch, 2, 2)
    found = restored(local, (Frozen(saved, "b"), 1), (Frozen(target), 0))
    assert found[0].weight is target
    assert torch.equal(target[0].weight, saved[0].weight)
    assert (found[0].name, found[1]) == ("b", 1)


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def jax_state(jax, value):
    jnp = jax.numpy
    return {
        "params": {"w": jnp.full((3, 4), value), "b": jnp.full(4, value, jnp.bfloat16)},
        "opt": (AdamState(jnp.int32(value), {"w": jnp.full((3, 4), value)}, None), EmptyState()),
        "key": jax.random.key(value),
        "old_key": jax.random.PRNGKey(value),
        "small": jnp.full(3, value, jnp.float8_e4m3fnuz),
        "host": of(value),
    }


def test_jax_arrays_are_restored_as_jax_arrays(local, jax):
    saved, target = jax_state(jax, 7), jax_state(jax, 1)
    for found in (restored(local, saved, target), local.load()):
        assert jax.tree.structure(found) == jax.tree.structure(saved)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(saved), strict=True):
            assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
            assert (one == other).all()
    assert jax.random.normal(target["key"]) == jax.random.normal(saved["key"])


def test_jax_arrays_are_placed_as_those_they_replace(local, jax):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    target = {"a": jax.device_put(jax.numpy.zeros(8), sharding), "b": jax.numpy.zeros(8)}
    found = restored(local, {"a": jax.numpy.ones(8), "b": jax.numpy.ones(8)}, target)
    assert found["a"].sharding == sharding
    assert not found["b"].committed
    assert found["a"].sum() == found["b"].sum() == 8


def test_jax_numbers_that_would_lose_precision_are_refused(local, jax):
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        local.save({"a": jax.numpy.ones(3, "float64")}, step=1)
    local.wait_pending()
    with pytest.raises(InvalidArgument, match="float32 of float64"):
        local.load()


def test_registered_pytree_keeps_its_auxiliary_data(local, jax):
    class Train:
        """A dataclass as flax makes them: data that is saved, and functions that are not."""

        def __init__(self, params, apply) -> None:
            self.params, self.apply = params, apply

    jax.tree_util.register_pytree_with_keys(
        Train,
        lambda t: ([(jax.tree_util.GetAttrKey("params"), t.params)], t.apply),
        lambda apply, children: Train(children[0], apply),
    )
    saved, target = Train({"w": jax.numpy.ones(3)}, len), Train({"w": jax.numpy.zeros(3)}, max)
    found = restored(local, {"train": saved}, {"train": target})["train"]
    assert type(found) is Train
    assert found.apply is max
    assert found.params["w"].tolist() == [1, 1, 1]


def test_a_shape_that_differs_is_refused_for_jax_too(local, jax):
    with pytest.raises(InvalidArgument, match=r"'a' was saved as F32 \[3\] but would be loaded"):
        restored(local, {"a": jax.numpy.ones(3)}, {"a": jax.numpy.ones(4)})
