"""Waiting until the storage of a checkpoint can be reached again.

The worker reports to the coordinator that it waits, so that the task shows it, and tries again with
growing delays. It never gives up by itself: the coordinator stops the task after
`storage_timeout_s`, and a new generation or a stop ends the wait at once.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from strata.checkpoint.reach import Unreachable
from strata.sdk.channel import delays_s
from strata.sdk.membership import Membership
from strata.sdk.session import Session
from strata.sdk.signals import GenerationChanged, StopRequested
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 10.0
LOG_EVERY_S = 60.0
REASON_CHARACTERS = 1_000

Result = TypeVar("Result")


class StorageWait:
    """The waits of one worker; `stopping` says why the worker should end, if it should."""

    def __init__(
        self, session: Session, membership: Membership, stopping: Callable[[], str]
    ) -> None:
        self._session, self._membership = session, membership
        self._stopping = stopping
        self._reported: tuple[int, bool] | None = None
        self._since_s = 0.0
        self._logged_s = 0.0

    def until_reached(self, attempt: Callable[[], Result]) -> Result:
        """The result of the attempt, once its storage can be reached."""
        delays = delays_s(FIRST_DELAY_S, LONGEST_DELAY_S)
        while True:
            try:
                return attempt()
            except Unreachable as error:
                self._note(error)
                self._pause(next(delays))

    def ended(self) -> None:
        """Reports that this worker has its model, if it had reported that it waits."""
        if self._reported:
            log.info(
                "the model is restored after %.1f s of waiting", time.monotonic() - self._since_s
            )
            self._report(reachable=True, reason="")
            self._reported = None

    def _note(self, error: Unreachable) -> None:
        """Reports the wait once in each generation and for each cause, and logs it now and then."""
        now_s = time.monotonic()
        if not self._reported:
            self._since_s, self._logged_s = now_s, 0.0
        if now_s - self._logged_s >= LOG_EVERY_S or not self._logged_s:
            self._logged_s = now_s
            waited_s = now_s - self._since_s
            trouble = "a file is missing" if error.missing else "storage unreachable"
            log.error("%s for %.0f s, trying again: %s", trouble, waited_s, error)
        found = (self._membership.place.generation, error.missing)
        if self._reported != found:
            self._reported = found
            self._report(
                reachable=False, reason=str(error)[:REASON_CHARACTERS], missing=error.missing
            )

    def _report(self, *, reachable: bool, reason: str, missing: bool = False) -> None:
        report = pb.ReportStorage(
            generation=self._membership.place.generation,
            reachable=reachable,
            reason=reason,
            missing=missing,
        )
        self._session.ask("report_storage", report)

    def _pause(self, delay_s: float) -> None:
        def interrupted() -> bool:
            return self._membership.changed or bool(self._stopping())

        self._session.wait_for(interrupted, delay_s)
        if reason := self._stopping():
            raise StopRequested(f"the model was not restored: {reason}")
        if self._membership.changed:
            raise GenerationChanged("the membership changed while storage was unreachable")
