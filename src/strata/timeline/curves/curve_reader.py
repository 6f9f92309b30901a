"""Answers about curves, from tasks that are kept in memory.

The columns of a few tasks are kept and extended by new events. A task is looked at again after
`SHARE` times as long as the last look took, at least `MIN_S`: reading stays a small share of the
time also for many workers.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec import structs

from strata.core.workers.worker_facts import ConfigValue
from strata.errors import UNDECODABLE, InvalidArgument, NotFound
from strata.timeline.curves.curve_answers import (
    Axis,
    CurveAnswer,
    CurvePoints,
    CurvesAnswer,
    MarkersAnswer,
    PointsAnswer,
    SettingChange,
    SettingsAnswer,
    Wanted,
)
from strata.timeline.curves.curve_facts import CurveFacts
from strata.timeline.curves.curve_series import Points
from strata.timeline.curves.curve_windows import Scale, Window, extent, window_of
from strata.timeline.curves.derived_curves import UNITS, Derived
from strata.timeline.curves.logged_rows import MAX_ROWS
from strata.timeline.curves.task_curves import TaskCurves
from strata.timeline.read.records import MS_NS, ms
from strata.timeline.read.run_timeline import Timeline

KEPT = 4
SHARE = 4
MIN_S = 0.1
MAX_POINTS = 10_000
MAX_CURVES = 50


class CurveReader:
    """The curves of a timeline's tasks; may be called from any thread."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._lock = threading.Lock()
        self._facts: CurveFacts | None = None
        self._tasks: OrderedDict[str, TaskCurves] = OrderedDict()
        self._due_s: dict[str, float] = {}

    def curves(self, task: str) -> CurvesAnswer:
        """All curves of a task."""
        with self._lock:
            curves = self._at_present(task)
            derived = Derived(curves)
            found = [
                _summary(name, points, curves, "logged", "")
                for name in curves.rows.logged
                if (points := curves.points("logged", name)).size
            ]
            for name, unit in UNITS.items():
                if name not in curves.rows.logged:
                    points_or_none = derived.points(name)
                    if points_or_none is not None:
                        found.append(_summary(name, points_or_none, curves, "derived", unit))
            span = curves.span_ms()
            axes: list[Axis] = ["step", "time"]
            axes += [a for a in _CUMULATED if derived.done(a) is not None]
            return CurvesAnswer(
                task=task,
                curves=found,
                axes=axes if span is not None else [],
                from_ms=span[0] if span else None,
                to_ms=span[1] if span else None,
                undone_steps=curves.undone_steps(),
                notes=[*curves.notes(), *derived.notes],
            )

    def points(self, task: str, wanted: Wanted) -> PointsAnswer:
        """Windows of curves."""
        _require_bounded(wanted)
        with self._lock:
            curves = self._at_present(task)
            if wanted.worker and wanted.worker not in curves.rows.workers:
                raise NotFound(
                    f"task {task!r} has no recorded steps of worker {wanted.worker!r}",
                    hint="leave out `worker` for all workers",
                )
            scale = _scale(curves, wanted.axis)
            found = [(name, False, _found(curves, name, wanted.worker)) for name in wanted.names]
            if wanted.undone:
                found += [
                    (name, True, curves.points("logged", name, wanted.worker, undone=True))
                    for name in wanted.names
                    if name in curves.rows.logged
                ]
            ends = [each for *_, points in found if (each := extent(points, scale)) is not None]
            low = wanted.low if wanted.low is not None else min((e[0] for e in ends), default=None)
            high = (
                wanted.high if wanted.high is not None else max((e[1] for e in ends), default=None)
            )
            shown: list[CurvePoints] = []
            if low is not None and high is not None:
                if high < low:
                    raise InvalidArgument(
                        "the window ends before it begins", hint="swap `from` and `to`"
                    )
                window = Window(low, high, wanted.points)
                shown = [
                    window_of(name, points, scale, window, undone=undone)
                    for name, undone, points in found
                ]
            return PointsAnswer(task=task, x=wanted.axis, from_=low, to=high, curves=shown)

    def markers(self, task: str) -> MarkersAnswer:
        """The markers of a task."""
        with self._lock:
            curves = self._at_present(task)
            markers = curves.facts.markers
            moments_ns = [round(each.at_ms * MS_NS) for each in markers.listed]
            listed = [
                each if each.step is not None else structs.replace(each, step=step)
                for each, step in zip(markers.listed, curves.steps_at(moments_ns), strict=True)
            ]
            return MarkersAnswer(task=task, markers=listed, left_out=markers.left_out)

    def settings(self, task: str) -> SettingsAnswer:
        """What a task was trained with."""
        with self._lock:
            curves = self._at_present(task)
            facts, spec = curves.facts, curves.facts.spec
            changes = [
                SettingChange(at_ms=ms(at_ns), step=step, name=name, before=before, after=after)
                for at_ns, step, changed in facts.changes
                for name, (before, after) in changed.items()
            ]
            return SettingsAnswer(
                task=task,
                name=spec.name if spec is not None else "",
                parent=facts.parent,
                forked_step=facts.forked_step if facts.parent else None,
                submitted_ms=ms(facts.submitted_ns) if facts.submitted_ns else None,
                state=facts.state,
                config=flat_config(spec.config if spec is not None else "{}"),
                logged=curves.rows.config,
                parameters=curves.rows.parameters,
                changes=changes,
            )

    def _present_facts(self) -> CurveFacts:
        if self._facts is None:
            self._facts = CurveFacts(self._timeline)
        self._facts.refresh()
        return self._facts

    def _at_present(self, task: str) -> TaskCurves:
        """The curves of a task with all that is recorded, or was a moment ago."""
        began_s = time.monotonic()
        known = self._tasks.get(task)
        if known is not None and (not self._timeline.live or began_s < self._due_s[task]):
            self._tasks.move_to_end(task)
            return known
        curves = known or TaskCurves(self._timeline, self._present_facts(), task)
        self._present_facts()
        curves.refresh()
        ended_s = time.monotonic()
        self._due_s[task] = ended_s + max(SHARE * (ended_s - began_s), MIN_S)
        self._tasks[task] = curves
        self._tasks.move_to_end(task)
        while len(self._tasks) > KEPT or (
            len(self._tasks) > 1 and sum(len(e.rows) for e in self._tasks.values()) > MAX_ROWS
        ):
            oldest, _ = self._tasks.popitem(last=False)
            del self._due_s[oldest]
        return curves


_CUMULATED: tuple[Axis, ...] = ("samples", "tokens")


def logged_points(timeline: Timeline, task: str) -> Iterator[tuple[str, int, int, float]]:
    """A task's logged values that count, in order of time: name, step, time in ns, mean over the
    workers. A value that is not finite is NaN."""
    facts = CurveFacts(timeline)
    facts.refresh()
    curves = TaskCurves(timeline, facts, task)
    curves.refresh()
    found = [(name, curves.points("logged", name)) for name in curves.rows.logged]
    at_ns = np.concatenate([points.at_ns for _, points in found] or [np.empty(0, np.int64)])
    sizes = np.cumsum([0, *(points.size for _, points in found)])
    for place in np.argsort(at_ns, kind="stable"):
        which = int(np.searchsorted(sizes, place, "right")) - 1
        name, points = found[which]
        at = int(place - sizes[which])
        mean = float("nan") if points.bad[at] else float(points.total[at] / points.weight[at])
        yield name, int(points.step[at]), int(points.at_ns[at]), mean


def _found(curves: TaskCurves, name: str, worker: str) -> Points:
    """The points of a curve by its name; raises if there is none."""
    if name in curves.rows.logged:
        return curves.points("logged", name, worker)
    if name in UNITS:
        points = Derived(curves, worker).points(name)
        if points is not None:
            return points
    derived = Derived(curves, worker)
    known = [*curves.rows.logged, *(each for each in UNITS if derived.points(each) is not None)]
    raise NotFound(
        f"the curve {name!r} of task {curves.task!r} is not recorded",
        hint=f"names are {', '.join(known[:20])}" if known else "no step is recorded",
    )


def _scale(curves: TaskCurves, axis: Axis) -> Scale:
    if axis not in _CUMULATED:
        return Scale(axis)
    done = Derived(curves).done(axis)
    if done is None:
        raise NotFound(
            f"the {axis} of task {curves.task!r} are not recorded for every step",
            hint="use x=step or x=time",
        )
    return Scale(axis, done)


def _summary(name: str, points: Points, curves: TaskCurves, source: str, unit: str) -> CurveAnswer:
    finite = points.weight > 0
    at = points.size - 1
    last = (
        float(points.total[at] / points.weight[at]) if finite[at] and not points.bad[at] else None
    )
    return CurveAnswer(
        name=name,
        source="logged" if source == "logged" else "derived",
        unit=unit,
        points=points.size,
        first_step=int(points.step[0]),
        last_step=int(points.step[-1]),
        last=last,
        min=float(points.low.min()) if finite.any() else None,
        max=float(points.high.max()) if finite.any() else None,
        not_finite=int((points.bad > 0).sum()),
        workers=curves.workers_of(name),
    )


def _require_bounded(wanted: Wanted) -> None:
    if not wanted.names or len(wanted.names) > MAX_CURVES:
        raise InvalidArgument(
            f"{len(wanted.names)} curves are asked for", hint=f"ask for 1 to {MAX_CURVES} names"
        )
    if not 1 <= wanted.points <= MAX_POINTS:
        raise InvalidArgument(
            f"{wanted.points} points are asked for", hint=f"ask for 1 to {MAX_POINTS}"
        )


def flat_config(config: str) -> dict[str, ConfigValue]:
    """A JSON object with nested names joined by dots."""
    found: dict[str, ConfigValue] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                add(f"{prefix}.{name}" if prefix else str(name), each)
        elif isinstance(value, bool | int | float | str) or value is None:
            found[prefix] = value
        else:
            found[prefix] = msgspec.json.encode(value).decode()

    try:
        add("", msgspec.json.decode(config))
    except UNDECODABLE:
        found["config"] = config
    return found
