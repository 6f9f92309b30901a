"""Answers of the curves API: the same structures over REST, in the terminal and as JSON.

Times are Unix milliseconds. A step is numbered from 0; metrics that `run.log` recorded outside of a
step have the number of steps done before. What is not recorded is null or absent, never 0.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.core.workers.worker_facts import ConfigValue

Axis: TypeAlias = Literal["step", "time", "samples", "tokens"]
CurveSource: TypeAlias = Literal["logged", "derived"]
MarkerKind: TypeAlias = Literal[
    "lost",
    "recovery",
    "rollback",
    "checkpoint",
    "fork",
    "restart",
    "continued",
    "resize",
    "config",
    "alert",
]


class Wanted(Struct, frozen=True, kw_only=True):
    """Which points are asked for; `low` and `high` are in units of the axis."""

    names: list[str]
    axis: Axis = "step"
    low: float | None = None
    high: float | None = None
    points: int = 1000
    worker: str = ""
    undone: bool = False


class CurveAnswer(Struct, frozen=True, kw_only=True):
    """One curve. `points` counts its steps; `last`, `min` and `max` are of finite values.

    `last` is the mean over the workers that have the last point. `not_finite` counts the points
    with a value that is NaN or infinite.
    """

    name: str
    source: CurveSource
    unit: str
    points: int
    first_step: int
    last_step: int
    last: float | None
    min: float | None
    max: float | None
    not_finite: int
    workers: int


class CurvesAnswer(Struct, frozen=True, kw_only=True):
    """The curves of a task, and the axes for which its steps have a position.

    `undone_steps` counts steps that a recovery undid; those trained again count too. `notes` says
    what is missing from the curves, and why a derived curve is not recorded.
    """

    task: str
    curves: list[CurveAnswer]
    axes: list[Axis]
    from_ms: float | None
    to_ms: float | None
    undone_steps: int
    notes: list[str]


class CurvePoints(Struct, frozen=True, kw_only=True):
    """A window of a curve, as columns with one item per bucket.

    `mean` is over all values of the bucket, `min` and `max` over all its workers and steps; null
    where a value is not finite. `x`, `step` and `time_ms` are of the last step in the bucket.
    `not_finite` has the positions of points with a value that is NaN or infinite, the first ones
    if there are too many. `exact`: each bucket is one step. `count` is the number of values.
    `undone`: the values are of steps that a recovery undid.
    """

    name: str
    undone: bool
    x: list[float]
    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]
    step: list[int]
    time_ms: list[float]
    not_finite: list[float]
    exact: bool
    count: int


class PointsAnswer(Struct, frozen=True, kw_only=True):
    """Windows of curves on one axis; null ends for a task without any point."""

    task: str
    x: Axis
    from_: float | None = field(name="from")
    to: float | None
    curves: list[CurvePoints]


class Marker(Struct, frozen=True, kw_only=True):
    """An event of a task on its curves.

    `step` is the one that the event names, else the number of steps that the newest recorded step
    had then; null if no step was recorded before.
    """

    at_ms: float
    step: int | None
    kind: MarkerKind
    text: str
    ref: str


class MarkersAnswer(Struct, frozen=True, kw_only=True):
    """Markers in order of time; `left_out` counts checkpoints left out of a long list."""

    task: str
    markers: list[Marker]
    left_out: int


class SettingChange(Struct, frozen=True, kw_only=True):
    """A parameter that was changed when a task was continued or forked."""

    at_ms: float
    step: int
    name: str
    before: str
    after: str


class SettingsAnswer(Struct, frozen=True, kw_only=True):
    """What a task was trained with, for comparison with other tasks.

    `config` is what the user submitted, `logged` what the script recorded with `run.log_config`,
    `parameters` the settings of its first process. `changes` has the changes of later lives.
    """

    task: str
    name: str
    parent: str
    forked_step: int | None
    submitted_ms: float | None
    state: str
    config: dict[str, ConfigValue]
    logged: dict[str, ConfigValue]
    parameters: dict[str, str]
    changes: list[SettingChange]
