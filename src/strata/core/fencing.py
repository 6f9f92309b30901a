"""Fencing: only the newest incarnation of a worker is listened to.

Every message names the sender's incarnation. A zombie (a process that was declared lost and does
not know it, or an old process beside its replacement) is refused, told its standing, and the
refusal is a fact, once per incarnation.
"""

from typing import TYPE_CHECKING

from strata.core.decision import Decision
from strata.core.events import Event, Fact, applies
from strata.errors import Fenced, NotFound

if TYPE_CHECKING:
    from strata.core.state import Cluster
    from strata.core.workers import Worker


MAX_FENCED = 16
"""Zombies of a worker that are remembered; each of them is recorded once."""


class WorkerFenced(Fact, frozen=True):
    """An old incarnation spoke and was refused; `current` is the one that counts, 0 for none."""

    worker: str
    incarnation: int
    current: int
    reason: str


@applies(WorkerFenced)
def _fenced(state: "Cluster", fact: WorkerFenced, event: Event) -> None:
    fenced = state.workers[fact.worker].fenced
    fenced.append(fact.incarnation)
    del fenced[:-MAX_FENCED]


def living(d: Decision, worker_id: str, incarnation: int, cause: tuple[str, ...] = ()) -> "Worker":
    """The worker, if this incarnation of it is alive; otherwise a refusal."""
    worker = d.state.workers.get(worker_id)
    if worker is None:
        raise NotFound(f"worker {worker_id!r} is not registered", hint="register it first")
    if worker.incarnation == incarnation and worker.alive:
        return worker
    if worker.incarnation == incarnation:
        reason = f"it was declared {worker.state}: {worker.reason}"
    elif not 0 < incarnation <= worker.incarnation:
        reason = "it was never given to this worker"
    else:
        reason = f"incarnation {worker.incarnation} has taken its place"
    if 0 < incarnation <= worker.incarnation and incarnation not in worker.fenced:
        current = worker.incarnation if worker.alive else 0
        d.record(WorkerFenced(worker_id, incarnation, current, reason), cause)
    raise Fenced(
        f"incarnation {incarnation} of worker {worker_id!r} is fenced: {reason}",
        hint="register again; the worker then gets a new incarnation",
    )
