"""The reference pages that are drawn from the source: docs/EVENTS.md and docs/LIFECYCLES.md.

Functions of the tables and the facts alone; `make docs` writes what they return, and a test
compares it with what is committed.
"""

import json
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from strata.core import (
    agents,
    agreements,
    barriers,
    checkpoints,
    cluster,
    datasets,
    exchange_facts,
    fencing,
    final_saves,
    generations,
    keeping,
    leases,
    limits,
    loops,
    pace,
    recovery,
    retention,
    salvage,
    save_points,
    setbacks,
    storage_waits,
    tasks,
    worker_facts,
    worker_operations,
    workers,
)
from strata.core.catalogue import CODEC
from strata.core.events import Envelope, Fact

GENERATED = "<!-- Drawn from src/strata/core by `make docs`; do not edit. -->"

MODULES = (
    cluster,
    workers,
    fencing,
    agents,
    tasks,
    generations,
    recovery,
    setbacks,
    storage_waits,
    datasets,
    loops,
    agreements,
    leases,
    pace,
    barriers,
    checkpoints,
    final_saves,
    save_points,
    retention,
    keeping,
    salvage,
    limits,
    worker_facts,
    worker_operations,
    exchange_facts,
)

LIVES = {
    "worker": "A worker says itself what it does. It is lost when the coordinator decides so, has "
    "left when it said so; either way the same id may register again, as a new incarnation.",
    "task": "A task waits for slots, starts, trains from generation to generation, and ends once. "
    "One whose workers come by themselves starts at once.",
    "barrier": "One round of a barrier: everyone expected arrives, or it fails and names who was "
    "missing. The next use of the name is a new round.",
    "checkpoint": "A checkpoint is real from the moment it is committed, and only then. One that "
    "was found to be damaged is failed afterwards and never restored.",
}


def lifecycles() -> str:
    """Every life cycle: what it is about, and its table as a diagram."""
    parts = [GENERATED, "# Life cycles"]
    for table in cluster.LIFECYCLES:
        title = table.name.capitalize()
        parts += [f"## {title}", LIVES[table.name], f"```mermaid\n{table.diagram()}\n```"]
    return "\n\n".join(parts) + "\n"


def events() -> str:
    """Every kind of fact that a run records, by concept, with its fields."""
    parts = [
        GENERATED,
        "# Events",
        "What the coordinator records, and after it what workers do. Each event is a fact in its "
        "envelope, which is an array in this order; the fact is a map that names its `kind` and "
        "leaves out fields that have their default.",
        _table(Envelope),
    ]
    shared: dict[str, type[Struct]] = {}
    for module in MODULES:
        name = module.__name__.rpartition(".")[2].replace("_", " ")
        parts += [f"## {name.capitalize()}", _first_sentence(module.__doc__)]
        for kind in kinds_of(module.__name__):
            parts += [f"### {kind.__name__}", str(kind.__doc__), _table(kind)]
            _collect(kind, shared)
    parts += ["## Structures", "What the fields above are made of."]
    for name in sorted(shared):
        parts += [f"### {name}", _first_sentence(shared[name].__doc__), _table(shared[name])]
    return "\n\n".join(parts) + "\n"


def kinds_of(module: str) -> list[type[Fact]]:
    """The kinds of fact that a module defines, in its order."""
    return [kind for kind in CODEC.kinds.values() if kind.__module__ == module]


def type_name(hint: object) -> str:
    """A field's type as text; a set of words is written out."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in args)
    if origin in (Union, UnionType):
        return " | ".join(type_name(arg) for arg in args)
    if hint is NoneType:
        return "none"
    name = str(getattr(origin or hint, "__name__", hint))
    inside = ", ".join("…" if arg is Ellipsis else type_name(arg) for arg in args)
    return f"{name}[{inside}]" if inside else name


def structs_in(hint: object) -> list[type[Struct]]:
    """The structures that a type is made of, at any depth of lists and maps."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [found for arg in get_args(hint) for found in structs_in(arg)]


def _collect(kind: type[Struct], shared: dict[str, type[Struct]]) -> None:
    for field in msgspec.structs.fields(kind):
        for found in structs_in(field.type):
            if found.__name__ not in shared:
                shared[found.__name__] = found
                _collect(found, shared)


def _table(kind: type[Struct]) -> str:
    rows = ["| field | type | default |", "| --- | --- | --- |"]
    for field in msgspec.structs.fields(kind):
        kind_name = type_name(field.type).replace("|", "\\|")
        rows.append(f"| `{field.name}` | {kind_name} | {_default(field)} |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not NODEFAULT:
        return f"`{field.default_factory()!r}`"
    return "" if field.default is NODEFAULT else f"`{json.dumps(field.default)}`"


def _first_sentence(text: str | None) -> str:
    return " ".join(str(text).partition("\n\n")[0].split())
