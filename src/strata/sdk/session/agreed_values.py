"""Values that all workers of a task agree on, through the coordinator.

The value is rank 0's. It is recorded before any worker gets it; if rank 0 is lost before it has
sent its value, another worker's is used.
"""

from collections.abc import Callable

from strata.errors import Fenced, NotAllowedNow
from strata.sdk.interrupts import StopRequested
from strata.sdk.session.run_worker import RunWorker
from strata.wire.v1 import coordinator_pb2 as pb


class AgreedValues:
    """The agreements of one worker; `ending` returns why it should end, or an empty string."""

    def __init__(self, worker: RunWorker, ending: Callable[[], str]) -> None:
        self._worker, self._ending = worker, ending

    def agree(self, key: str, value: str) -> str:
        """The value of a key, which every worker uses at the same place of its script."""
        session, membership = self._worker.session, self._worker.membership
        while True:
            session.require_usable()
            known = (membership.agreed, membership.newest_place)
            try:
                asked = pb.Agree(key=key, step=membership.steps, value=value)
                return session.answer(session.ask("agree", asked)).agreed.value
            except (NotAllowedNow, Fenced):  # asked too early, or as an earlier incarnation
                self._wait_for_change(known)

    def _wait_for_change(self, known: tuple[int, object]) -> None:
        """Wait until another value was agreed on, or the membership changed."""
        worker, membership = self._worker, self._worker.membership
        worker.waiting = True
        try:
            worker.session.wait_for(
                lambda: (
                    (membership.agreed, membership.newest_place) != known or bool(self._ending())
                )
            )
        finally:
            worker.waiting = False
        if reason := self._ending():
            raise StopRequested(f"the run is stopping: {reason}")
