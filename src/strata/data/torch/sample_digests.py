"""Digests of single samples of a torch Dataset, for samples of any type.

Tensors, arrays, images, texts, numbers and containers of them are digested by content. For any
other object only the type is digested, so that the digest is the same in every process; for sparse
and quantised tensors the type and the shape.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import xxhash

from strata.data.torch.loader_adapter import import_torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def sample_digest(sample: object, *, content: bool = True) -> str:
    """The digest of a sample; without `content`, only of its types and shapes."""
    digest = xxhash.xxh3_128()
    _add(digest, sample, content)
    return digest.hexdigest()


def type_name(value: object) -> str:
    """The module and name of a value's type."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _add(digest: Any, value: Any, content: bool) -> None:
    digest.update(f"<{type_name(value)}>".encode())
    if isinstance(value, Mapping):
        for key, each in value.items():
            _add(digest, key, content)
            _add(digest, each, content)
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)}/".encode())
        for each in value:
            _add(digest, each, content)
    elif is_dataclass(value):
        for field in fields(value):
            _add(digest, getattr(value, field.name), content)
    elif isinstance(value, import_torch("torch").Tensor):
        _add_tensor(digest, value, content)
    elif isinstance(value, np.ndarray | np.generic):
        _add_array(digest, np.asarray(value), content)
    elif content and isinstance(value, _PLAIN):
        raw = value if isinstance(value, bytes) else repr(value).encode("utf-8", "replace")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    elif content and all(hasattr(value, each) for each in ("mode", "size", "tobytes")):
        digest.update(f"{value.mode}/{value.size}/".encode() + value.tobytes())  # a PIL image


def _add_tensor(digest: Any, tensor: Any, content: bool) -> None:
    torch = import_torch("torch")
    digest.update(f"{tensor.dtype}/{tensor.layout}/{tuple(tensor.shape)}/".encode())
    if content and tensor.layout == torch.strided and not tensor.is_quantized:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)


def _add_array(digest: Any, array: np.ndarray[Any, Any], content: bool) -> None:
    digest.update(f"{array.dtype}/{array.shape}/".encode())
    if array.dtype.hasobject:
        for each in array.ravel().tolist():
            _add(digest, each, content)
    elif content:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
