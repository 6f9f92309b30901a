"""Times in which the coordinator could not store facts: a full disk, a database that is away.

Nothing can be recorded while it lasts, so it is recorded when facts are stored again.
"""

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.state import Cluster


class StoreRefused(Fact, frozen=True, kw_only=True):
    """The store refused all facts for a while; the requests of `turns` turns were refused."""

    sentence = "no facts could be stored for {lasted_s}[: {reason}]"
    lane_mark = True

    lasted_s: float
    turns: int
    reason: str


class NoteStoreRefused(Command, frozen=True):
    lasted_s: float
    turns: int
    reason: str


@applies(StoreRefused)
def _refused(state: Cluster, fact: StoreRefused, event: Event) -> None:
    """Change nothing: the fact is only a record."""


@decides(NoteStoreRefused)
def note(d: Decision, c: NoteStoreRefused) -> None:
    """Record the end of such a time."""
    d.record(StoreRefused(lasted_s=c.lasted_s, turns=c.turns, reason=c.reason), c.cause)
