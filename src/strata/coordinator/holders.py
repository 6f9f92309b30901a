"""Worker ids whose holder may be dead: a process that asks for one waits instead of failing.

A worker whose connection broke, or that has not come back after a restart of the coordinator,
counts as alive until it is declared lost. A process that is started in its place meanwhile is told
to try again. A holder that no agent will start again is declared lost early, when it has been away
for longer than a living worker takes to reconnect.
"""

from strata.coordinator.engine import Engine
from strata.core.workers import DeclareLost, RegisterWorker
from strata.errors import Unavailable

RETURN_S = 6.0
"""A living worker tries to reconnect at least every 5 s."""


def require_present_holder(engine: Engine, command: RegisterWorker) -> None:
    """Raises `Unavailable` while the worker id belongs to a worker that is away."""
    kernel = engine.kernel
    holder = kernel.state.workers.get(command.worker)
    if holder is None or not holder.alive or holder.nonce == command.nonce:
        return
    away_s = kernel.watch.away_s(holder.id, kernel.clock().mono_ns)
    if not away_s:
        return
    if away_s > RETURN_S and holder.id not in kernel.state.tasks[holder.task].placements:
        engine.post(
            DeclareLost(
                worker=holder.id,
                incarnation=holder.incarnation,
                signal="absent",
                reason=f"away for {away_s:.1f} s, and another process registered under its id",
                evidence={"silence_s": away_s},
            )
        )
    raise Unavailable(
        f"worker id {holder.id!r} belongs to incarnation {holder.incarnation}, which is away and "
        f"not yet declared lost",
        hint="try again until that worker is lost",
    )
