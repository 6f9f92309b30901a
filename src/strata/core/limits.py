"""Limits on everything that could grow without end; reaching one is recorded."""

import math
from collections.abc import Mapping
from typing import SupportsFloat

from strata.core.decision import Decision, applies
from strata.core.events import Event, Fact
from strata.core.state import Cluster
from strata.errors import InvalidArgument, LimitExceeded


class LimitHit(Fact, frozen=True, kw_only=True):
    """A limit was reached: a request was refused, or a task keeps more than the limit."""

    sentence = "the limit {limit} ({value}) was reached[: {reason}]"

    limit: str
    value: int
    reason: str


@applies(LimitHit)
def _hit(state: Cluster, fact: LimitHit, event: Event) -> None:
    """Change nothing: the fact is only a record."""


MAX_NAME = 200
MAX_TEXT = 4_096
MAX_ENTRIES = 256


def require_name(field: str, name: str) -> None:
    """Refuse an id that is empty, too long or not printable."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidArgument(
            f"{field} {name[:40]!r} cannot be used",
            hint=f"use 1 to {MAX_NAME} printable characters",
        )


def require_text(**texts: str) -> None:
    """Refuse texts that are too long to store."""
    for field, text in texts.items():
        if len(text) > MAX_TEXT:
            raise InvalidArgument(
                f"{field} has {len(text)} characters", hint=f"at most {MAX_TEXT} are kept"
            )


def require_entries(field: str, entries: Mapping[str, str]) -> None:
    """Refuse metadata that is too large to store."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidArgument(
            f"{field} has {len(entries)} entries", hint=f"at most {MAX_ENTRIES} are kept"
        )
    for key, value in entries.items():
        require_text(**{f"a key of {field}": key, f"{field}[{key[:40]!r}]": value})


def require_metrics(metrics: Mapping[str, float]) -> None:
    """Refuse metrics that are too many to store or not finite."""
    require_entries("metrics", dict.fromkeys(metrics, ""))
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise InvalidArgument(f"metric {name!r} is {value}", hint="leave it out")


def finite_values(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """The values that are finite numbers; waits for those that a GPU computes."""
    values = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def shortened(text: str) -> str:
    """A reason, cut to the length that is stored."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def require_room(
    d: Decision, limit: str, value: int, now: int, subject: str, cause: tuple[str, ...]
) -> None:
    """Refuse one more of something when the limit is reached."""
    if now >= value:
        d.record(LimitHit(limit=limit, value=value, reason=f"{subject} was refused"), cause)
        raise LimitExceeded(
            f"{subject} was refused: there are {now}, and {limit} is {value}",
            hint=f"wait until some have ended, or raise {limit}",
        )
