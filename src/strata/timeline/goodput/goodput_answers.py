"""Classes of a worker's time, and the answers of `strata goodput`, REST and the page."""

from typing import Literal, TypeAlias, get_args

from msgspec import Struct, field

TimeClass: TypeAlias = Literal[
    "productive",
    "data_wait",
    "communication_wait",
    "straggler_wait",
    "checkpoint_stall",
    "checkpoint_restore",
    "loss_detection",
    "replacement_wait",
    "starting",
    "rolled_back",
    "evaluation",
    "idle",
    "standby",
    "paused",
    "unknown",
]
"""docs/GOODPUT.md defines each class and names the records that it is derived from."""

CLASSES: tuple[TimeClass, ...] = get_args(TimeClass)

LABELS: dict[TimeClass, str] = {
    "productive": "productive steps",
    "data_wait": "waiting for data",
    "communication_wait": "communication",
    "straggler_wait": "waiting for a slower worker",
    "checkpoint_stall": "checkpoint stall",
    "checkpoint_restore": "checkpoint restore",
    "loss_detection": "detecting a loss",
    "replacement_wait": "waiting for a replacement",
    "starting": "starting",
    "rolled_back": "rolled-back work",
    "evaluation": "evaluation",
    "idle": "idle after the last step",
    "standby": "standby (spares)",
    "paused": "paused process",
    "unknown": "unknown",
}


class ClassShare(Struct, frozen=True, kw_only=True):
    """The worker-seconds of one class; `cost` is null without a price."""

    name: TimeClass
    label: str
    seconds: float
    share: float
    cost: float | None = None


class Saving(Struct, frozen=True, kw_only=True):
    """What would have avoided a part of a cause's time; `method` says how that was computed."""

    seconds: float
    cost: float | None
    text: str
    method: str


class CauseAnswer(Struct, frozen=True, kw_only=True):
    """Lost worker-seconds with the same cause; `ref` names the event, empty without one."""

    kind: str
    text: str
    seconds: float
    cost: float | None
    count: int
    ref: str = ""
    at_ms: float | None = None
    classes: dict[TimeClass, float] = field(default_factory=dict)
    saving: Saving | None = None


class TimeSlice(Struct, frozen=True):
    """The worker-seconds of each class in one slice of time."""

    from_ms: float
    seconds: dict[TimeClass, float]


class GoodputAnswer(Struct, frozen=True, kw_only=True):
    """The ledger of a task: all classes add up to `total_s`, the time of all its workers.

    `causes` are the most expensive ones of `causes_total`. `notes` say what limits the answer. The
    costs are in the unit of the price; `price` is empty without one. `pending_s` is the newest time
    of a running task, which is not in `total_s`: steps that are not finished or not committed.
    """

    task: str
    run: str
    from_ms: float
    to_ms: float
    workers: int
    total_s: float
    productive_s: float
    goodput: float
    classes: list[ClassShare]
    slice_ms: float
    series: list[TimeSlice]
    causes: list[CauseAnswer]
    causes_total: int
    price: str = ""
    currency: str = ""
    cost: float | None = None
    lost_cost: float | None = None
    pending_s: float = 0.0
    notes: list[str] = field(default_factory=list)


class GoodputRow(Struct, frozen=True, kw_only=True):
    """The worker-seconds of one week, host, cause or run."""

    name: str
    total_s: float
    productive_s: float
    goodput: float
    cost: float | None
    seconds: dict[TimeClass, float]


class CauseKind(Struct, frozen=True, kw_only=True):
    """The lost worker-seconds of all causes of one kind; `count` is the number of causes."""

    kind: str
    text: str
    seconds: float
    cost: float | None
    count: int


class RunsGoodput(Struct, frozen=True, kw_only=True):
    """Goodput over several runs; `left_out` names runs that could not be read, with the reason.

    `causes` are the most expensive ones, `kinds` the sums over all causes of each kind.
    """

    total_s: float
    productive_s: float
    goodput: float
    cost: float | None
    price: str
    currency: str
    runs: list[GoodputRow]
    weeks: list[GoodputRow]
    hosts: list[GoodputRow]
    causes: list[CauseAnswer]
    kinds: list[CauseKind] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
