"""Snapshots of the state that later releases can still load.

A snapshot is the state by field names, and beside it the *shape* of the release that wrote it: the
fields of every structure. A later release reads it by name:

- a field that was added since gets its default, so the default must be what folding the facts
  before it would have given;
- a field that was removed since is ignored, if `REMOVED` lists it. An unknown field that is not
  listed means that a newer release wrote the snapshot;
- a change of meaning, or a new field whose value depends on facts that were folded already, raises
  `VERSION`. `MIGRATIONS` then holds a function from each earlier version to the next; where a
  version has none, snapshots of that version are not loaded, and the log is folded again.

A snapshot that cannot be loaded costs time, never truth: `decode` refuses it, and the caller begins
at an older one or at the first fact. `tests/core/test_state_versions.py` loads snapshots that
earlier releases wrote and compares them with the fold of the same facts.
"""

from collections.abc import Callable
from typing import TypeAlias, get_args

import msgspec
from msgspec import Struct

from strata.core.state import Cluster
from strata.errors import Corrupt, UnknownKind

VERSION = 1

Tree: TypeAlias = dict[str, object]
"""A state as it is encoded: maps, lists, numbers and strings."""

MIGRATIONS: dict[int, Callable[[Tree], Tree]] = {}
"""By version: how a state of that version becomes a state of the next one."""

REMOVED: frozenset[str] = frozenset()
"""Fields of earlier releases that this one does without, as `Struct.field`."""

Shape: TypeAlias = dict[str, list[str]]

_PREFIX = "state/"


class _Stored(Struct, array_like=True):
    """A snapshot as it is stored."""

    shape: Shape
    state: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_stored = msgspec.msgpack.Decoder(_Stored)
_cluster: msgspec.msgpack.Decoder[Cluster] = msgspec.msgpack.Decoder(Cluster)
_tree: msgspec.msgpack.Decoder[Tree] = msgspec.msgpack.Decoder(Tree)


def schema_of(version: int) -> str:
    """What the store calls snapshots of a version."""
    return f"{_PREFIX}{version}"


def readable() -> tuple[str, ...]:
    """The schemas that this release loads, the newest first."""
    versions = [VERSION]
    while versions[-1] - 1 in MIGRATIONS:
        versions.append(versions[-1] - 1)
    return tuple(map(schema_of, versions))


SCHEMA = schema_of(VERSION)


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
    """The state that a snapshot holds, migrated to this release.

    Raises `UnknownKind` when this release cannot load it, `Corrupt` when it is no snapshot.
    """
    if schema not in readable():
        raise UnknownKind(f"a snapshot of schema {schema!r} cannot be loaded by this release")
    try:
        stored = _stored.decode(snapshot)
        _require_known_fields(stored.shape)
        version = int(schema.removeprefix(_PREFIX))
        if version == VERSION:
            return _cluster.decode(stored.state)
        return msgspec.convert(_migrated(_tree.decode(stored.state), version), Cluster)
    except msgspec.ValidationError as error:
        raise UnknownKind(f"a snapshot does not have the types of this release: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a snapshot cannot be decoded: {error}") from error


def _require_known_fields(shape: Shape) -> None:
    """Refuses the snapshot of a newer release, whose fields would be lost without notice."""
    written = {f"{struct}.{name}" for struct, names in shape.items() for name in names}
    known = {f"{struct}.{name}" for struct, names in SHAPE.items() for name in names}
    unknown = sorted(written - known - REMOVED)
    if unknown:
        raise UnknownKind(
            f"a snapshot has fields that this release does not know: {', '.join(unknown[:5])}",
            hint="a newer release wrote it, or a removed field is missing in REMOVED",
        )


def _migrated(tree: Tree, version: int) -> Tree:
    for each in range(version, VERSION):
        tree = MIGRATIONS[each](tree)
    return tree
