"""Endpoints of training curves: logged metrics, and figures derived from recorded steps."""

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from strata.coordinator.rest.error_responses import READS_ONE
from strata.coordinator.rest.ports import Api, TheApi
from strata.coordinator.rest.views.past_state import PastOf, ThePast
from strata.timeline.curves.curve_answers import (
    Axis,
    CurvesAnswer,
    MarkersAnswer,
    PointsAnswer,
    SettingsAnswer,
    Wanted,
)
from strata.timeline.curves.curve_reader import MAX_CURVES, MAX_POINTS

Task = Annotated[str, QueryParameter(min_length=1, max_length=400, description="The task.")]
Names = Annotated[
    list[str],
    QueryParameter(
        name="name", min_items=1, max_items=MAX_CURVES, description="Curve; may be repeated."
    ),
]
Unit = Annotated[Axis, QueryParameter(description="The axis.")]
From = Annotated[
    float | None,
    QueryParameter(name="from", description="Start of the window, in units of the axis."),
]
To = Annotated[
    float | None,
    QueryParameter(name="to", description="End of the window, in units of the axis."),
]
Most = Annotated[
    int, QueryParameter(ge=1, le=MAX_POINTS, description="Number of buckets per curve.")
]
Worker = Annotated[str, QueryParameter(max_length=400, description="Only this worker.")]
Undone = Annotated[
    bool,
    QueryParameter(description="Each logged curve also with the values that a recovery undid."),
]


def watch(api: Api, past: PastOf, task: str) -> None:
    """Let the workers of a running task send their events more often for some seconds."""
    if past.live:
        api.watched.look(task)


@get("/timeline/curves", responses=READS_ONE)
async def list_curves(api: TheApi, past: ThePast, task: Task) -> CurvesAnswer:
    """The curves of a task: what it logged, and what is derived from its recorded steps."""
    watch(api, past, task)
    return await past.ask(lambda queries: queries.curves.curves(task))


@get("/timeline/curves/points", responses=READS_ONE)
async def get_points(
    api: TheApi,
    past: ThePast,
    task: Task,
    names: Names,
    x: Unit = "step",
    low: From = None,
    high: To = None,
    points: Most = 1000,
    worker: Worker = "",
    undone: Undone = False,
) -> PointsAnswer:
    """A window of some curves; more steps than `points` are joined into buckets that keep the
    lowest and the highest value."""
    watch(api, past, task)
    wanted = Wanted(
        names=names, axis=x, low=low, high=high, points=points, worker=worker, undone=undone
    )
    return await past.ask(lambda queries: queries.curves.points(task, wanted))


@get("/timeline/curves/markers", responses=READS_ONE)
async def list_markers(past: ThePast, task: Task) -> MarkersAnswer:
    """Events of a task that explain its curves: losses, recoveries, checkpoints, changes."""
    return await past.ask(lambda queries: queries.curves.markers(task))


@get("/timeline/curves/settings", responses=READS_ONE)
async def get_curve_settings(past: ThePast, task: Task) -> SettingsAnswer:
    """What a task was trained with, to compare it with other tasks."""
    return await past.ask(lambda queries: queries.curves.settings(task))


ENDPOINTS = [list_curves, get_points, list_markers, get_curve_settings]
"""All endpoints of this module."""
