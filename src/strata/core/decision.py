"""One turn of the rules: the state, the moment, and the facts recorded so far.

Recording a fact applies it at once, because the rules that run next in the same turn must see it:
a lost worker ends a generation, which releases a barrier, and so on. Nothing leaves the engine
before all facts of the turn are on disk; if that fails, the state is rebuilt from the log.

A refusal is a typed error. A rule refuses before it records, except for facts that say that
it refused.
"""

from typing import TYPE_CHECKING

from strata.core.events import APPLY, Envelope, Event, Fact, Now, position_id, require_known

if TYPE_CHECKING:
    from strata.core.state import Cluster


class Decision:
    """Handed to every rule; `record` is the only way the state changes."""

    __slots__ = ("events", "now", "state")

    def __init__(self, state: "Cluster", now: Now) -> None:
        self.state = state
        self.now = now
        self.events: list[Event] = []

    def record(self, body: Fact, cause: str | tuple[str, ...] = (), op: str = "") -> str:
        """Adds a fact and applies it; returns the id by which later facts name it as cause."""
        causes = (cause,) if isinstance(cause, str) else cause
        at = self.state.position
        event = Envelope(at, self.now.wall_ns, self.now.mono_ns, body, causes, op)
        apply(self.state, event)
        self.events.append(event)
        return position_id(at)


def apply(state: "Cluster", event: Event) -> None:
    """Folds one fact into the state: total, never refuses what this release knows.

    After a lost fact nothing changes the state, until the log was salvaged.
    """
    body = event.body
    if state.unknown_from is not None and not body.after_loss:
        state.position = event.seq + 1
        return
    handler = APPLY.get(type(body))
    if handler is None:
        require_known(body, event.seq)
        body = body.upgrade()
        handler = APPLY[type(body)]
    handler(state, body, event)
    state.position = event.seq + 1
