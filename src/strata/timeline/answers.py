"""Answers of the timeline API: the same structures over REST, in the terminal and as JSON.

The modules that compute an answer build these structures directly. Times are Unix milliseconds with
a fraction. `ref` names an event: `@120` for a fact, `worker-1/3/57` for a worker's event.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from strata.core.workers.worker_facts import MediaKind
from strata.timeline.read.records import Record, ms
from strata.timeline.read.sentences import sentence

Verdict: TypeAlias = Literal["yes", "no", "open", "unknown"]

SpanKind: TypeAlias = Literal[
    "train", "data", "barrier", "checkpoint", "recover", "wait", "evaluate", "idle", "lost"
]


class FindingAnswer(Struct, frozen=True):
    """A reason why the log is not complete and exact; `grave` if conclusions may be wrong."""

    kind: str
    text: str
    node: str = ""
    grave: bool = True


class TrustAnswer(Struct, frozen=True):
    """Whether the log can be trusted, with the first findings."""

    verdict: Verdict
    findings: list[FindingAnswer]


class SpanNode(Struct, frozen=True):
    """A node with events in the log."""

    id: str
    role: Literal["coordinator", "worker"]
    events: int
    gaps: int


class SpanAnswer(Struct, frozen=True):
    """The whole timeline; positions are [first_position, last_position)."""

    from_ms: float
    to_ms: float
    first_position: int
    last_position: int
    facts: int
    worker_events: int
    nodes: list[SpanNode]
    nodes_total: int
    trust: TrustAnswer
    live: bool


class BucketAnswer(Struct):
    """Counts for one slice of time."""

    facts: int = 0
    events: int = 0
    losses: int = 0
    recoveries: int = 0
    checkpoints: int = 0
    failures: int = 0


class DensityAnswer(Struct, frozen=True):
    """Event counts in slices of equal width."""

    from_ms: float
    to_ms: float
    buckets: list[BucketAnswer]


class LaneSpan(Struct, frozen=True):
    """One activity of a worker; `to_ms` is null while it continues."""

    from_ms: float
    to_ms: float | None
    kind: SpanKind
    label: str
    ref: str
    ok: bool | None
    count: int


class LaneMark(Struct, frozen=True):
    """An event of a worker at one moment."""

    at_ms: float
    kind: str
    label: str
    ref: str


class LaneAnswer(Struct, kw_only=True):
    """One worker. Its spans follow each other without overlap.

    `seconds` is the time by kind of span; together it is the time that the worker was present in
    the window. It is null if only the coordinator's facts were read.
    """

    node: str
    label: str = ""
    task: str = ""
    rank: int = -1
    spans: list[LaneSpan] = field(default_factory=list)
    marks: list[LaneMark] = field(default_factory=list)
    seconds: dict[SpanKind, float] | None = None


class LanesAnswer(Struct, frozen=True):
    """A page of lanes; `fine` if the workers' own events were read, not only the facts."""

    lanes: list[LaneAnswer]
    truncated: bool
    next: str
    fine: bool


class LinkAnswer(Struct, frozen=True):
    """An event that caused another event, or was caused by it."""

    ref: str
    at_ms: float
    node: str
    kind: str
    summary: str


class EventAnswer(LinkAnswer, frozen=True):
    """One event in a list."""

    tags: dict[str, Any]
    step: int | None = None


class OperationAnswer(Struct, frozen=True):
    """An operation with its start and end; null where that event is not recorded."""

    op: str
    text: str
    started: str | None
    completed: str | None
    started_ms: float | None
    duration_ms: float | None
    ok: bool | None


class EventDetail(LinkAnswer, frozen=True):
    """One event with everything known about it.

    A worker's event has no position. The incarnation of a fact is the coordinator's.
    """

    incarnation: int
    seq: int
    position: int | None
    version: int
    body: dict[str, Any]
    tags: dict[str, Any]
    operation: OperationAnswer | None
    causes: list[LinkAnswer]
    effects: list[LinkAnswer]
    wall_ms: float


class AsOf(Struct, frozen=True):
    """The moment of an answer; `doubt` says why the state is incomplete, if it is."""

    time_ms: float
    position: int
    live: bool
    doubt: str


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """What a worker was doing; `last_ms` is the time of its newest event, null if unknown."""

    id: str
    incarnation: int
    task: str
    rank: int
    state: str
    doing: str
    step: int
    last_ms: float | None
    open_operations: list[OperationAnswer]


class TaskMoment(Struct, frozen=True):
    """A task at a moment."""

    id: str
    status: str
    reason: str
    generation: int
    phase: str
    committed_steps: int


class MomentAnswer(Struct, frozen=True):
    """The state of the cluster at a moment, as the terminal shows it."""

    as_of: AsOf
    tasks: list[TaskMoment]
    nodes: list[NodeAnswer]
    nodes_total: int


class StoryEntry(Struct, frozen=True):
    """One event of a story."""

    ref: str
    at_ms: float
    node: str
    kind: str
    text: str


class StoryAnswer(Struct, frozen=True):
    """All events about one subject, of all nodes."""

    subject: str
    entries: list[StoryEntry]
    next: str = ""


class ChangeAnswer(Struct, frozen=True):
    """A field with different values at two moments; null where the field does not exist."""

    path: str
    subject: str
    before: Any
    after: Any
    text: str


class DiffAnswer(Struct, frozen=True):
    """The changes between two moments."""

    a_ms: float
    b_ms: float
    changes: list[ChangeAnswer]
    truncated: bool


class SeekAnswer(Struct, frozen=True):
    """The moment at which a condition holds."""

    at_ms: float
    ref: str
    text: str


class WhyLink(Struct, frozen=True):
    """One event of a chain of causes."""

    ref: str
    at_ms: float
    node: str
    text: str


class Cost(Struct, frozen=True):
    """Lost time: seconds, summed over so many workers."""

    seconds: float = 0.0
    workers: int = 0
    text: str = "nothing measurable"


class WhyAnswer(Struct, frozen=True):
    """An answer with its reasons. The verdict is for the question's own yes-or-no."""

    question: str
    verdict: Verdict
    answer: str
    chain: list[WhyLink]
    cost: Cost
    findings: list[str]
    trust: TrustAnswer


class ParamAnswer(Struct, frozen=True):
    """A parameter of a question."""

    name: str
    kind: str
    required: bool


class MediaItem(Struct, frozen=True, kw_only=True):
    """An image, a text or a histogram that a script logged; GET /timeline/media/{ref} has it.

    `in_step`: logged in step `step`, else after so many steps. `undone`: a recovery resumed at an
    earlier step. `skipped` says why it was not recorded; then it has no content.
    """

    ref: str
    name: str
    kind: MediaKind
    step: int
    time_ms: float
    worker: str
    bytes: int
    caption: str = ""
    in_step: bool = False
    undone: bool = False
    skipped: str = ""


class HistogramAnswer(Struct, frozen=True):
    """A logged histogram; `not_finite` values are in no bin."""

    edges: list[float]
    counts: list[int]
    not_finite: int = 0


class QuestionAnswer(Struct, frozen=True):
    """A question that can be asked."""

    name: str
    text: str
    params: list[ParamAnswer] = field(default_factory=list)


class UsageAnswer(Struct, frozen=True):
    """A worker's resource use by column, oldest first; null if not reported. Times are ms."""

    at: list[int]
    cpu_percent: list[float | None]
    gpu_percent: list[float | None]
    memory_used_bytes: list[int | None]
    step: list[int | None]


class RunFork(Struct, frozen=True):
    """A task that is a fork of another one, at a step."""

    task: str
    parent: str
    step: int


class GpuHistory(Struct, frozen=True):
    """The recorded figures of one GPU, by name; null where one was not reported."""

    index: int
    name: str
    figures: dict[str, list[float | None]]


class HostHistory(Struct, frozen=True):
    """The recorded figures of a host and its GPUs, by name, oldest first; times are ms.

    A figure that was never reported in this window is left out.
    """

    at: list[int]
    figures: dict[str, list[float | None]]
    gpus: list[GpuHistory]


class RunRow(Struct, frozen=True):
    """A run in a list; `archived` if it is stored as Parquet."""

    name: str
    where: str
    archived: bool
    from_ms: float
    to_ms: float
    facts: int
    events: int
    tasks: list[str]
    findings: int
    forks: list[RunFork] = []


def event_answer(record: Record) -> EventAnswer:
    """An event for a list."""
    step = record.get("step")
    return EventAnswer(
        ref=record.ref,
        at_ms=ms(record.at_ns),
        node=record.node,
        kind=record.kind,
        summary=sentence(record),
        tags=record.tags(),
        step=step if isinstance(step, int) and step >= 0 else None,
    )


def link_answer(record: Record) -> LinkAnswer:
    """A cause or an effect of another event."""
    return LinkAnswer(
        ref=record.ref,
        at_ms=ms(record.at_ns),
        node=record.node,
        kind=record.kind,
        summary=sentence(record),
    )


def story_entry(record: Record) -> StoryEntry:
    """An event of a story."""
    return StoryEntry(
        ref=record.ref,
        at_ms=ms(record.at_ns),
        node=record.node,
        kind=record.kind,
        text=sentence(record),
    )
