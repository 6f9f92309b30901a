"""Snapshots of the state, which this release and later ones can load.

A snapshot is a cache: one that cannot be loaded costs time, never truth. `decode` refuses it, and
the caller starts from an older one or from the first fact.

A snapshot holds the state by field names, and its *shape*: the fields of every structure. A later
release loads it if that is safe:

- a field that was added since gets its default, so the default must be what folding the facts
  before it would have given (`tests/core/test_state_versions.py` compares both);
- a field that this release does not know was removed since, or a newer release wrote it: refused;
- a change of meaning raises `VERSION`: snapshots of other versions are refused.
"""

from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from strata.core.state import Cluster
from strata.errors import UNDECODABLE, Corrupt, UnknownKind

VERSION = 1
SCHEMA = f"state/{VERSION}"

Shape: TypeAlias = dict[str, list[str]]
"""The fields of each structure, by its name."""


class _Stored(Struct, array_like=True):
    """A snapshot as it is stored."""

    shape: Shape
    state: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_stored = msgspec.msgpack.Decoder(_Stored)
_cluster: msgspec.msgpack.Decoder[Cluster] = msgspec.msgpack.Decoder(Cluster)


def shape_of(struct: type[Struct]) -> Shape:
    """The fields of a structure and of all structures within it, by name."""
    found: dict[str, type[Struct]] = {}
    waiting = [struct]
    while waiting:
        each = waiting.pop()
        known = found.setdefault(each.__name__, each)
        assert known is each, f"two structures of the state are called {each.__name__}"
        assert not each.__struct_config__.array_like, f"{each.__name__} has to be read by name"
        fields = msgspec.structs.fields(each)
        inner = [inside for field in fields for inside in _structs_in(field.type)]
        waiting += [inside for inside in inner if inside.__name__ not in found]
    return {
        name: [field.encode_name for field in msgspec.structs.fields(each)]
        for name, each in sorted(found.items())
    }


def _structs_in(hint: object) -> list[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [found for arg in get_args(hint) for found in _structs_in(arg)]


SHAPE = shape_of(Cluster)


def encode(state: Cluster) -> bytes:
    """A snapshot of the state; its schema is `SCHEMA`."""
    return _encode((SHAPE, state))


def decode(schema: str, snapshot: bytes) -> Cluster:
    """The state that a snapshot holds.

    Raises `UnknownKind` when this release cannot load it, `Corrupt` when it is not a snapshot.
    """
    if schema != SCHEMA:
        raise UnknownKind(f"a snapshot of schema {schema!r} cannot be loaded by this release")
    try:
        stored = _stored.decode(snapshot)
        _require_known_fields(stored.shape)
        return _cluster.decode(stored.state)
    except msgspec.ValidationError as error:
        raise UnknownKind(f"a snapshot does not have the types of this release: {error}") from error
    except UNDECODABLE as error:
        raise Corrupt(f"a snapshot cannot be decoded: {error}") from error


def _require_known_fields(shape: Shape) -> None:
    """Refuse a snapshot with unknown fields, which would be lost without notice."""
    written = {f"{struct}.{name}" for struct, names in shape.items() for name in names}
    known = {f"{struct}.{name}" for struct, names in SHAPE.items() for name in names}
    unknown = sorted(written - known)
    if unknown:
        raise UnknownKind(
            f"a snapshot has fields that this release does not know: {', '.join(unknown[:5])}",
            hint="another release wrote it; the log is folded instead, nothing is lost",
        )
