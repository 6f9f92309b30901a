"""Arrays of every library to and from bytes.

NumPy is always available. Torch and JAX are used only if the program has already imported them, so
a run without them pays nothing. Any other object with `__array__` is converted to NumPy and
restored as a NumPy array.

safetensors names sixteen element types. Other types are stored as bytes, with the name of the type
in the tree: NumPy's own (`<c16` for complex128, dates, text, big-endian numbers), or the name that
PyTorch and ml_dtypes share (`float8_e8m0fnu`).
"""

import sys
from importlib import import_module
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.checkpoint.manifest import SavedShard
from strata.errors import InvalidArgument

Bytes = NDArray[np.uint8]

NUMPY_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}
NAMES_NUMPY = {name: dtype for dtype, name in NUMPY_NAMES.items()}
EXTENDED = {"BF16", "F8_E4M3", "F8_E5M2"}
"""Types that NumPy has only with the package ml_dtypes."""

RAW_KINDS = "biufcmMSU"
RAW_TORCH = {
    "complex128": "<c16",
    "complex32": "complex32",
    "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2fnuz": "float8_e5m2fnuz",
    "float8_e8m0fnu": "float8_e8m0fnu",
    "float4_e2m1fn_x2": "float4_e2m1fn_x2",
}
"""Types of PyTorch that are stored as bytes, with their names in the tree."""

TORCH_RAW = {raw: name for name, raw in RAW_TORCH.items()}


class TensorSource(Struct):
    """An array to be stored: its description, and access to its bytes.

    `kind` is the library to restore it with; `identity` is equal for two names of one memory.
    `raw_dtype` is the name of a type that safetensors lacks; `shape` then ends with the bytes of an
    element. `key` is the generator of JAX's typed random keys. `shard` is set if it is a box of a
    larger tensor, and `duplicate` if another rank has the same box and writes it.
    """

    value: Any
    kind: str
    dtype: str
    shape: list[int]
    size_bytes: int
    item_bytes: int
    identity: object = None
    raw_dtype: str | None = None
    key: str = ""
    shard: SavedShard | None = None
    duplicate: bool = False

    @property
    def extra(self) -> dict[str, str]:
        """The fields of its tree entry beside name and kind."""
        dtype = {"dtype": self.raw_dtype} if self.raw_dtype is not None else {}
        return dtype | ({"key": self.key} if self.key else {})

    def copy_into(self, image: Bytes) -> None:
        """Copy the elements, in C order, to their place in the part."""
        if self.kind == "torch":
            _torch_into(self.value, image)
        else:
            _numpy_into(self.value, image)

    def flat(self) -> Bytes | None:
        """The bytes without a copy, if they are in C order on the host; otherwise None."""
        if self.kind == "torch":
            value = self.value.detach()
            if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj():
                return None
            torch = sys.modules["torch"]
            flat: Bytes = value.reshape(-1).view(torch.uint8).numpy()
            return flat
        if not self.value.flags.c_contiguous:
            return None
        return self.value.reshape(-1).view(np.uint8)  # type: ignore[no-any-return]


def is_array(value: object) -> bool:
    known = isinstance(value, np.ndarray | np.generic) or is_torch(value) or is_jax(value)
    return known or _is_arraylike(value)


def is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_jax(value: object) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _is_arraylike(value: object) -> bool:
    return all(hasattr(value, name) for name in ("__array__", "dtype", "shape"))


def source_of(value: Any, where: str) -> TensorSource:
    """The description of an array; raises with its name if it cannot be stored."""
    if is_torch(value):
        return _torch_source(value, where)
    if is_jax(value):
        data, key = jax_data(value, where)
        source = _numpy_source(np.asarray(data), "jax", where)
        source.key = key
        return source
    return _numpy_source(
        np.asarray(value), "scalar" if isinstance(value, np.generic) else "numpy", where
    )


def _numpy_source(array: NDArray[Any], kind: str, where: str) -> TensorSource:
    dtype, raw = NUMPY_NAMES.get(array.dtype.name), None
    if dtype is None or not array.dtype.isnative:
        dtype, raw = "U8", raw_name(array.dtype)
        if raw is None:
            raise InvalidArgument(
                f"{where} has elements of type {array.dtype}, which a checkpoint cannot hold",
                hint="save arrays of numbers; save the parts of objects one by one",
            )
    shape = [*array.shape, array.dtype.itemsize] if raw else [*array.shape]
    identity = None
    if kind != "scalar":
        identity = (array.ctypes.data, array.shape, array.strides, array.dtype.str, kind)
    return TensorSource(
        value=array,
        kind=kind,
        dtype=dtype,
        shape=shape,
        size_bytes=array.nbytes,
        item_bytes=array.dtype.itemsize,
        identity=identity if array.nbytes else None,
        raw_dtype=raw,
    )


def raw_name(dtype: "np.dtype[Any]") -> str | None:
    """The name of a NumPy type that safetensors lacks; None for arrays of objects."""
    if dtype.names is None and dtype.kind in RAW_KINDS:
        return dtype.str
    ml_dtypes = sys.modules.get("ml_dtypes")
    known = ml_dtypes is not None and getattr(ml_dtypes, dtype.name, None) is dtype.type
    return dtype.name if known else None


def jax_data(value: Any, where: str) -> tuple[Any, str]:
    """The numbers of a JAX array and, for typed random keys, their generator."""
    jax = sys.modules["jax"]
    key = ""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        key, value = str(jax.random.key_impl(value)), jax.random.key_data(value)
    if not (value.is_fully_addressable or value.is_fully_replicated):
        raise InvalidArgument(
            f"{where} is a JAX array of which this process holds only a part",
            hint="save the local pieces as strata.Sharded",
        )
    return value if value.is_fully_addressable else value.addressable_data(0), key


def jax_array(data: NDArray[Any], key: str, existing: Any) -> Any:
    """A JAX array of these numbers, placed like an existing one if it is given."""
    jax = sys.modules["jax"]
    array = jax.numpy.asarray(data)
    if array.dtype != data.dtype:
        raise InvalidArgument(
            f"JAX makes {array.dtype} of {data.dtype}",
            hint="set jax_enable_x64, as it was when the checkpoint was saved",
        )
    value = jax.random.wrap_key_data(array, impl=key) if key else array
    if existing is not None and getattr(existing, "committed", True):
        value = jax.device_put(value, existing.sharding)
    return value


def _torch_source(value: Any, where: str) -> TensorSource:
    plain = str(value.dtype).removeprefix("torch.")
    raw = RAW_TORCH.get(plain)
    name = NUMPY_NAMES.get(plain) if raw is None else "U8"
    if name is None or str(value.layout) != "torch.strided" or value.device.type == "meta":
        raise InvalidArgument(
            f"{where} is a tensor of {value.dtype}, {value.layout} on {value.device}, which a "
            f"checkpoint cannot hold",
            hint="save dense tensors of plain numbers; of a quantized one its int_repr and scales",
        )
    size_bytes = value.numel() * value.element_size()
    stride = tuple(value.stride())
    identity = (str(value.device), value.data_ptr(), tuple(value.shape), stride, plain)
    return TensorSource(
        value=value,
        kind="torch",
        dtype=name,
        shape=[*value.shape, value.element_size()] if raw else [*value.shape],
        size_bytes=size_bytes,
        item_bytes=value.element_size(),
        identity=identity if size_bytes else None,
        raw_dtype=raw,
    )


def _numpy_into(array: NDArray[Any], image: Bytes) -> None:
    if not array.nbytes:
        return
    if not array.flags.c_contiguous and array.dtype.isnative and array.dtype.kind in "biufc":
        np.copyto(image.view(array.dtype).reshape(array.shape), array)
    else:
        np.copyto(image, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _torch_into(value: Any, image: Bytes) -> None:
    torch = sys.modules["torch"]
    if value.numel():
        target = torch.from_numpy(image).view(value.dtype).reshape(value.shape)
        target.copy_(value.detach())


def empty(kind: str, dtype: str, shape: list[int], raw_dtype: str | None) -> Any:
    """A new array of that kind, to be filled through `writable_bytes`."""
    if kind == "torch" and "torch" in sys.modules:
        torch = sys.modules["torch"]
        if raw_dtype is not None:
            return torch.empty(shape[:-1], dtype=getattr(torch, TORCH_RAW[raw_dtype]))
        return torch.empty(shape, dtype=getattr(torch, NAMES_NUMPY[dtype]))
    if raw_dtype is not None:
        known = raw_dtype[0] in "<>|="  # NumPy's own
        return np.empty(shape[:-1], np.dtype(raw_dtype) if known else extended_dtype(raw_dtype))
    return np.empty(shape, numpy_dtype(dtype))


def numpy_dtype(dtype: str) -> "np.dtype[Any]":
    name = NAMES_NUMPY[dtype]
    return extended_dtype(name) if dtype in EXTENDED else np.dtype(name)


def extended_dtype(name: str) -> "np.dtype[Any]":
    """A type that NumPy has only with the package ml_dtypes."""
    try:
        found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return found
    except (ImportError, AttributeError):
        raise InvalidArgument(
            f"NumPy has no type for {name}",
            hint="import torch before loading, or install ml_dtypes",
        ) from None


def writable_bytes(value: Any) -> memoryview | None:
    """The memory of an array to be filled in place; None if it is not in C order on the host."""
    if is_torch(value):
        value = value.detach()
        if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj():
            return None
        torch = sys.modules["torch"]
        return memoryview(value.reshape(-1).view(torch.uint8).numpy())
    if not value.flags.c_contiguous or not value.flags.writeable:
        return None
    return memoryview(value.reshape(-1).view(np.uint8))


def assign(target: Any, value: Any) -> None:
    """Copy one array into another that cannot be filled in place."""
    if is_torch(target):
        torch = sys.modules["torch"]
        with torch.no_grad():
            target.copy_(value if is_torch(value) else torch.from_numpy(value))
    else:
        target[...] = value
