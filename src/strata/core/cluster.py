"""Composes the concepts: one way in for commands, one way in for facts.

`decide` turns a command into facts, or a typed refusal, and an answer. `apply` folds a fact into
the state. Everything else in this package is reached through these two.
"""

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from msgspec import Struct, field, structs

from strata.core import (  # noqa: F401 - importing fills the tables of rules
    agents,
    agreements,
    barriers,
    checkpoints,
    datasets,
    departures,
    final_saves,
    generations,
    keeping,
    leases,
    limits,
    loops,
    losses,
    pace,
    presence,
    recovery,
    retention,
    salvage,
    save_points,
    saving,
    scheduling,
    setbacks,
    storage_waits,
    tasks,
    workers,
)
from strata.core.agents import ReportExit
from strata.core.decision import Decision, apply
from strata.core.events import (
    APPLY,
    DECIDE,
    OUTDATED,
    Codec,
    Command,
    Event,
    Fact,
    Now,
    applies,
    decides,
)
from strata.core.fencing import WorkerCommand, require_living
from strata.core.lifecycle import Lifecycle
from strata.core.state import Cluster, Rules
from strata.core.workers import DeregisterWorker
from strata.errors import StrataError

LIFECYCLES: tuple[Lifecycle, ...] = (
    workers.LIFECYCLE,
    tasks.LIFECYCLE,
    barriers.LIFECYCLE,
    checkpoints.LIFECYCLE,
)


class CoordinatorStarted(Fact, frozen=True):
    """A coordinator took the log over; its incarnation is one higher than the last.

    `rules` are the limits and `timeouts` the timeouts in force until the next start: settings are
    read at the start only. Older logs have no timeouts.
    """

    incarnation: int
    cluster: str
    release: str
    rules: Rules
    timeouts: dict[str, float] = field(default_factory=dict)


class StartCoordinator(Command, frozen=True):
    cluster: str
    release: str
    rules: Rules = Rules()
    timeouts: dict[str, float] = field(default_factory=dict)


class Outcome(Struct, frozen=True):
    """What came of a command: facts in any case, and an answer or a refusal."""

    events: list[Event] = field(default_factory=list)
    answer: object = None
    refusal: StrataError | None = None


@applies(CoordinatorStarted)
def _started(state: Cluster, fact: CoordinatorStarted, event: Event) -> None:
    state.coordinator_incarnation = fact.incarnation
    state.cluster = fact.cluster
    state.rules = fact.rules
    state.timeouts = fact.timeouts


@decides(StartCoordinator)
def start(d: Decision, c: StartCoordinator) -> int:
    """Raises the coordinator's own incarnation; the cluster keeps the name it was given first."""
    incarnation = d.state.coordinator_incarnation + 1
    cluster = d.state.cluster or c.cluster
    started = CoordinatorStarted(
        incarnation=incarnation,
        cluster=cluster,
        release=c.release,
        rules=c.rules,
        timeouts=c.timeouts,
    )
    d.record(started, c.cause)
    return incarnation


def decide(state: Cluster, command: Command, now: Now) -> Outcome:
    """Runs the rule for a command; the state has advanced by the facts that are returned."""
    decision = Decision(state, now)
    try:
        if isinstance(command, WorkerCommand):
            require_living(decision, command)
        answer = DECIDE[type(command)](decision, command)
    except StrataError as refusal:
        return Outcome(decision.events, refusal=refusal)
    return Outcome(decision.events, answer)


def departs(command: object, state: Cluster) -> TypeGuard[DeregisterWorker | ReportExit]:
    """Whether a worker leaves by this command without having finished."""
    if isinstance(command, DeregisterWorker):
        return not departures.finishes(state, command)
    return isinstance(command, ReportExit)


def decide_departures(
    state: Cluster, commands: Sequence[DeregisterWorker | ReportExit], now: Now
) -> list[Outcome]:
    """Decides commands of one turn by which workers leave, as one change of each task.

    The last outcome has the facts of all.
    """
    decision = Decision(state, now)
    together = departures.Departures(decision)
    outcomes = []
    for command in commands:
        refusal = None
        try:
            if isinstance(command, DeregisterWorker):
                require_living(decision, command)
                together.leave(command)
            else:
                agents.hear_exit(decision, together, command)
        except StrataError as error:
            refusal = error
        outcomes.append(Outcome(refusal=refusal))
    together.follow()
    return [*outcomes[:-1], structs.replace(outcomes[-1], events=decision.events)]


def fold(state: Cluster, events: Iterable[Event]) -> Cluster:
    """Applies facts in order; the state is changed in place and returned."""
    for event in events:
        apply(state, event)
    return state


CODEC = Codec([*APPLY, *OUTDATED])
"""Encodes and decodes the coordinator's own facts."""

__all__ = [
    "CODEC",
    "LIFECYCLES",
    "Outcome",
    "apply",
    "decide",
    "decide_departures",
    "departs",
    "fold",
]
