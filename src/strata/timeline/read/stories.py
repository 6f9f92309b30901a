"""Stories: all events about one subject, of all nodes, in order.

A subject is `KIND:ID`. For each kind of subject, a rule has a test and the kinds of events that can
be about it; only batches with such kinds are decoded.
"""

from collections.abc import Callable, Iterator
from heapq import merge

from msgspec import Struct

from strata.core.datasets.lane_owners import Move
from strata.core.events import COORDINATOR
from strata.core.record.event_codec import CODEC
from strata.core.workers.worker_facts import BatchesAssigned
from strata.errors import InvalidArgument
from strata.timeline.read.records import Record
from strata.timeline.read.run_timeline import Timeline

NOISE = frozenset({"ClockSampled", "ResourceSnapshot", "CoordinatorStateSeen"})


class Subject(Struct, frozen=True):
    """The subject of a story."""

    kind: str
    id: str

    @property
    def text(self) -> str:
        """The subject as `KIND:ID`."""
        return f"{self.kind}:{self.id}"


def with_field(*names: str) -> frozenset[str]:
    """The kinds with one of these fields."""
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
    """Whether a batch was assigned to a worker, trained or not."""
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
    """Parse a subject."""
    kind, _, name = text.partition(":")
    numbered = kind not in ("shard", "generation") or name.rpartition("/")[2].isdecimal()
    if kind not in RULES or not name or not numbered:
        raise InvalidArgument(
            f"{text[:80]!r} is not a valid subject",
            hint=f"use KIND:ID, such as worker:{text[:80] or 'NAME'}, where KIND is one of "
            f"{', '.join(RULES)}; for a shard or generation, ID is a number, optionally after "
            "DATASET/ or TASK/",
        )
    return Subject(kind, name)


def story(
    timeline: Timeline,
    subject: Subject,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Iterator[Record]:
    """The records about a subject, in order, read lazily."""
    kinds, about = RULES[subject.kind]
    if subject.kind != "worker":
        found = timeline.records(since_ns, until_ns, kinds=kinds)
    else:
        # Its own events of any kind, and the coordinator's facts about it.
        said = timeline.records(since_ns, until_ns, node=COORDINATOR, kinds=kinds)
        own = timeline.records(since_ns, until_ns, node=subject.id)
        found = merge(said, own, key=lambda record: record.key)
    return (record for record in found if about(record, subject.id))
