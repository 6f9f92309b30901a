"""What a worker records about itself: its own acts, and what only it can see.

These facts are decided upon by nobody and folded into nothing, so no rule is here. They live beside
the coordinator's because everyone reads and writes them: the SDK and the simulator record them, the
timeline reads them. What takes a while is in `worker_operations`.

A step's time is split into what the script named with `run.timing` (`data`, `communication`), what
it spent waiting for others (`wait`, measured in barriers and while a generation forms), and the
rest, which is `compute`.

Users add kinds of their own (see `strata.sdk.kinds`), which are written with `USER_PREFIX`.
"""

from typing import Literal

from msgspec import field

from strata.core import worker_operations
from strata.core.events import Codec, Fact
from strata.core.resources import GpuMetrics

USER_PREFIX = "user."


class RunStarted(Fact, frozen=True):
    """A process joined. `parameters` are the settings it joined with, without secrets.

    `parameters_hash` is of those and of its task's config, without which start of the process it
    is: who was asked for the same has the same.
    """

    task: str
    worker: str
    incarnation: int
    role: str = "worker"
    hostname: str = ""
    pid: int = 0
    release: str = ""
    python: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    parameters_hash: str = ""


class RunEnded(Fact, frozen=True):
    """The process leaves: how, why, and after how many steps."""

    outcome: str
    reason: str
    steps: int


class CoordinatorStateSeen(Fact, frozen=True):
    """The worker learned its place in the task."""

    task: str
    state: str
    generation: int
    phase: str
    rank: int
    world_size: int
    attempt: int
    committed: int


class RequestSubmitted(Fact, frozen=True):
    """The worker asked the coordinator for something; `RequestCompleted` has the same `op`.

    Registering is request 0 of an incarnation, leaving its last one. Heartbeats are no requests.
    """

    request: int
    type: str
    barrier: str = ""


class RequestCompleted(Fact, frozen=True):
    """The coordinator answered, or the request was given up.

    `ok` says whether the thing came about that was asked for: a barrier that failed is answered,
    and not `ok`. `error` says why not.
    """

    request: int
    type: str
    ok: bool
    error: str = ""
    barrier: str = ""


class ConnectionChanged(Fact, frozen=True):
    """The way to a peer opened or closed."""

    peer: str
    path: Literal["direct", "relayed", "disconnected"]
    reason: str = ""


class NeighborsChanged(Fact, frozen=True):
    """The peers that this worker tells things to are others now."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


class PeerLatencyChanged(Fact, frozen=True):
    """The way to a peer became much slower or faster."""

    peer: str
    latency_s: float


class BlobAdded(Fact, frozen=True):
    """A piece of data can be fetched here; `blob` is its hash, `what` says what it is."""

    blob: str
    what: str
    size_bytes: int = 0


class MessageSent(Fact, frozen=True):
    """Something was announced to peers; `rebroadcasts` counts how often before."""

    message: str
    type: str
    size_bytes: int
    to: list[str] = field(default_factory=list)
    rebroadcasts: int = 0
    blob: str = ""
    batch: str = ""


class MessageReceived(Fact, frozen=True):
    """A peer's announcement arrived."""

    message: str
    type: str
    size_bytes: int
    sender: str
    blob: str = ""
    batch: str = ""


class MessageRejected(Fact, frozen=True):
    """A peer's announcement arrived and was not taken."""

    message: str
    reason: str
    type: str = ""
    sender: str = ""


class BatchesAssigned(Fact, frozen=True):
    """The worker learned what it is to train: these lanes of a dataset, from a step on."""

    dataset: str
    step: int
    generation: int
    lanes: list[int]
    columns: list[str] = field(default_factory=list)


class TrainingStarted(Fact, frozen=True):
    """A batch was handed to the script; `batch` is the dataset and the step of the run.

    `TrainingFinished` says that it was applied. `digest` is that of its samples, for a worker that
    is lost before it can say so. `content` is in older logs, which have it here instead of there.
    """

    batch: str
    step: int = -1
    dataset: str = ""
    generation: int = 0
    samples: int = 0
    digest: int = 0
    content: int = 0


class TrainingFinished(Fact, frozen=True):
    """A batch was trained and its step applied; `batch` and `step` are those of its start.

    `digest` is eight bytes for the samples of the batch and their positions: the order says what it
    has to be for the lanes that the worker owns in that generation. `content` is eight bytes for
    the values that were read, if the run records them; else 0. `averaged` counts the samples of all
    workers whose gradients are in the mean that was applied, where the run knows it; else 0.
    """

    batch: str
    step: int
    loss: float | None = None
    dataset: str = ""
    generation: int = 0
    samples: int = 0
    digest: int = 0
    content: int = 0
    averaged: int = 0


class SampleSkipped(Fact, frozen=True):
    """A sample could not be read and was left out of its batch, as the script had allowed."""

    dataset: str
    row: int
    file: str
    reason: str


class ResultsApplied(Fact, frozen=True):
    """The results of these batches are in the model."""

    batches: list[str]
    step: int = -1


class ParametersRequested(Fact, frozen=True):
    """A peer was asked for the model."""

    peer: str
    ok: bool = True
    error: str = ""


class StepFinished(Fact, frozen=True):
    """One step was applied; the times are seconds."""

    step: int
    data_s: float
    compute_s: float
    communication_s: float
    wait_s: float
    loss: float | None = None
    epoch: int = 0
    metrics: dict[str, float] | None = None


class ResourceSnapshot(Fact, frozen=True):
    """What the process uses; see `strata.sdk.resources` for what each figure means.

    Network is the process's own if `network_own`, else it is not known: earlier releases recorded
    the traffic of the whole host.
    """

    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    gpus: list[GpuMetrics] = field(default_factory=list)
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0
    disk_free_bytes: int = 0
    network_rx_bytes: int = 0
    network_tx_bytes: int = 0
    network_own: bool = False


class ClockSampled(Fact, frozen=True):
    """How far the coordinator's wall clock is ahead of this node's, within half a round trip."""

    offset_ns: int
    round_trip_ns: int
    server_mono_ns: int


class EventsDropped(Fact, frozen=True):
    """Events were lost before they had a number, so this is the only trace of them."""

    count: int
    reason: str


class LogLine(Fact, frozen=True):
    """A warning or error that the script or a library wrote; so many before it were left out."""

    level: str
    message: str
    source: str = ""
    skipped: int = 0


KINDS: tuple[type[Fact], ...] = (
    RunStarted,
    RunEnded,
    CoordinatorStateSeen,
    RequestSubmitted,
    RequestCompleted,
    ConnectionChanged,
    NeighborsChanged,
    PeerLatencyChanged,
    BlobAdded,
    MessageSent,
    MessageReceived,
    MessageRejected,
    BatchesAssigned,
    SampleSkipped,
    TrainingStarted,
    TrainingFinished,
    ResultsApplied,
    ParametersRequested,
    StepFinished,
    ResourceSnapshot,
    ClockSampled,
    EventsDropped,
    LogLine,
    *worker_operations.KINDS,
)

CODEC = Codec(KINDS)
"""Encodes any fact; decodes those above, and others as `UnknownFact`."""
