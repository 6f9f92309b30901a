"""Worker ids whose holder may be dead: a process that asks for one waits instead of failing.

A worker whose connection broke, or that has not come back after a restart of the coordinator,
counts as alive until it is declared lost. A process that is started in its place meanwhile is told
to try again. A holder that no agent will start again is declared lost early, when it has been away
for longer than a living worker takes to reconnect.
"""

from strata.core.liveness import Watch
from strata.core.state import Cluster
from strata.core.workers import DeclareLost, RegisterWorker
from strata.errors import Unavailable

RETURN_S = 6.0
"""A living worker tries to reconnect at least every 5 s."""


def away_holder(
    state: Cluster, watch: Watch, command: RegisterWorker, now_ns: int
) -> DeclareLost | Unavailable | None:
    """What has to happen before a worker id is given away: its holder is declared lost, or the
    caller waits; None if there is no holder that is away."""
    holder = state.workers.get(command.worker)
    if holder is None or not holder.alive or holder.nonce == command.nonce:
        return None
    away_s = watch.away_s(holder.id, now_ns)
    if not away_s:
        return None
    if away_s > RETURN_S and holder.id not in state.tasks[holder.task].placements:
        return DeclareLost(
            worker=holder.id,
            incarnation=holder.incarnation,
            signal="absent",
            reason=f"away for {away_s:.1f} s, and another process registered under its id",
            evidence={"silence_s": away_s},
        )
    return Unavailable(
        f"worker id {holder.id!r} belongs to incarnation {holder.incarnation}, which is away and "
        f"not yet declared lost",
        hint="try again until that worker is lost",
    )
