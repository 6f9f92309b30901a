"""Limits: whatever could grow without end has one, and reaching it is a fact."""

from typing import TYPE_CHECKING

from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies
from strata.errors import LimitExceeded

if TYPE_CHECKING:
    from strata.core.state import Cluster


class LimitHit(Fact, frozen=True):
    """Something was refused because a limit was reached."""

    limit: str
    value: int
    reason: str


@applies(LimitHit)
def _hit(state: "Cluster", fact: LimitHit, event: Event) -> None:
    """Changes nothing: it is there to be read."""


def require_room(
    d: Decision, limit: str, value: int, now: int, subject: str, cause: tuple[str, ...]
) -> None:
    """Refuses one more of something when there are as many as allowed."""
    if now >= value:
        d.record(LimitHit(limit, value, f"{subject} was refused"), cause)
        raise LimitExceeded(
            f"{subject} was refused: {now} are there and {limit} is {value}",
            hint=f"let some end, or raise {limit}",
        )
