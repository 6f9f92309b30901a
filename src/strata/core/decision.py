"""One turn of the rules: the state, the time, and the facts recorded so far.

Recording a fact applies it at once, because the rules that run next in the same turn must see it:
a lost worker ends a generation, which releases a barrier, and so on. Nothing leaves the engine
before all facts of the turn are on disk; if that fails, the state is rebuilt from the log.

A refusal is a typed error. A rule refuses before it records, except for a fact that records the
refusal itself.

Two tables connect facts and commands to their rules: `APPLY` says how a fact changes the state,
`DECIDE` which facts a command leads to. The modules of the concepts fill them by decorators.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from strata.core.events import (
    AnyFact,
    Command,
    Envelope,
    Event,
    Fact,
    Now,
    position_id,
    require_known,
)
from strata.core.state import Cluster


class Decision:
    """Handed to every rule; `record` is the only way the state changes."""

    __slots__ = ("events", "now", "state")

    def __init__(self, state: Cluster, now: Now) -> None:
        self.state = state
        self.now = now
        self.events: list[Event] = []

    def record(self, body: Fact, cause: str | tuple[str, ...] = (), op: str = "") -> str:
        """Add a fact and applies it; returns the id by which later facts name it as cause."""
        causes = (cause,) if isinstance(cause, str) else cause
        at = self.state.position
        event = Envelope(
            seq=at,
            wall_ns=self.now.wall_ns,
            mono_ns=self.now.mono_ns,
            body=body,
            cause=causes,
            op=op,
        )
        apply(self.state, event)
        self.events.append(event)
        return position_id(at)


def apply(state: Cluster, event: Event) -> None:
    """Fold one fact into the state; never refuses a kind that this release knows.

    After a lost fact nothing changes the state until the log is salvaged.
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


AnyCommand = TypeVar("AnyCommand", bound=Command)
Answer = TypeVar("Answer")
Apply: TypeAlias = Callable[[Cluster, AnyFact, Event], None]
Decide: TypeAlias = Callable[[Decision, AnyCommand], Answer]

APPLY: dict[type[Fact], Apply[Fact]] = {}
DECIDE: dict[type[Command], Decide[Command, object]] = {}


def applies(kind: type[AnyFact]) -> Callable[[Apply[AnyFact]], Apply[AnyFact]]:
    """Register `function(state, fact, event)` as what the fact changes; it must never refuse."""

    def register(function: Apply[AnyFact]) -> Apply[AnyFact]:
        assert kind not in APPLY, f"{kind.__name__} is applied twice"
        APPLY[kind] = cast("Apply[Fact]", function)
        return function

    return register


def decides(
    kind: type[AnyCommand],
) -> Callable[[Decide[AnyCommand, Answer]], Decide[AnyCommand, Answer]]:
    """Register `function(decision, command)` as the rule for a command."""

    def register(function: Decide[AnyCommand, Answer]) -> Decide[AnyCommand, Answer]:
        assert kind not in DECIDE, f"{kind.__name__} is decided twice"
        DECIDE[kind] = cast("Decide[Command, object]", function)
        return function

    return register
