"""List the barriers: who has arrived, and for whom the others wait."""

from typing import Annotated, Literal

import typer
from msgspec import Struct

from strata.cli._api import reach
from strata.cli._look import Column, Look, ago, count, duration, print_list, state
from strata.cli._options import AsJson, Limit, OfTask, Url

Status = Literal["waiting", "released", "failed"]
OfStatus = Annotated[Status | None, typer.Option("--status", help="Only of this status.")]


class Barrier(Struct, frozen=True):
    """What is shown of a barrier."""

    name: str
    task_id: str
    status: str
    arrived: int
    total: int
    step: int
    created_at: int
    ended_at: int | None
    missing: list[str]
    missing_total: int


def held(barrier: Barrier, now_ms: int) -> str:
    """How long it holds its workers, or held them."""
    held_ms = max(0, (barrier.ended_at or now_ms) - barrier.created_at)
    return f"{held_ms} ms" if held_ms < 2000 else duration(held_ms / 1000)


def missing(barrier: Barrier) -> str:
    """For whom it waits, or waited in vain."""
    unnamed = barrier.missing_total - len(barrier.missing)
    names = ", ".join(barrier.missing) or "–"
    return f"{names} and {unnamed} more" if unnamed else names


LOOK = Look(
    "barriers",
    Barrier,
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
    """List the barriers, newest first: who has arrived, and for whom the others wait."""
    print_list(reach(url), LOOK, limit, as_json, status=status, task_id=task)
