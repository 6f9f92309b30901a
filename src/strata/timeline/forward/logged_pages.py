"""What one rank of a task logged, in pages, for other tools.

A page has the values, images, texts and histograms that the holder of a rank recorded, generation
by generation, in the order of its log. Left out is what a later generation undid (see
`timeline/read/logged_items`). While the task trains, a step is listed when it is committed, so that
most undone values are never sent.

A cursor holds the next seq of each incarnation that was read. A live page ends before a hole in the
log, because its events may still arrive.
"""

import threading
from collections.abc import Iterator
from itertools import groupby
from math import isfinite, isnan
from operator import itemgetter
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from strata.core.events import COORDINATOR
from strata.core.generations.generation_members import GenerationChanged
from strata.core.generations.recovery import RolledBack, StepsCommitted
from strata.core.task_state import ENDED
from strata.core.workers.worker_facts import (
    ConfigLogged,
    ConfigValue,
    MediaKind,
    MediaLogged,
    MetricsLogged,
    StepFinished,
)
from strata.errors import UNDECODABLE, InvalidArgument, NotFound
from strata.timeline.curves.curve_facts import CurveFacts, TaskFacts
from strata.timeline.curves.curve_reader import flat_config
from strata.timeline.read.records import Record, ms
from strata.timeline.read.run_timeline import Timeline

Stream: TypeAlias = tuple[str, int]
Cursor: TypeAlias = dict[Stream, int]
Logged: TypeAlias = StepFinished | MetricsLogged | MediaLogged

KINDS = frozenset({GenerationChanged.__name__, StepsCommitted.__name__, RolledBack.__name__})

NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""JSON has no such numbers, so they are texts."""


class LoggedItem(Struct, frozen=True, kw_only=True):
    """Values that were logged together, or one image, text or histogram.

    It was logged in step `step` if `in_step`, else after so many steps.
    """

    ref: str
    step: int
    in_step: bool
    time_ms: float
    values: dict[str, float | str] = field(default_factory=dict)
    media: MediaKind | None = None
    name: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """The values as floats."""
        return {
            name: NOT_FINITE[value] if isinstance(value, str) else value
            for name, value in self.values.items()
        }

    @property
    def done(self) -> int:
        """The steps that were done when the item was complete."""
        return self.step + 1 if self.in_step else self.step


class LoggedPage(Struct, frozen=True, kw_only=True):
    """Items of one rank of a task after a cursor, and what is known of the task.

    `resumed` lists the step at which each generation resumed, in order. `config` is what the user
    submitted and what the script recorded. `more`: there are items after this page already.
    `live`: the log may still grow.
    """

    task: str
    name: str
    state: str
    parent: str
    submitted_ms: float
    resumed: list[int]
    config: dict[str, ConfigValue]
    items: list[LoggedItem]
    cursor: str
    more: bool
    live: bool

    @property
    def ended(self) -> bool:
        """Whether the task has ended."""
        return self.state in ENDED


class LoggedPages:
    """The pages of all tasks of a log; may be called from any thread."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lock = threading.Lock()
        self._facts = CurveFacts(timeline)
        self._position = timeline.reader.first
        self._seats: dict[str, list[tuple[int, dict[int, str]]]] = {}
        self._committed: dict[str, int] = {}

    def page(self, task: str, rank: int, cursor: str, limit: int) -> LoggedPage:
        """The items after a cursor; an empty task means the only one."""
        with self._lock:
            return self._page(task, rank, cursor, limit)

    def _page(self, task: str, rank: int, cursor: str, limit: int) -> LoggedPage:
        self._refresh()
        facts = self._task(task)
        ended = facts.state in ENDED or not self._timeline.live
        self._check_rank(facts, rank, ended)
        committed = None if ended else self._committed.get(facts.task, 0)
        places = decoded(cursor)
        walk = _Walk(self._timeline, facts, self._holders(facts.task, rank), committed)
        found: list[LoggedItem] = []
        more = False
        for item in walk.items(places):
            if len(found) == limit:
                more = True
                break
            found.append(item)
        spec = facts.spec
        return LoggedPage(
            task=facts.task,
            name=spec.name if spec is not None else facts.task,
            state=facts.state,
            parent=facts.parent,
            submitted_ms=ms(facts.submitted_ns),
            resumed=[each.step for each in facts.resumed],
            config=flat_config(spec.config if spec is not None else "{}") | walk.config,
            items=found,
            cursor=encoded(places),
            more=more,
            live=self._timeline.live,
        )

    def _refresh(self) -> None:
        """Read new facts."""
        self._facts.refresh()
        stop = self._facts.position
        since_ns = None
        if self._position > self._timeline.reader.first:
            since_ns = self._timeline.time_of(self._position - 1)
        for record in self._timeline.records(since_ns, node=COORDINATOR, kinds=KINDS):
            body = record.event.body
            if not self._position <= record.event.seq < stop:
                continue
            if isinstance(body, GenerationChanged):
                known = self._seats.setdefault(body.task, [])
                known.append((body.generation, dict(body.seats)))
            elif isinstance(body, StepsCommitted):
                self._committed[body.task] = body.last + 1
            elif isinstance(body, RolledBack):
                self._committed[body.task] = body.to
        self._position = stop

    def _task(self, task: str) -> TaskFacts:
        tasks = self._facts.tasks
        if not task and len(tasks) == 1:
            return next(iter(tasks.values()))
        if task not in tasks:
            raise NotFound(
                f"no task {task!r} is recorded here"
                if task
                else f"{len(tasks)} tasks are recorded",
                hint=f"use --task with {', '.join(list(tasks)[-10:])}"
                if tasks
                else "no task was submitted yet",
            )
        return tasks[task]

    def _check_rank(self, facts: TaskFacts, rank: int, ended: bool) -> None:
        """Raise if the task has no such rank; one that still trains may get it later."""
        known = {each for _, seats in self._seats.get(facts.task, []) for each in seats}
        if not ended and facts.spec is not None:
            known.update(range(facts.spec.worker_count))
        if known and rank not in known:
            raise NotFound(
                f"task {facts.task!r} has no rank {rank}",
                hint=f"its ranks are {min(known)} to {max(known)}",
            )

    def _holders(self, task: str, rank: int) -> list[tuple[int, str]]:
        """The generations in order, with the worker that holds the rank."""
        found: list[tuple[int, str]] = []
        for generation, seats in self._seats.get(task, []):
            before = found[-1][1] if found else ""
            found.append((generation, seats.get(rank, before)))
        return found


class _Walk:
    """Reads the items of a rank's holders, from the places that a cursor names, which it moves.

    `committed` counts the task's committed steps; None if the task has ended, so nothing follows.
    """

    def __init__(
        self,
        timeline: Timeline,
        facts: TaskFacts,
        holders: list[tuple[int, str]],
        committed: int | None,
    ) -> None:
        self.config: dict[str, ConfigValue] = {}
        self._timeline = timeline
        self._facts = facts
        self._turns = holders
        self._holders = dict(holders)
        self._committed = committed

    def items(self, places: Cursor) -> Iterator[LoggedItem]:
        """The items, generation by generation; `places` is moved behind each item."""
        turns = [(list(run)[-1][0], worker) for worker, run in groupby(self._turns, itemgetter(1))]
        streams: dict[str, list[Stream]] = {}
        for stream in self._facts.streams:
            streams.setdefault(stream[0], []).append(stream)
        for generation, worker in turns:
            for stream in streams.get(worker, []):
                yield from self._stream(stream, places, generation)

    def _stream(self, stream: Stream, places: Cursor, until: int) -> Iterator[LoggedItem]:
        """The items of an incarnation up to a generation."""
        start = places.get(stream, 0)
        for record in self._timeline.events_of(*stream, start):
            seq, body = record.event.seq, record.event.body
            if seq != places.get(stream, 0) and self._committed is not None:
                return
            if isinstance(body, StepFinished | MetricsLogged | MediaLogged):
                generation = body.generation or self._facts.generation_at(record.at_ns)
                if generation > until or self._waits(body):
                    return
                counts = self._holders.get(generation) == stream[0]
                item = item_of(record, body)
                empty = not item.values and item.media is None
                if counts and not empty and not self._undone(body, generation):
                    yield item
            elif isinstance(body, ConfigLogged):
                self.config |= body.values
            places[stream] = seq + 1

    def _waits(self, body: Logged) -> bool:
        """Whether an item is of a step that is not committed yet."""
        return self._committed is not None and in_step(body) and body.step >= self._committed

    def _undone(self, body: Logged, generation: int) -> bool:
        """Whether a later generation resumed before the item."""
        done = body.step + 1 if in_step(body) else body.step
        return any(
            each.generation > generation and each.step < done for each in self._facts.resumed
        )


def in_step(body: Logged) -> bool:
    """Whether an event was logged in its step, not after so many steps."""
    return isinstance(body, StepFinished) or (isinstance(body, MediaLogged) and body.in_step)


def item_of(record: Record, body: Logged) -> LoggedItem:
    """What an event logged."""
    values: dict[str, float | str] = {}
    if isinstance(body, StepFinished):
        values = {} if body.loss is None else {"loss": shown(body.loss)}
    if not isinstance(body, MediaLogged):
        values |= {name: shown(value) for name, value in (body.metrics or {}).items()}
    return LoggedItem(
        ref=record.ref,
        step=body.step,
        in_step=in_step(body),
        time_ms=ms(record.at_ns),
        values=values,
        media=body.media if isinstance(body, MediaLogged) else None,
        name=body.name if isinstance(body, MediaLogged) else "",
    )


def shown(value: float) -> float | str:
    """A number, or a text for one that JSON does not have."""
    if isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def encoded(places: Cursor) -> str:
    """A cursor as text; empty at the start."""
    listed = [(node, incarnation, seq) for (node, incarnation), seq in places.items()]
    return msgspec.json.encode(listed).decode() if listed else ""


def decoded(cursor: str) -> Cursor:
    """The places that a cursor names."""
    try:
        listed = msgspec.json.decode(cursor or "[]", type=list[tuple[str, int, int]])
    except UNDECODABLE as error:
        raise InvalidArgument(
            f"invalid cursor {cursor[:40]!r}", hint="start again without a cursor"
        ) from error
    return {(node, incarnation): seq for node, incarnation, seq in listed}
