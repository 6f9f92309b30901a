"""Everything about one thing, across nodes, in order.

A subject is `KIND:ID`. For each kind of subject a rule says which kinds of facts can be about it
and how to tell; so only batches that hold such facts are decoded.
"""

from collections.abc import Callable, Iterator
from heapq import merge

from msgspec import Struct

from strata.core.catalogue import CODEC
from strata.core.events import COORDINATOR
from strata.core.sharding import Move
from strata.core.worker_facts import BatchesAssigned
from strata.errors import InvalidArgument
from strata.timeline.records import Record
from strata.timeline.timeline import Timeline

NOISE = frozenset({"ClockSampled", "ResourceSnapshot", "CoordinatorStateSeen"})


class Subject(Struct, frozen=True):
    """What a story is about."""

    kind: str
    id: str

    @property
    def text(self) -> str:
        """As it was named."""
        return f"{self.kind}:{self.id}"


def with_field(*names: str) -> frozenset[str]:
    """The kinds that have one of these fields."""
    return frozenset(
        tag.partition("/")[0]
        for tag, kind in CODEC.kinds.items()
        if set(names) & set(kind.__struct_fields__)
    )


WORKER_KINDS = with_field("worker", "missing", "joined", "left", "placements", "moves")


def _worker(record: Record, wanted: str) -> bool:
    if record.node == wanted:
        return record.kind not in NOISE
    if wanted in (record.text("worker"), record.text("sender"), record.text("peer")):
        return True
    named = (record.get(name) for name in ("joined", "left", "missing", "placements", "to"))
    return any(wanted in each for each in named if isinstance(each, list | dict))


def _task(record: Record, wanted: str) -> bool:
    return record.node == COORDINATOR and record.text("task") == wanted


def _shard(record: Record, wanted: str) -> bool:
    dataset, _, number = wanted.rpartition("/")
    if dataset and record.text("dataset") != dataset:
        return False
    moves = record.get("moves")
    if isinstance(moves, list):
        return any(isinstance(m, Move) and m.first <= int(number) <= m.last for m in moves)
    return record.text("shard") == number


def _batch(record: Record, wanted: str) -> bool:
    body = record.event.body
    if isinstance(body, BatchesAssigned):
        return _assigns(body, wanted)
    batches = record.get("batches")
    named = isinstance(batches, list) and wanted in batches
    return named or record.text("batch") == wanted


def _assigns(assigned: BatchesAssigned, wanted: str) -> bool:
    """Whether a worker was expected to train a batch, whether anybody trained it or not."""
    dataset, _, step = wanted.rpartition("/")
    if assigned.step < 0 or dataset != assigned.dataset or not step.isdecimal():
        return wanted == assigned.first_batch
    after = int(step) - assigned.step
    ended = assigned.batches and after >= assigned.batches
    return bool(assigned.lanes) and after >= 0 and not ended


def _generation(record: Record, wanted: str) -> bool:
    task, _, number = wanted.rpartition("/")
    return record.text("generation") == number and task in ("", record.text("task"))


def _tagged(tag: str) -> Callable[[Record, str], bool]:
    return lambda record, wanted: record.text(tag) == wanted


RULES: dict[str, tuple[frozenset[str], Callable[[Record, str], bool]]] = {
    "worker": (WORKER_KINDS, _worker),
    "task": (with_field("task"), _task),
    "shard": (with_field("shard", "moves"), _shard),
    "checkpoint": (with_field("checkpoint"), _tagged("checkpoint")),
    "barrier": (with_field("barrier"), _tagged("barrier")),
    "batch": (with_field("batch", "batches", "first_batch"), _batch),
    "message": (with_field("message") - {"LogLine"}, _tagged("message")),
    "generation": (with_field("generation"), _generation),
}


def parse_subject(text: str) -> Subject:
    """A subject by its name."""
    kind, _, name = text.partition(":")
    numbered = kind not in ("shard", "generation") or name.rpartition("/")[2].isdecimal()
    if kind not in RULES or not name or not numbered:
        raise InvalidArgument(
            f"{text[:80]!r} is not the subject of a story",
            hint=f"say KIND:ID, such as worker:{text[:80] or 'NAME'}, where KIND is one of "
            f"{', '.join(RULES)}; a shard or generation has a number, perhaps after DATASET/ or "
            "TASK/",
        )
    return Subject(kind, name)


def story(
    timeline: Timeline,
    subject: Subject,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Iterator[Record]:
    """The records about a subject, in order; read only as far as the caller goes."""
    kinds, about = RULES[subject.kind]
    if subject.kind != "worker":
        found = timeline.records(since_ns, until_ns, kinds=kinds)
    else:
        # Its own events whatever their kind, and what others say of it.
        said = timeline.records(since_ns, until_ns, node=COORDINATOR, kinds=kinds)
        own = timeline.records(since_ns, until_ns, node=subject.id)
        found = merge(said, own, key=lambda record: record.key)
    return (record for record in found if about(record, subject.id))
