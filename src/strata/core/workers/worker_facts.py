"""Facts that a worker records about itself.

No rule decides on these facts and they do not change the state, so there are no rules here. They
are part of `core` because the SDK and the simulator record them and the timeline reads them.
Operations that take time are in `worker_operations`, facts about peers in `exchange_facts`.

A step's time is split into the parts that the script names with `run.timing` (`data`,
`communication`), the time spent waiting for others (`wait`, measured in barriers and while a
generation forms), and the rest, which is `compute`.

Users add kinds of their own (see `sdk/record/user_facts`), which are written with `USER_PREFIX`.
"""

from typing import Literal, TypeAlias

from msgspec import field, structs

from strata.core.events import Codec, Fact, kinds_in
from strata.core.workers import exchange_facts, worker_operations
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics, Usage

USER_PREFIX = "user."

MediaKind: TypeAlias = Literal["image", "text", "histogram"]
ConfigValue: TypeAlias = bool | int | float | str | None


class RunStarted(Fact, frozen=True, kw_only=True):
    """A process joined. `parameters` are its settings, without secrets.

    `role` is its first role: `trainer`, `spare` (it waits to replace a lost worker;
    `CoordinatorStateSeen` records when it gets a rank) or `client` (a worker of
    `TrainingOrchestrator`, which enters no generations).

    `parameters_hash` is the hash of the parameters and of the task's config, without the start
    count: workers with the same settings have the same hash.
    """

    sentence = "the process of {worker} started[ on {hostname}][ as {role}]"

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


class RunEnded(Fact, frozen=True, kw_only=True):
    """The process left: its outcome, the reason, and its number of steps."""

    sentence = "the process ended ({outcome}) after {steps:step}[: {reason}]"
    lane_mark = True

    outcome: str
    reason: str
    steps: int


class WarmStarted(Fact, frozen=True, kw_only=True):
    """The worker begins at step 0 with weights of `source`: a checkpoint, or a file of other tools.

    `taken` tensors of it were read. `kept` tensors of the state stayed as initialised, `ignored`
    tensors of the source had no place. `casts` says how many changed their type, for each change.
    `objects` are the parts that were restored as a whole, such as an optimizer. The lists of names
    hold the first few.
    """

    sentence = (
        "started with {taken:tensor} of {source}[, restored {objects}][{kept_names:?}, kept "
        "{kept:tensor} as initialised][{ignored_names:?}, ignored {ignored:tensor}][, cast {casts}]"
    )
    lane_mark = True

    source: str
    taken: int
    kept: int = 0
    ignored: int = 0
    casts: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    kept_names: list[str] = field(default_factory=list)
    ignored_names: list[str] = field(default_factory=list)


class CoordinatorStateSeen(Fact, frozen=True, kw_only=True):
    """The worker learned its place in the task."""

    sentence = (
        "learned that {task} is {state}: generation {generation} {phase}[, rank {rank} of "
        "{world_size}]"
    )

    task: str
    state: str
    generation: int
    phase: str
    rank: int
    world_size: int
    attempt: int
    committed: int


class RequestSubmitted(Fact, frozen=True, kw_only=True):
    """The worker sent a request to the coordinator; `RequestCompleted` has the same `op`.

    Registration is request 0 of an incarnation, leaving its last one. Heartbeats are not requests.
    """

    sentence = "sent request {type}[ for barrier {barrier}] to the coordinator"

    request: int
    type: str
    barrier: str = ""


class RequestCompleted(Fact, frozen=True, kw_only=True):
    """The coordinator answered, or the request was given up.

    `ok` says whether the request succeeded: a barrier that failed is answered, and not `ok`.
    `error` is the reason.
    """

    sentence = "request {type}[ for barrier {barrier}] [{ok:?}succeeded|failed][: {error}]"

    request: int
    type: str
    ok: bool
    error: str = ""
    barrier: str = ""


class BatchesAssigned(Fact, frozen=True, kw_only=True):
    """The worker learned its share of the following batches, until the next assignment.

    A batch is a step of the run; the first is that of `step`. If the loop has no end, `last_batch`
    is empty and `batches` is 0. The share is `samples` samples of each batch: those whose place in
    the `global_batch`, modulo `lane_count`, is one of `lanes`. A leased shard is a batch of its
    own, without lanes and with step -1.
    """

    sentence = (
        "was assigned [{samples:sample} of each batch|no samples] of {dataset}[ from "
        "{first_batch}][ to {last_batch}], starting at step {step}"
    )

    dataset: str
    step: int
    generation: int
    lanes: list[int]
    columns: list[str] = field(default_factory=list)
    first_batch: str = ""
    last_batch: str = ""
    batches: int = 0
    samples: int = 0
    global_batch: int = 0
    lane_count: int = 0


class TrainingStarted(Fact, frozen=True, kw_only=True):
    """A batch was handed to the script; `batch` is the dataset and the step of the run.

    `TrainingFinished` records that it was applied. `digest` is that of its samples, in case the
    worker is lost before that.
    """

    sentence = "started to train batch {batch}"

    batch: str
    step: int = -1
    dataset: str = ""
    generation: int = 0
    samples: int = 0
    digest: int = 0
    content: int = 0


class TrainingFinished(Fact, frozen=True, kw_only=True):
    """A batch was trained and its step applied; `batch` and `step` are those of its start.

    `digest` is eight bytes for the samples of the batch and their positions, which the order
    determines for the worker's lanes in that generation. `content` is eight bytes for the values
    that were read, if the run records them; else 0. `averaged` counts the samples of all workers
    whose gradients are in the applied mean, if known; else 0.
    """

    sentence = "trained batch {batch}[, loss {loss}]"

    batch: str
    step: int
    loss: float | None = None
    dataset: str = ""
    generation: int = 0
    samples: int = 0
    digest: int = 0
    content: int = 0
    averaged: int = 0


class SampleSkipped(Fact, frozen=True, kw_only=True):
    """A sample could not be read and was left out of its batch, as the script allows."""

    sentence = "skipped row {row} of {dataset} in {file}[: {reason}]"

    dataset: str
    row: int
    file: str
    reason: str


class ResultsApplied(Fact, frozen=True, kw_only=True):
    """The results of all workers for these batches were applied to the model, or not.

    `results` are the ids under which the results were announced, `owners` the workers that made
    them, in the same order. `ResultsApplyStarted` has the same `op`.
    """

    sentence = (
        "[{ok:?}applied|failed to apply] [the results of {batches}|no results][ from "
        "{owners}][ at step {step}][: {error}]"
    )

    batches: list[str]
    step: int = -1
    ok: bool = True
    error: str = ""
    results: list[str] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)


class StepFinished(Fact, frozen=True, kw_only=True):
    """One step was applied, in a generation; the times are seconds.

    In logs of older releases the generation is 0: unknown.
    """

    sentence = (
        "finished step {step}: data {data_s}, compute {compute_s}, communication "
        "{communication_s}, wait {wait_s}[, loss {loss}]"
    )

    step: int
    data_s: float
    compute_s: float
    communication_s: float
    wait_s: float
    loss: float | None = None
    epoch: int = 0
    metrics: dict[str, float] | None = None
    generation: int = 0


class MetricsLogged(Fact, frozen=True, kw_only=True):
    """The script logged metrics of its state after `step` steps, outside of a step."""

    sentence = "logged [{metrics}|no metrics] after {step:step}"

    step: int
    metrics: dict[str, float]
    generation: int = 0


class ConfigLogged(Fact, frozen=True, kw_only=True):
    """The script recorded its configuration, beside the config of its task.

    Nested names are joined by dots. Values whose names say that they are secret are `***`.
    """

    sentence = "recorded the configuration of the script: {values}"

    values: dict[str, ConfigValue]


class MediaLogged(Fact, frozen=True, kw_only=True):
    """The script logged an image, a text or a histogram: in step `step` if `in_step`, else after
    so many steps.

    A later generation that resumes at an earlier step undoes it.
    An image has `data` in `format` (png, jpeg, gif or webp). A histogram has one edge more than
    counts; `not_finite` counts values that are in no bin. `size_bytes` is what counts towards the
    limit of the task.
    """

    sentence = "logged the {media} {name} [{in_step:?}in|after] step {step}"

    name: str
    media: MediaKind
    step: int
    in_step: bool = False
    generation: int
    size_bytes: int
    caption: str = ""
    format: str = ""
    width: int = 0
    height: int = 0
    data: bytes = field(default_factory=bytes)
    text: str = ""
    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    not_finite: int = 0


class MediaSkipped(Fact, frozen=True, kw_only=True):
    """An image, a text or a histogram that the script logged is not recorded."""

    sentence = "did not record the {media} {name} of step {step}[: {reason}]"

    name: str
    media: MediaKind
    step: int
    size_bytes: int
    reason: str


class ResourceSnapshot(Fact, Usage, frozen=True, kw_only=True):
    """Resources that the process uses; `sdk/record/resource_sampler` says how each figure is
    measured.

    The network figures are those of the process if `network_own`, else they are unknown.
    """

    sentence = "uses {cpu_percent} % CPU and {memory_used_bytes} of memory"

    gpus: list[GpuMetrics] = field(default_factory=list)
    network_rx_bytes: int = 0
    network_tx_bytes: int = 0
    network_own: bool = False

    def metrics(self) -> ResourceMetrics:
        """What the worker measured."""
        fields = structs.asdict(self)
        if not fields.pop("network_own"):
            fields |= {"network_rx_bytes": None, "network_tx_bytes": None}
        return ResourceMetrics(gpu_metrics=fields.pop("gpus"), **fields)


def resource_snapshot(metrics: ResourceMetrics) -> ResourceSnapshot:
    """The fact that records what a worker measured."""
    fields = structs.asdict(metrics)
    own = metrics.network_rx_bytes is not None
    if not own:
        del fields["network_rx_bytes"], fields["network_tx_bytes"]
    return ResourceSnapshot(gpus=fields.pop("gpu_metrics"), network_own=own, **fields)


class ClockSampled(Fact, frozen=True, kw_only=True):
    """How far the coordinator's wall clock is ahead of this node's, within half a round trip."""

    sentence = "the coordinator's clock is {offset_ns:ahead}"

    offset_ns: int
    round_trip_ns: int
    server_mono_ns: int


class EventsDropped(Fact, frozen=True, kw_only=True):
    """Events were dropped before they got a number, so this is the only trace of them."""

    sentence = "{count:event} were lost before they were recorded[: {reason}]"
    lane_mark = True

    count: int
    reason: str


class LogLine(Fact, frozen=True, kw_only=True):
    """A warning or error of the script or a library; `skipped` lines before it were left out."""

    sentence = "{level}: {message}"

    level: str
    message: str
    source: str = ""
    skipped: int = 0


KINDS: tuple[type[Fact], ...] = (
    *kinds_in(globals()),
    *worker_operations.KINDS,
    *exchange_facts.KINDS,
)

CODEC = Codec(KINDS)
"""Encodes any fact; decodes those above, and others as `UnknownFact`."""
