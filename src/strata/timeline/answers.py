"""What the read side answers with: the same structures over REST, in the terminal, and as JSON.

Times are Unix milliseconds, with a fraction. An event is named by its `ref`.
"""

from typing import Any, Literal

from msgspec import Struct, field

from strata.timeline.trust import Verdict
from strata.timeline.worker_lives import SpanKind


class FindingAnswer(Struct, frozen=True):
    """Something that makes the log less than complete and exact."""

    kind: str
    text: str
    node: str
    grave: bool


class TrustAnswer(Struct, frozen=True):
    """Whether the log can be trusted."""

    verdict: Verdict
    findings: list[FindingAnswer]


class SpanNode(Struct, frozen=True):
    """A node that recorded something."""

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


class BucketAnswer(Struct, frozen=True):
    """What happened in one slice of time."""

    facts: int
    events: int
    losses: int
    recoveries: int
    checkpoints: int
    failures: int


class DensityAnswer(Struct, frozen=True):
    """Slices of equal width."""

    from_ms: float
    to_ms: float
    buckets: list[BucketAnswer]


class LaneSpan(Struct, frozen=True):
    """What a worker did for a while; `to_ms` is null while it goes on."""

    from_ms: float
    to_ms: float | None
    kind: SpanKind
    label: str
    ref: str
    ok: bool | None
    count: int


class LaneMark(Struct, frozen=True):
    """Something that happened to a worker at one moment."""

    at_ms: float
    kind: str
    label: str
    ref: str


class LaneAnswer(Struct, frozen=True, kw_only=True):
    """One worker. Its spans follow each other without overlap.

    `seconds` is how long each kind took, together the time for which the worker was there in the
    window. It is null where only the coordinator's facts are drawn.
    """

    node: str
    label: str
    task: str
    rank: int
    spans: list[LaneSpan]
    marks: list[LaneMark]
    seconds: dict[SpanKind, float] | None


class LanesAnswer(Struct, frozen=True):
    """A page of lanes; `fine` when the workers' own events are drawn, not only the facts."""

    lanes: list[LaneAnswer]
    truncated: bool
    next: str
    fine: bool


class EventAnswer(Struct, frozen=True):
    """One event in a list."""

    ref: str
    at_ms: float
    node: str
    kind: str
    summary: str
    tags: dict[str, Any]
    step: int | None = None


class OperationAnswer(Struct, frozen=True):
    """What was started and ended."""

    op: str
    text: str
    started: str | None
    completed: str | None
    started_ms: float | None
    duration_ms: float | None
    ok: bool | None


class LinkAnswer(Struct, frozen=True):
    """An event that led to another, or came of it."""

    ref: str
    kind: str
    node: str
    at_ms: float
    summary: str


class EventDetail(Struct, frozen=True):
    """One event, whole. A worker's has no position, a fact's incarnation is the coordinator's."""

    ref: str
    at_ms: float
    node: str
    incarnation: int
    seq: int
    position: int | None
    kind: str
    version: int
    body: dict[str, Any]
    tags: dict[str, Any]
    summary: str
    operation: OperationAnswer | None
    causes: list[LinkAnswer]
    effects: list[LinkAnswer]
    wall_ms: float


class AsOf(Struct, frozen=True):
    """The moment that an answer is about; `doubt` says why the state is not all of it."""

    time_ms: float
    position: int
    live: bool
    doubt: str


class NodeAnswer(Struct, frozen=True):
    """What a worker was doing."""

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
    """The state of everything at a moment, as far as a terminal shows it."""

    as_of: AsOf
    tasks: list[TaskMoment]
    nodes: list[NodeAnswer]
    nodes_total: int


class StoryEntry(Struct, frozen=True):
    """One thing that happened to the subject of a story."""

    ref: str
    at_ms: float
    node: str
    kind: str
    text: str


class StoryAnswer(Struct, frozen=True):
    """Everything about one thing, across nodes."""

    subject: str
    entries: list[StoryEntry]
    next: str = ""


class ChangeAnswer(Struct, frozen=True):
    """One thing that is otherwise at another moment."""

    path: str
    subject: str
    before: Any
    after: Any
    text: str


class DiffAnswer(Struct, frozen=True):
    """What changed between two moments."""

    a_ms: float
    b_ms: float
    changes: list[ChangeAnswer]
    truncated: bool


class SeekAnswer(Struct, frozen=True):
    """The moment where something holds."""

    at_ms: float
    ref: str
    text: str


class WhyLink(Struct, frozen=True):
    """One link of a chain of causes."""

    ref: str
    at_ms: float
    node: str
    text: str


class CostAnswer(Struct, frozen=True):
    """What it cost: seconds of so many workers."""

    seconds: float
    workers: int
    text: str


class WhyAnswer(Struct, frozen=True):
    """An answer with its reasons. The verdict belongs to the question's own yes-or-no."""

    question: str
    verdict: Verdict
    answer: str
    chain: list[WhyLink]
    cost: CostAnswer
    findings: list[str]
    trust: TrustAnswer


class ParamAnswer(Struct, frozen=True):
    """Something a question needs to know."""

    name: str
    kind: str
    required: bool


class QuestionAnswer(Struct, frozen=True):
    """One of the questions that can be asked."""

    name: str
    text: str
    params: list[ParamAnswer] = field(default_factory=list)


class UsageAnswer(Struct, frozen=True):
    """What a worker used, by column, oldest first; null where it did not tell. Times are ms."""

    at: list[int]
    cpu_percent: list[float | None]
    gpu_percent: list[float | None]
    memory_used_bytes: list[int | None]
    step: list[int | None]


class RunRow(Struct, frozen=True):
    """A run in a list; `archived` when it is kept as Parquet."""

    name: str
    where: str
    archived: bool
    from_ms: float
    to_ms: float
    facts: int
    events: int
    tasks: list[str]
    findings: int
