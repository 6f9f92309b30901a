"""The generated reference pages: docs/EVENTS.md and docs/LIFECYCLES.md.

They depend on the tables and the fact classes alone; `make docs` writes them, and a test compares
them with the committed files.
"""

import json
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from strata.core import cluster, limits
from strata.core.access import access_tokens
from strata.core.alerts import alert_record
from strata.core.barriers import agreements, barrier_rules
from strata.core.checkpoints import checkpoint_lifecycle, checkpoint_retention, save_schedule
from strata.core.datasets import dataset_rules, lane_balance, shard_leases, training_loops
from strata.core.events import Envelope, Fact
from strata.core.generations import generation_members, recovery, recovery_failures, storage_waits
from strata.core.hosts import gpu_exclusion, host_exclusion, host_record
from strata.core.record import log_salvage, record_retention, store_outages
from strata.core.record.event_codec import CODEC
from strata.core.tasks import (
    continuation,
    elastic_workers,
    framework_trainer,
    media_room,
    preemption,
    resizing,
    task_forks,
    task_lifecycle,
    workdirs,
)
from strata.core.workers import (
    exchange_facts,
    fencing,
    host_agents,
    stack_collection,
    worker_facts,
    worker_lifecycle,
    worker_operations,
)

GENERATED = "<!-- Drawn from src/strata/core by `make docs`; do not edit. -->"

MODULES = (
    cluster,
    worker_lifecycle,
    fencing,
    host_agents,
    host_record,
    host_exclusion,
    gpu_exclusion,
    access_tokens,
    stack_collection,
    task_lifecycle,
    workdirs,
    continuation,
    task_forks,
    media_room,
    preemption,
    resizing,
    elastic_workers,
    framework_trainer,
    generation_members,
    recovery,
    recovery_failures,
    storage_waits,
    dataset_rules,
    training_loops,
    agreements,
    shard_leases,
    lane_balance,
    barrier_rules,
    checkpoint_lifecycle,
    save_schedule,
    checkpoint_retention,
    record_retention,
    log_salvage,
    store_outages,
    alert_record,
    limits,
    worker_facts,
    worker_operations,
    exchange_facts,
)

LIVES = {
    "worker": "A worker reports its own state. It is lost when the coordinator declares it lost, "
    "and has left when it deregistered; its id may register again, as a new incarnation.",
    "task": "A task waits for slots, starts, trains from generation to generation, and ends. An "
    "ended task can be continued, and a preempted one stops: then it waits for slots again. A task "
    "whose workers are started by the user starts at once.",
    "barrier": "One round of a barrier: every expected worker arrives, or it fails and names the "
    "missing workers. The next use of the name is a new round.",
    "checkpoint": "A checkpoint can be restored only after it is committed. One that was found to "
    "be damaged fails afterwards and is never restored.",
}


def lifecycles() -> str:
    """Every life cycle: a description, and its table as a diagram."""
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
        "The facts that the coordinator records, followed by those of the workers. Each event is a "
        "fact in its envelope. The envelope is an array in this order; the fact is a map with its "
        "`kind`, without the fields that have their default.",
        _table(Envelope),
    ]
    shared: dict[str, type[Struct]] = {}
    for module in MODULES:
        name = module.__name__.rpartition(".")[2].replace("_", " ")
        parts += [f"## {name.capitalize()}", _first_sentence(module.__doc__)]
        for kind in kinds_of(module.__name__):
            parts += [f"### {kind.__name__}", str(kind.__doc__), _table(kind)]
            _collect(kind, shared)
    parts += ["## Structures", "The types of the fields above."]
    for name in sorted(shared):
        parts += [f"### {name}", _first_sentence(shared[name].__doc__), _table(shared[name])]
    return "\n\n".join(parts) + "\n"


def kinds_of(module: str) -> list[type[Fact]]:
    """The kinds of fact that a module defines, in its order."""
    return [kind for kind in CODEC.kinds.values() if kind.__module__ == module]


def type_name(hint: object) -> str:
    """A field's type as text; a Literal is written out."""
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
    """The structures in a type, at any depth of lists and maps."""
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
