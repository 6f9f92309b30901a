"""Fencing: only commands of the newest incarnation of a worker are accepted.

Every command that a worker sends names its incarnation, and `decide` checks it before the rule of
the command runs, so no rule can forget the check. A process that was declared lost and does not
know it, or an old process beside its replacement, is refused. The refusal is recorded once per
incarnation.
"""

from strata.core.decision import Decision, applies
from strata.core.events import Command, Event, Fact
from strata.core.state import Agent, Cluster
from strata.errors import Fenced, NotFound

MAX_FENCED = 16
"""Fenced incarnations that the state keeps for each worker; each of them is recorded once."""


class WorkerCommand(Command, frozen=True, kw_only=True):
    """A command that a worker sends."""

    worker: str
    incarnation: int


class SharedCommand(WorkerCommand, frozen=True, kw_only=True):
    """A command that a worker sends, or an operator or the coordinator without a worker."""

    worker: str = ""
    incarnation: int = 0


class WorkerFenced(Fact, frozen=True, kw_only=True):
    """A command of an old incarnation was refused; `current` is the living one, 0 for none."""

    sentence = "incarnation {incarnation} of {worker} was fenced[: {reason}]"
    lane_mark = True

    worker: str
    incarnation: int
    current: int
    reason: str


@applies(WorkerFenced)
def _fenced(state: Cluster, fact: WorkerFenced, event: Event) -> None:
    fenced = state.workers[fact.worker].fenced
    fenced.append(fact.incarnation)
    del fenced[:-MAX_FENCED]


def require_living(d: Decision, c: WorkerCommand) -> None:
    """Refuse a command unless its incarnation is the living one."""
    if not c.worker and isinstance(c, SharedCommand):
        return
    worker = d.state.workers.get(c.worker)
    if worker is None:
        raise NotFound(f"worker {c.worker!r} is not registered", hint="register it first")
    if worker.incarnation == c.incarnation and worker.alive:
        return
    if worker.incarnation == c.incarnation:
        reason = f"it was declared {worker.state}: {worker.reason}"
    elif not 0 < c.incarnation <= worker.incarnation:
        reason = "it was never given to this worker"
    else:
        reason = f"incarnation {worker.incarnation} has taken its place"
    if 0 < c.incarnation <= worker.incarnation and c.incarnation not in worker.fenced:
        current = worker.incarnation if worker.alive else 0
        d.record(
            WorkerFenced(
                worker=c.worker, incarnation=c.incarnation, current=current, reason=reason
            ),
            c.cause,
        )
    raise Fenced(
        f"incarnation {c.incarnation} of worker {c.worker!r} is fenced: {reason}",
        hint="register again; the worker then gets a new incarnation",
    )


def require_agent(state: Cluster, agent: str, incarnation: int) -> Agent:
    """The agent of that id; refuses an incarnation that is not its newest."""
    known = state.agents.get(agent)
    if known is None or known.incarnation != incarnation:
        raise Fenced(
            f"agent {agent!r} of incarnation {incarnation} is fenced",
            hint="register the agent again",
        )
    return known
