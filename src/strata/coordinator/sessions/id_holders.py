"""Registration under a worker id whose present worker is disconnected.

A worker whose connection broke, or that has not reconnected after a restart of the coordinator, is
alive until it is declared lost. A process that registers under its id meanwhile is told to retry.
If no agent will restart the disconnected worker, it is declared lost early: when it has been away
for longer than a live worker takes to reconnect.
"""

from strata.core.state import Cluster
from strata.core.workers.liveness import Watch
from strata.core.workers.worker_lifecycle import DeclareLost, RegisterWorker
from strata.errors import Unavailable

RETURN_S = 6.0
"""A live worker tries to reconnect at least every 5 s."""


def away_holder(
    state: Cluster, watch: Watch, command: RegisterWorker, now_ns: int
) -> DeclareLost | Unavailable | None:
    """The command that frees a worker id, or the refusal until then; None if the id is free or
    its worker is connected."""
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
            reason=f"disconnected for {away_s:.1f} s, and another process registered with its id",
            evidence={"silence_s": away_s},
        )
    return Unavailable(
        f"worker id {holder.id!r} belongs to incarnation {holder.incarnation}, which is "
        f"disconnected and not yet declared lost",
        hint="try again until that worker is declared lost",
    )
