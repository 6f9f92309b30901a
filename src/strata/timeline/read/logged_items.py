"""Images, texts and histograms that scripts logged.

An item belongs to the task of the worker that recorded it. It is undone if a later generation
resumed before it: then the model that it describes is no longer the model of the task.
"""

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.core.generations.recovery import RecoveryChosen
from strata.core.workers.worker_facts import MediaKind, MediaLogged, MediaSkipped
from strata.core.workers.worker_lifecycle import WorkerRegistered
from strata.errors import NotFound
from strata.timeline.answers import MediaItem
from strata.timeline.read.records import Record, decode_cursor, encode_cursor, ms
from strata.timeline.read.run_timeline import Timeline

KINDS = frozenset({MediaLogged.__name__, MediaSkipped.__name__})
CONTEXT = frozenset({RecoveryChosen.__name__, WorkerRegistered.__name__})
LOOKED_AT = 20_000
"""Records that one page reads at most."""

Item: TypeAlias = MediaLogged | MediaSkipped


class Wanted(Struct, frozen=True, kw_only=True):
    """A filter; empty fields match anything. `to_step` is included."""

    task: str = ""
    name: str = ""
    kind: MediaKind | None = None
    from_step: int | None = None
    to_step: int | None = None

    def holds(self, body: Item, task: str) -> bool:
        """Whether an item of the task passes the filter."""
        return (
            self.task in ("", task)
            and self.name in ("", body.name)
            and self.kind in (None, body.media)
            and (self.from_step is None or body.step >= self.from_step)
            and (self.to_step is None or body.step <= self.to_step)
        )


class Generations:
    """The task of each worker's incarnation, and at which step each generation resumed."""

    def __init__(self, timeline: Timeline) -> None:
        self._tasks: dict[tuple[str, int], str] = {}
        self._resumed: dict[str, dict[int, int]] = {}
        for record in timeline.records(node=COORDINATOR, kinds=CONTEXT):
            body = record.event.body
            if isinstance(body, WorkerRegistered):
                self._tasks[body.worker, body.incarnation] = body.task
            elif isinstance(body, RecoveryChosen):
                self._resumed.setdefault(body.task, {})[body.generation] = body.step

    def task_of(self, record: Record) -> str:
        """The task of the worker that recorded an event; empty if that is not known."""
        return self._tasks.get((record.node, record.incarnation), "")

    def undone(self, record: Record) -> bool:
        """Whether a later generation resumed before this item."""
        body = record.event.body
        if not isinstance(body, MediaLogged):
            return False
        before = body.step + 1 if body.in_step else body.step
        resumed = self._resumed.get(self.task_of(record), {})
        return any(
            step < before for generation, step in resumed.items() if generation > body.generation
        )


def items(timeline: Timeline, since_ns: int | None = None) -> Iterator[Record]:
    """The records of all items, in order."""
    return timeline.records(since_ns, kinds=KINDS)


def page(
    timeline: Timeline, wanted: Wanted, limit: int, cursor: str
) -> tuple[list[MediaItem], str]:
    """A page of items, and the cursor of the next page."""
    generations, after = Generations(timeline), decode_cursor(cursor)
    found: list[MediaItem] = []
    looked_at = 0
    last: Record | None = None
    for record in items(timeline, after[0] if after else None):
        if after and record.key <= after:
            continue
        if len(found) == limit or looked_at == LOOKED_AT:
            return found, encode_cursor(last)
        looked_at, last = looked_at + 1, record
        body = record.event.body
        if isinstance(body, Item) and wanted.holds(body, generations.task_of(record)):
            found.append(_shown(record, body, generations))
    return found, ""


def content(record: Record) -> MediaLogged:
    """The item of a record; raises if it is something else, or was not recorded."""
    body = record.event.body
    if isinstance(body, MediaSkipped):
        raise NotFound(
            f"the {body.media} {body.name!r} was not recorded: {body.reason}",
            hint="raise max_media_bytes for later runs",
        )
    if not isinstance(body, MediaLogged):
        raise NotFound(
            f"event {record.ref} is not an image, a text or a histogram",
            hint="GET /api/timeline/media lists them",
        )
    return body


def _shown(record: Record, body: Item, generations: Generations) -> MediaItem:
    logged = body if isinstance(body, MediaLogged) else None
    return MediaItem(
        ref=record.ref,
        name=body.name,
        kind=body.media,
        step=body.step,
        time_ms=ms(record.at_ns),
        worker=record.node,
        bytes=body.size_bytes,
        caption=logged.caption if logged else "",
        in_step=logged is not None and logged.in_step,
        undone=generations.undone(record),
        skipped=body.reason if isinstance(body, MediaSkipped) else "",
    )
