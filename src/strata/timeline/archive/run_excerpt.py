"""The run of one task as an excerpt of a log, readable like a log of its own.

It reaches from the fact that submitted the task to some time after its end, and has all events of
the task's workers. That of a fork begins with the task it was forked from and has its workers too.
Facts about other tasks in between are part of it, because the state is derived
from all facts; the events of their workers are not. The state before the first fact is computed
once and provided as a snapshot.
"""

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, structs

from strata.core.events import COORDINATOR, Event
from strata.core.record import snapshot_versions
from strata.core.record.event_codec import CODEC
from strata.core.tasks.task_lifecycle import TaskSubmitted
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.errors import NotFound
from strata.store.event_batches import pack, unpack
from strata.store.event_store import (
    EVERYTHING,
    FOREVER_NS,
    QUERY_LIMIT,
    Batch,
    Closing,
    EventReader,
    Found,
    OnDamage,
    Range,
    Snapshot,
    Tally,
    Window,
)
from strata.timeline.audit.lineage import ancestry
from strata.timeline.read.past_states import require_state
from strata.timeline.read.records import SECOND_NS
from strata.timeline.read.run_timeline import Timeline

ERROR_NS = 2 * SECOND_NS
"""Margin: between probes a wall clock may be off by slightly more."""


class Part(Struct, frozen=True):
    """The bounds of an excerpt: the facts [first, stop) and the incarnations of its workers.

    All its events lie between these wall clock times of their nodes.
    """

    first: int
    stop: int
    streams: frozenset[tuple[str, int]]
    wall_from_ns: int
    wall_to_ns: int


def run_of(timeline: Timeline, task: str, until_ns: int) -> Timeline:
    """The timeline of one task's run: from its submission to a moment after its end."""
    line = ancestry(timeline.reader, task)
    submitted = timeline.records(node=COORDINATOR, kinds={TaskSubmitted.__name__})
    first = next((each.event.seq for each in submitted if each.text("task") == line[0]), None)
    if first is None:
        raise NotFound(
            f"task {task!r} was not submitted in this log", hint="`strata tasks` lists the tasks"
        )
    stop = max(timeline.position_at(until_ns), first + 1)
    part = _part(timeline, line, first, stop)
    base = Snapshot(
        position=first,
        wall_ns=timeline.time_of(first),
        schema=snapshot_versions.SCHEMA,
        state=snapshot_versions.encode(require_state(timeline, first)),
    )
    return Timeline(Excerpt(timeline.reader, part, base), timeline.name, task=task)


def _part(timeline: Timeline, tasks: list[str], first: int, stop: int) -> Part:
    joined = timeline.records(node=COORDINATOR, kinds={WorkerRegistered.__name__})
    streams = frozenset(
        (body.worker, body.incarnation)
        for record in joined
        if isinstance(body := record.event.body, WorkerRegistered)
        and body.task in tasks
        and first <= record.event.seq < stop
    )
    own = [each for each in timeline.tallies() if (each.node, each.incarnation) in streams]
    low_ns, high_ns = timeline.coordinator_skew()
    begun_ns, ended_ns = timeline.time_of(first), timeline.time_of(stop - 1)
    earliest_ns = min(begun_ns + low_ns - ERROR_NS, *(each.wall_from_ns for each in own), begun_ns)
    latest_ns = max(ended_ns + high_ns + ERROR_NS, *(each.wall_to_ns for each in own), ended_ns)
    return Part(
        first=first, stop=stop, streams=streams, wall_from_ns=earliest_ns, wall_to_ns=latest_ns
    )


class Excerpt(Closing):
    """An event reader over a part of a log."""

    def __init__(self, reader: EventReader, part: Part, base: Snapshot) -> None:
        self._reader = reader
        self._part = part
        self._base = base
        self._tallies = [
            tally for tally in reader.tallies() if (tally.node, tally.incarnation) in part.streams
        ]

    @property
    def first(self) -> int:
        return self._part.first

    @property
    def position(self) -> int:
        return self._part.stop

    def close(self) -> None:
        """Do nothing: the caller closes the underlying log."""

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        if start < self._part.first:
            raise NotFound(
                f"this run begins at position {self._part.first}", hint="open the whole log"
            )
        return self._reader.read(start, self._part.stop if stop is None else self._cut(stop))

    def _cut(self, position: int) -> int:
        return min(max(position, self._part.first), self._part.stop)

    def query(
        self,
        wanted: Window = EVERYTHING,
        limit: int = QUERY_LIMIT,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Found]:
        found = self._reader.query(self._within(wanted), FOREVER_NS, on_damage)
        return islice((each for each in found if self._holds(*each)), limit)

    def _within(self, wanted: Window) -> Window:
        """The window cut to the run's own time, so that the rest of the log is not read."""
        return structs.replace(
            wanted,
            since_ns=max(wanted.since_ns, self._part.wall_from_ns),
            until_ns=min(wanted.until_ns, self._part.wall_to_ns + 1),
        )

    def _holds(self, node: str, incarnation: int, event: Event) -> bool:
        if node == COORDINATOR:
            return self._part.first <= event.seq < self._part.stop
        return (node, incarnation) in self._part.streams

    def batches(
        self, wanted: Window = EVERYTHING, on_damage: OnDamage | None = None
    ) -> Iterator[Batch]:
        for batch in self._reader.batches(self._within(wanted), on_damage):
            held = [
                event
                for event in unpack(CODEC, batch)
                if self._holds(batch.node, batch.incarnation, event)
            ]
            if held:
                yield pack(CODEC, batch.node, batch.incarnation, held)

    def headers(self, wanted: Window = EVERYTHING) -> Iterator[Batch]:
        for header in self._reader.headers(self._within(wanted)):
            if header.node != COORDINATOR:
                if (header.node, header.incarnation) in self._part.streams:
                    yield header
            elif header.first_seq < self._part.stop and header.stop_seq > self._part.first:
                yield self._trimmed(header)

    def _trimmed(self, header: Batch) -> Batch:
        """The header of a batch of facts, cut to the facts of the run."""
        first, stop = self._cut(header.first_seq), self._cut(header.stop_seq)
        return structs.replace(header, first_seq=first, count=stop - first)

    def stream(
        self,
        node: str,
        incarnation: int,
        start: int = 0,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Event]:
        if (node, incarnation) not in self._part.streams:
            return iter(())
        return self._reader.stream(node, incarnation, start, stop, on_damage)

    def tallies(self) -> list[Tally]:
        return self._tallies

    def streams(self) -> list[tuple[str, int]]:
        return [each for each in self._reader.streams() if each in self._part.streams]

    def last_seq(self, node: str, incarnation: int) -> int | None:
        known = (node, incarnation) in self._part.streams
        return self._reader.last_seq(node, incarnation) if known else None

    def gaps(self, node: str, incarnation: int) -> list[Range]:
        known = (node, incarnation) in self._part.streams
        return self._reader.gaps(node, incarnation) if known else []

    def position_at(self, wall_ns: int) -> int:
        return self._cut(self._reader.position_at(wall_ns))

    def check(self, on_damage: OnDamage) -> None:
        for _ in self._reader.batches(self._within(EVERYTHING), on_damage):
            pass

    def load_snapshot(self, at: int | None, schema: str) -> Snapshot | None:
        wanted = self._part.stop if at is None else min(at, self._part.stop)
        if wanted < self._part.first or self._base.schema != schema:
            return None
        found = self._reader.load_snapshot(wanted, schema)
        return found if found is not None and found.position > self._part.first else self._base
