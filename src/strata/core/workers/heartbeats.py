"""Signals of workers and agents: heartbeats, broken connections, and reported resources.

Signals go through the same queue as commands, in the order of arrival, but are not recorded: they
update the last heartbeat, the reported step and the deadline of their sender (see `liveness`).

Resources are what a worker's process and host use, measured by the worker and sent with its
heartbeats. A new resource is a field of `Usage`, and a measurement in
`sdk/record/resource_sampler`. The recorded fact and the conversions follow from it;
`tests/tidy/test_resources.py` names the other formats that lack it (the gRPC message, the REST
response, the Prometheus series).
"""

from msgspec import Struct, field

from strata.core.state import Reported


class Beat(Struct, frozen=True):
    """A worker's heartbeat; `waiting` means that it waits for others.

    `request` is the open request for a checkpoint, 0 while a save of the worker is in progress (see
    `core/checkpoints/save_schedule`); `busy_s` is how long its part of a step takes, without
    communication and waiting, and `data_s` how much of that it waits for data (see
    `core/datasets/lane_balance`, `core/alerts/straggler_rules`).
    """

    attempt: int = 0
    generation: int = 0
    step: int = -1
    training: bool = False
    waiting: bool = False
    request: int = 0
    busy_s: float = 0.0
    data_s: float = 0.0


class Signal(Struct, frozen=True, gc=False):
    """Base of every signal."""


class WorkerBeat(Signal, frozen=True):
    """A worker sent a heartbeat; `state` is what it is doing, if reported."""

    worker: str
    incarnation: int
    beat: Beat
    state: Reported | None = None


class WorkerDisconnected(Signal, frozen=True):
    """The connection of a worker broke."""

    worker: str
    incarnation: int


class AgentBeat(Signal, frozen=True):
    """An agent sent a heartbeat."""

    agent: str
    incarnation: int


class AgentDisconnected(Signal, frozen=True):
    """The connection of an agent broke."""

    agent: str
    incarnation: int


SECOND_NS = 1_000_000_000


class LastHeard(Struct):
    """The last report of one incarnation; `absent` until its first heartbeat after a restart. An
    agent has no task."""

    incarnation: int
    beat_ns: int
    timeout_ns: int
    look_ns: int
    absent: bool = False
    broken_ns: int = 0
    attempt: int = 0
    generation: int = 0
    step: int = -1
    step_ns: int = 0
    step_mean_ns: float = 0.0
    steps_seen: int = 0
    hangable: bool = False
    request: int = 0
    task: str = ""

    @property
    def deadline_ns(self) -> int:
        """The time at which it is lost without another heartbeat."""
        return self.beat_ns + self.timeout_ns

    def is_doubtful(self, now_ns: int) -> bool:
        """Whether its connection is broken, or a quarter of its timeout has passed."""
        return self.broken_ns > 0 or now_ns - self.beat_ns >= self.timeout_ns // 4

    def stacks_from_ns(self, notice_ns: int) -> int:
        """The time at which its stacks are collected if no heartbeat comes: `notice_ns` before its
        deadline, and after at least half of its timeout."""
        return self.deadline_ns - min(notice_ns, self.timeout_ns // 2)

    def is_due_for_stacks(self, now_ns: int, notice_ns: int) -> bool:
        """Whether it was heard since it joined, and will soon be lost without a heartbeat."""
        return not self.absent and self.stacks_from_ns(notice_ns) <= now_ns

    def is_nearly_lost(self, now_ns: int) -> bool:
        """Whether half of its timeout has passed without a heartbeat."""
        return self.timeout_ns // 2 <= now_ns - self.beat_ns < self.timeout_ns


class GpuMetrics(Struct, frozen=True, omit_defaults=True):
    """One GPU; the driver does not report the utilization of a `partitioned` one."""

    index: int
    name: str = ""
    utilization_percent: float = 0.0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    partitioned: bool = False

    @property
    def utilization(self) -> float | None:
        """Percent, None if it is not reported."""
        return None if self.partitioned else self.utilization_percent


class Usage(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """CPU and memory of the process; disk traffic since it started; free space where it writes.
    `disk_source` names the file system there, if it is one for several hosts (`storage/mounts`)."""

    cpu_percent: float = 0.0
    memory_used_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0
    disk_free_bytes: int = 0
    disk_source: str = ""


class ResourceMetrics(Usage, frozen=True, omit_defaults=True, kw_only=True):
    """Everything that a worker measures. Network traffic counts from the start of the process; it
    is None if it cannot be told apart from the traffic of other processes on the host."""

    gpu_metrics: list[GpuMetrics] = field(default_factory=list)
    network_rx_bytes: int | None = None
    network_tx_bytes: int | None = None


class Saving(Struct, frozen=True):
    """How much of a worker's part of a checkpoint is written."""

    checkpoint: str
    written_bytes: int
    total_bytes: int
