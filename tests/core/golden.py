"""The frozen schema of facts, logs and snapshots; run as a script it adds what is new to them.

    python -m tests.core.golden

It only ever adds: kinds that are not listed yet, fields that came with a default, words that a set
of words gained, to the logs one more run when a kind is in none of them, and to the snapshots those
of the newest run when the shape of the state is new. What is listed stays as it is; a change that
does not fit is refused, by the same check that the test makes.
"""

import json
from pathlib import Path

import msgspec
import zstandard
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from strata.core.cluster import CODEC, apply
from strata.core.events import Envelope, Fact
from strata.core.record import event_codec, snapshot_versions
from strata.core.record.event_reference import structs_in, type_name
from strata.core.state import Cluster
from strata.core.workers import worker_facts
from tests.core.scenario import every_kind

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = GOLDEN / "facts-v1.json"
LOG = GOLDEN / "log-v1.bin"
WORKER_LOG = GOLDEN / "worker-log-v1.bin"
STATES = GOLDEN / "states-v1.bin"

ADVICE = (
    "logs of earlier releases hold it as it was. Leave the old class as it is, make a new version "
    "of the kind (see Evolution in core/events.py) and give the old one an `upgrade`"
)

Schema = dict[str, dict[str, str]]


def schema_now() -> Schema:
    """Each kind of coordinator and workers by its tag, and each structure in the fields, with
    fields, types and defaults.

    A structure that is encoded as an array has `[]` after its name: its order counts too.
    """
    found: Schema = {}
    waiting: list[tuple[str, type[Struct]]] = [("Envelope", Envelope)]
    waiting += event_codec.CODEC.kinds.items()
    while waiting:
        name, struct = waiting.pop(0)
        name += "[]" if struct.__struct_config__.array_like else ""
        if name not in found:
            fields = msgspec.structs.fields(struct)
            found[name] = {field.name: _describe(field) for field in fields}
            waiting += [(s.__name__, s) for field in fields for s in structs_in(field.type)]
    return dict(sorted(found.items()))


def _describe(field: FieldInfo) -> str:
    """Type and default: `int`, `int = 0`. The default counts, since it is left out of the log."""
    if field.required:
        return type_name(field.type)
    default = field.default_factory() if field.default is NODEFAULT else field.default
    return f"{type_name(field.type)} = {json.dumps(msgspec.to_builtins(default))}"


def breaks(old: Schema, new: Schema) -> list[str]:
    """Changes of the old schema that would make old logs unreadable or misread, as text."""
    faults = [f"{name} is gone" for name in old if name not in new]
    for name in old.keys() & new.keys():
        before, after = old[name], new[name]
        faults += [f"{name}.{field} is gone" for field in before if field not in after]
        faults += [
            f"{name}.{field} is new and has no default"
            for field in after.keys() - before.keys()
            if " = " not in after[field]
        ]
        faults += [
            f"{name}.{field} was {before[field]} and is {after[field]}"
            for field in before.keys() & after.keys()
            if not _reads_as_meant(before[field], after[field])
        ]
        if name.endswith("[]") and list(after)[: len(before)] != list(before):
            faults.append(f"{name} is an array and its order has changed")
    return sorted(faults)


def _reads_as_meant(before: str, after: str) -> bool:
    """The same type and default; a set of words may grow, a required field may get a default."""
    old_type, _, old_default = before.partition(" = ")
    new_type, _, new_default = after.partition(" = ")
    old_words, new_words = set(old_type.split(" | ")), set(new_type.split(" | "))
    grown = old_words <= new_words and all(word.startswith('"') for word in new_words)
    return (old_type == new_type or grown) and old_default in ("", new_default)


def frozen_schema() -> Schema:
    return json.loads(SCHEMA.read_text("utf-8")) if SCHEMA.exists() else {}


def frozen_runs() -> list[bytes]:
    """The logs of whole runs, each one batch that is folded from nothing."""
    return _batches(LOG)


def frozen_events() -> list[bytes]:
    """Events of workers: batches that together hold every kind of theirs."""
    return _batches(WORKER_LOG)


class Frozen(Struct):
    """Snapshots that one release wrote: after each fact of one of the frozen runs."""

    schema: str
    run: int
    snapshots: list[bytes]

    @property
    def shape(self) -> snapshot_versions.Shape:
        return msgspec.msgpack.decode(self.snapshots[0])[0]


def frozen_states() -> list[Frozen]:
    """The snapshots of every shape that the state has had."""
    if not STATES.exists():
        return []
    return msgspec.msgpack.decode(zstandard.decompress(STATES.read_bytes()), type=list[Frozen])


def _snapshots_of(run: bytes) -> list[bytes]:
    state, found = Cluster(), []
    for event in CODEC.decode(run):
        apply(state, event)
        found.append(snapshot_versions.encode(state))
    return found


def is_frozen(states: list[Frozen]) -> bool:
    """Whether there are snapshots of the present shape of the state."""
    now = (snapshot_versions.SCHEMA, snapshot_versions.SHAPE)
    return any((each.schema, each.shape) == now for each in states)


def _batches(path: Path) -> list[bytes]:
    return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes]) if path.exists() else []


def every_worker_kind() -> list[Envelope[Fact]]:
    """An event of each kind that workers record, with every field set to something."""
    return [
        Envelope(seq, seq * 1_000, seq * 1_000, filled(kind), ("@1",), f"op-{seq}")
        for seq, kind in enumerate(worker_facts.KINDS)
    ]


def filled(struct: type[Struct]) -> Struct:
    """A structure with a value in each of its fields that is not the default."""
    known = {field.name: msgspec.inspect.type_info(field.type) for field in _fields(struct)}
    return struct(**{name: _value(kind) for name, kind in known.items()})


def _fields(struct: type[Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def _value(kind: msgspec.inspect.Type) -> object:
    match kind:
        case msgspec.inspect.StructType(cls=struct):
            return filled(struct)
        case msgspec.inspect.ListType(item_type=item):
            return [_value(item)]
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return {_value(key): _value(value)}
        case msgspec.inspect.UnionType(types=types):
            return _value(next(each for each in types if each != msgspec.inspect.NoneType()))
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
    plain = {
        "IntType": 7,
        "FloatType": 0.5,
        "BoolType": True,
        "StrType": "seven",
        "BytesType": b"seven",
    }
    return plain[type(kind).__name__]


def kinds_in(runs: list[bytes]) -> set[str]:
    """The tags of the facts in some runs, known or not."""
    tags = set()
    for run in runs:
        tags |= {body["kind"] for _, _, _, body, *_ in msgspec.msgpack.decode(run)}
    return tags


def main() -> None:
    old, new = frozen_schema(), schema_now()
    faults = breaks(old, new)
    if faults:
        raise SystemExit("\n".join([*faults, ADVICE]))
    GOLDEN.mkdir(exist_ok=True)
    SCHEMA.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
    runs = frozen_runs()
    if set(CODEC.kinds) - kinds_in(runs):
        runs.append(CODEC.encode(every_kind().log))
        LOG.write_bytes(msgspec.msgpack.encode(runs))
    batches = frozen_events()
    if set(worker_facts.CODEC.kinds) - kinds_in(batches):
        batches.append(worker_facts.CODEC.encode(every_worker_kind()))
        WORKER_LOG.write_bytes(msgspec.msgpack.encode(batches))
    states = frozen_states()
    if not is_frozen(states):
        newest = len(runs) - 1
        states.append(Frozen(snapshot_versions.SCHEMA, newest, _snapshots_of(runs[newest])))
        packed = zstandard.ZstdCompressor(level=19).compress(msgspec.msgpack.encode(states))
        STATES.write_bytes(packed)


if __name__ == "__main__":
    main()
