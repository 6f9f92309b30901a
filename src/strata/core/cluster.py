"""All rules together: one entry point for commands, one for facts.

`decide` turns a command into facts and an answer, or a typed refusal. `apply` folds a fact into the
state. Everything else in this package is used through these two.
"""

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from msgspec import Struct, field, structs

from strata.core import limits
from strata.core.access import access_tokens
from strata.core.alerts import alert_record
from strata.core.barriers import agreements, barrier_rules
from strata.core.checkpoints import (
    checkpoint_commits,
    checkpoint_lifecycle,
    checkpoint_retention,
    save_schedule,
)
from strata.core.datasets import dataset_rules, lane_balance, shard_leases, training_loops
from strata.core.decision import APPLY, DECIDE, Decision, applies, apply, decides
from strata.core.events import OUTDATED, Codec, Command, Event, Fact, Now
from strata.core.generations import generation_members, recovery, recovery_failures, storage_waits
from strata.core.hosts import gpu_exclusion, host_exclusion, host_record
from strata.core.lifecycle import Lifecycle
from strata.core.record import log_salvage, record_retention, store_outages
from strata.core.rule_settings import Rules
from strata.core.state import Cluster
from strata.core.tasks import (
    continuation,
    elastic_workers,
    media_room,
    placement,
    preemption,
    resizing,
    task_forks,
    task_lifecycle,
    workdirs,
)
from strata.core.workers import (
    declared_losses,
    departures,
    host_agents,
    registration_rules,
    stack_collection,
    worker_lifecycle,
)
from strata.core.workers.fencing import WorkerCommand, require_living
from strata.core.workers.host_agents import ReportExit
from strata.core.workers.worker_lifecycle import DeregisterWorker
from strata.errors import StrataError

RULES = (
    access_tokens,
    agreements,
    alert_record,
    barrier_rules,
    checkpoint_commits,
    checkpoint_lifecycle,
    checkpoint_retention,
    continuation,
    dataset_rules,
    declared_losses,
    departures,
    elastic_workers,
    generation_members,
    gpu_exclusion,
    host_agents,
    host_exclusion,
    host_record,
    lane_balance,
    limits,
    log_salvage,
    media_room,
    placement,
    preemption,
    record_retention,
    recovery,
    recovery_failures,
    registration_rules,
    resizing,
    save_schedule,
    shard_leases,
    stack_collection,
    storage_waits,
    store_outages,
    task_forks,
    task_lifecycle,
    workdirs,
    training_loops,
    worker_lifecycle,
)
"""Modules that fill the tables of rules when they are imported."""

LIFECYCLES: tuple[Lifecycle, ...] = (
    worker_lifecycle.LIFECYCLE,
    task_lifecycle.LIFECYCLE,
    barrier_rules.LIFECYCLE,
    checkpoint_lifecycle.LIFECYCLE,
)


class CoordinatorStarted(Fact, frozen=True, kw_only=True):
    """A coordinator took over the log; its incarnation is one higher than the last.

    `rules` and `timeouts` are the limits and timeouts in force until the next start: settings are
    read at the start only.
    """

    sentence = "the coordinator started, incarnation {incarnation}[, release {release}]"

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
    """The result of a command: the recorded facts, and an answer or a refusal."""

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
    """Raise the coordinator's own incarnation; the cluster keeps the name it was given first."""
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
    """Run the rule for a command; the state has advanced by the facts that are returned."""
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
    """Decide the commands of one turn by which workers leave, as one change of each task.

    The last outcome has the facts of all commands.
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
                host_agents.record_exit(decision, together, command)
        except StrataError as error:
            refusal = error
        outcomes.append(Outcome(refusal=refusal))
    together.follow()
    return [*outcomes[:-1], structs.replace(outcomes[-1], events=decision.events)]


def fold(state: Cluster, events: Iterable[Event]) -> Cluster:
    """Apply facts in order; the state is changed in place and returned."""
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
