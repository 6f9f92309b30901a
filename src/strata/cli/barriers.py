"""List the barriers."""

from typing import Annotated

import typer

from strata.cli.support.options import AsJson, Limit, OfTask, Url
from strata.cli.support.rest_client import reach
from strata.cli.support.tables import (
    Column,
    Look,
    ago,
    count,
    duration,
    print_list,
    state,
)
from strata.coordinator.rest.response_models import BarrierResponse, BarrierState

OfStatus = Annotated[BarrierState | None, typer.Option("--status", help="Show only this status.")]


def held(barrier: BarrierResponse, now_ms: int) -> str:
    """How long the workers have waited, or waited."""
    held_ms = max(0, (barrier.ended_at or now_ms) - barrier.created_at)
    return f"{held_ms} ms" if held_ms < 2000 else duration(held_ms / 1000)


def missing(barrier: BarrierResponse) -> str:
    """The workers that have not arrived."""
    unnamed = barrier.missing_total - len(barrier.missing)
    names = ", ".join(barrier.missing) or "–"
    return f"{names} and {unnamed} more" if unnamed else names


LOOK = Look(
    "barriers",
    BarrierResponse,
    [
        Column("barrier", lambda barrier, _: barrier.name, shrinks=True),
        Column("status", lambda barrier, _: state(barrier.status)),
        Column("arrived", lambda barrier, _: f"{barrier.arrived}/{barrier.total}", "right"),
        Column("waited", held, "right"),
        Column("opened", lambda barrier, now_ms: ago(barrier.created_at, now_ms)),
        Column("step", lambda barrier, _: count(barrier.step), "right", from_width=90),
        Column("task", lambda barrier, _: barrier.task_id, shrinks=True, from_width=100),
        Column("missing", lambda barrier, _: missing(barrier), shrinks=True),
    ],
    empty="no barrier was used",
    next_command="strata workers",
)


def barriers(
    status: OfStatus = None,
    task: OfTask = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the barriers, newest first: arrived and missing workers of each."""
    print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task)
