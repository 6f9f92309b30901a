"""Arrive at a barrier and wait for its release.

Arrivals are numbered in this process. The coordinator treats the same number as the same arrival,
so a barrier survives a lost connection or a restart of the coordinator. After a timeout or Ctrl-C
here, the arrival still counts at the coordinator; arriving at that barrier again repeats the same
arrival, which may have been released in between.
"""

import threading
from collections.abc import Callable

from msgspec import Struct

from strata.errors import DeadlineExceeded, InvalidArgument, StrataError
from strata.sdk.session.worker_session import WorkerSession
from strata.wire.v1 import coordinator_pb2 as pb

MAX_NAME_CHARACTERS = 200
MAX_STEP = 2**63 - 1
MAX_UNFINISHED = 256
RETURN_HINT = "run `strata barriers` to list the missing workers; arrive again to keep waiting"


class BarrierResult(Struct, frozen=True):
    """A released barrier: the number of participants, and this worker's arrival order."""

    released: bool
    participants: int
    arrival_order: int


class Arrivals:
    """The arrivals of one worker."""

    def __init__(self) -> None:
        self._last = 0
        self._unfinished: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def number(self, name: str, generation: int = 0) -> tuple[int, int]:
        """The number and generation of the unfinished arrival at a barrier, or of a new one."""
        with self._lock:
            found = self._unfinished.pop(name, None)
            if found is None:
                self._last += 1
                found = (self._last, generation)
            self._unfinished[name] = found
            if len(self._unfinished) > MAX_UNFINISHED:
                del self._unfinished[next(iter(self._unfinished))]
            return found

    def finish(self, name: str) -> None:
        """End the current arrival at a barrier."""
        with self._lock:
            self._unfinished.pop(name, None)


def check_barrier(name: str, step: int, timeout_s: float | None) -> None:
    """Raise if an argument of a barrier is invalid."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidArgument(
            f"{name!r:.80} is not a valid barrier name",
            hint=f"use a string of 1 to {MAX_NAME_CHARACTERS} characters",
        )
    if not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise InvalidArgument(f"the barrier has step={step!r:.80}", hint="use a number from 0 on")
    if timeout_s is not None and not timeout_s > 0:
        raise InvalidArgument(
            f"the barrier has timeout={timeout_s!r:.80}", hint="use seconds above 0, or None"
        )


def meet(
    session: WorkerSession,
    arrivals: Arrivals,
    name: str,
    step: int,
    timeout_s: float | None,
    given_up: Callable[[], StrataError | None],
) -> BarrierResult:
    """Arrive and wait for the release; `given_up` returns an error that ends the wait, or None.

    Raises `DeadlineExceeded` with the missing workers if the barrier failed at the coordinator, and
    without them after `timeout_s`.
    """
    number, generation = arrivals.number(name, session.generation)
    arrive = pb.Arrive(
        barrier_id=name,
        step=step,
        arrival=number,
        generation=generation,
        after=session.left.round_of(name),
    )
    request = session.ask("arrive", arrive, barrier=name)
    try:
        in_time = session.wait_for(lambda: request.done or given_up() is not None, timeout_s)
    finally:
        session.forget(request)
    reason = given_up()
    if not request.done and reason is not None:
        arrivals.finish(name)
        raise reason
    if not in_time:
        raise DeadlineExceeded(
            f"barrier {name!r} was not released within {timeout_s:g} s",
            hint=RETURN_HINT,
        )
    arrivals.finish(name)
    if request.error is not None:
        raise reason or request.error
    assert request.answer is not None
    outcome = request.answer.barrier.outcome
    if outcome.released:
        session.left.note(name, step, outcome)
    return _result(name, outcome, reason)


def _result(
    name: str, outcome: pb.WaitBarrierResponse, reason: StrataError | None
) -> BarrierResult:
    if outcome.released:
        return BarrierResult(True, outcome.participants, outcome.arrival_order)
    missing = ", ".join(outcome.missing) or "no worker"
    raise reason or DeadlineExceeded(
        f"barrier {name!r} failed: {outcome.reason}; missing: {missing}",
        hint="look at the logs of the missing workers: strata logs --worker ID",
    )
