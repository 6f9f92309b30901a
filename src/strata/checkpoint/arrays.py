"""Arrays of every library as bytes, in and out.

NumPy is always there. Torch is asked only when the program has imported it already, so that a run
without it pays nothing. Anything else that gives itself to NumPy (`__array__`: JAX, CuPy on the
host) is taken as NumPy.

safetensors names sixteen element types. NumPy's others (complex128, dates, text, big-endian
numbers) are stored as bytes, with NumPy's own name for them in the tree.
"""

import sys
from importlib import import_module
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.checkpoint.format import Shard
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


class Source(Struct):
    """An array that is to be stored: how it is described, and where its bytes are.

    `kind` says what to give back; `identity` is the same for two names of one memory. `raw_dtype`
    is NumPy's name of a type that safetensors lacks. `shard` is set where it is a box of a larger
    tensor, and `spare` where another rank has the same box and writes it.
    """

    value: Any
    kind: str
    dtype: str
    shape: list[int]
    size_bytes: int
    item_bytes: int
    identity: object = None
    raw_dtype: str | None = None
    shard: Shard | None = None
    spare: bool = False

    def copy_into(self, image: Bytes) -> None:
        """Copies the elements, in C order, to where they lie in the part."""
        if self.kind == "torch":
            _torch_into(self.value, image)
        else:
            _numpy_into(self.value, image)

    def flat(self) -> Bytes | None:
        """The bytes themselves, without a copy, where they already lie in order on the host."""
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
    return is_torch(value) or isinstance(value, np.ndarray | np.generic) or _is_arraylike(value)


def is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_arraylike(value: object) -> bool:
    return all(hasattr(value, name) for name in ("__array__", "dtype", "shape"))


def source_of(value: Any, where: str) -> Source:
    """Describes an array; one that cannot be stored is refused with its name."""
    if is_torch(value):
        return _torch_source(value, where)
    kind = "scalar" if isinstance(value, np.generic) else "numpy"
    array = np.asarray(value)
    dtype, raw = NUMPY_NAMES.get(array.dtype.name), None
    if dtype is None or not array.dtype.isnative:
        if array.dtype.kind not in RAW_KINDS or array.dtype.names is not None:
            raise InvalidArgument(
                f"{where} has elements of type {array.dtype}, which a checkpoint cannot hold",
                hint="save numbers; of objects save what they consist of",
            )
        dtype, raw = "U8", array.dtype.str
    shape = [*array.shape, array.dtype.itemsize] if raw else [*array.shape]
    identity = None
    if kind == "numpy":
        identity = (array.ctypes.data, array.shape, array.strides, array.dtype.str)
    return Source(
        value=array,
        kind=kind,
        dtype=dtype,
        shape=shape,
        size_bytes=array.nbytes,
        item_bytes=array.dtype.itemsize,
        identity=identity if array.nbytes else None,
        raw_dtype=raw,
    )


def _torch_source(value: Any, where: str) -> Source:
    name = NUMPY_NAMES.get(str(value.dtype).removeprefix("torch."))
    if name is None or str(value.layout) != "torch.strided" or value.device.type == "meta":
        raise InvalidArgument(
            f"{where} is a tensor of {value.dtype}, {value.layout} on {value.device}, which a "
            f"checkpoint cannot hold",
            hint="save dense tensors of plain numbers; of a quantized one its int_repr and scales",
        )
    size_bytes = value.numel() * value.element_size()
    stride = tuple(value.stride())
    identity = (str(value.device), value.data_ptr(), tuple(value.shape), stride, name)
    return Source(
        value=value,
        kind="torch",
        dtype=name,
        shape=[*value.shape],
        size_bytes=size_bytes,
        item_bytes=value.element_size(),
        identity=identity if size_bytes else None,
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
    """A fresh array of that kind, to be filled through `writable_bytes`."""
    if kind == "torch" and "torch" in sys.modules:
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, NAMES_NUMPY[dtype]))
    if raw_dtype is not None:
        return np.empty(shape[:-1], np.dtype(raw_dtype))
    return np.empty(shape, numpy_dtype(dtype))


def numpy_dtype(dtype: str) -> "np.dtype[Any]":
    if dtype in EXTENDED:
        try:
            found: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), NAMES_NUMPY[dtype]))
            return found
        except ImportError:
            raise InvalidArgument(
                f"NumPy has no type for {dtype}",
                hint="import torch before loading, or install ml_dtypes",
            ) from None
    return np.dtype(NAMES_NUMPY[dtype])


def writable_bytes(value: Any) -> memoryview | None:
    """The memory of an array to be filled in place; None where it does not lie in order there."""
    if is_torch(value):
        value = value.detach()
        if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj():
            return None
        torch = sys.modules["torch"]
        return memoryview(value.reshape(-1).view(torch.uint8).numpy())
    if not value.flags.c_contiguous or not value.flags.writeable:
        return None
    return memoryview(value.reshape(-1).view(np.uint8))


def described(value: Any) -> tuple[str, list[int]]:
    """Type and shape of an existing array, as the manifest names them."""
    source = source_of(value, "the target")
    return source.dtype, source.shape


def assign(target: Any, value: Any) -> None:
    """Copies one array into another that cannot be filled in place."""
    if is_torch(target):
        torch = sys.modules["torch"]
        with torch.no_grad():
            target.copy_(value if is_torch(value) else torch.from_numpy(value))
    else:
        target[...] = value
