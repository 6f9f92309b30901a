"""Limits: whatever could grow without end has one, and reaching it is a fact."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies
from strata.errors import InvalidArgument, LimitExceeded

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


MAX_NAME = 200
MAX_TEXT = 4_096
MAX_ENTRIES = 256


def require_name(field: str, name: str) -> None:
    """Refuses an id that people could not read, or that is too long to be one."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidArgument(
            f"{field} {name[:40]!r} cannot be used",
            hint=f"use 1 to {MAX_NAME} printable characters",
        )


def require_text(**texts: str) -> None:
    """Refuses texts that are too long to be kept for ever."""
    for field, text in texts.items():
        if len(text) > MAX_TEXT:
            raise InvalidArgument(
                f"{field} has {len(text)} characters", hint=f"at most {MAX_TEXT} are kept"
            )


def require_entries(field: str, entries: Mapping[str, str]) -> None:
    """Refuses metadata that is too much to be kept for ever."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidArgument(
            f"{field} has {len(entries)} entries", hint=f"at most {MAX_ENTRIES} are kept"
        )
    for key, value in entries.items():
        require_text(**{f"a key of {field}": key, f"{field}[{key[:40]!r}]": value})


def shortened(text: str) -> str:
    """A reason, cut to what is kept of it."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


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
